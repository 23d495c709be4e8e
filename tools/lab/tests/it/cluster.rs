//! The demands of a lab on the program `prism`, by a stand-in that does just that: it makes
//! certificates, pins, answers counters and serves. The crate `prism` tests the program.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::turn;
use prism_config::ConfigFile;
use prism_lab::{Lab, LabError, LabName, LabSpec};

const STAND_IN: &str = r#"#!/usr/bin/env python3
import http.server, os, socket, sys, threading, time, tomllib
words = sys.argv[1:]
if words[:2] == ["pki", "init"]:
    directory, names = words[words.index("--dir") + 1], words[words.index("--nodes") + 1]
    for name in ["ca.crt"] + [f"{n}.{e}" for n in names.split(",") for e in ("crt", "key")]:
        open(f"{directory}/{name}", "w").close()
    sys.exit(0)
config = tomllib.load(open(words[words.index("--config") + 1], "rb"))
if words[0] == "switch":
    os.system("mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf")
    form, secret = open(config["switch"]["key_file"]).read().split()
    assert form == "secret" and len(bytes.fromhex(secret)) == 32
    os.makedirs("/sys/fs/bpf/" + config["switch"]["pin_dir"] + "/maps")
    for port in config["switch"]["interfaces"]:
        os.system(f"tc qdisc add dev {port} clsact")
        os.system(f"tc filter add dev {port} ingress protocol ip u32 match u32 0 0 flowid 1:1")
    time.sleep(600)
node = next(n for n in config["node"] if n["name"] == words[words.index("--node") + 1])
print("node", node["name"], "starts", flush=True)
assert os.path.isfile(config["switch"]["key_file"] + "." + node["name"])
if config["log"]["level"] == "silent=off": time.sleep(600)
if "frontend" in node["roles"]:
    address = (config["service"]["address"].split(":")[0], 80)
    server = http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
else:
    assert os.path.isdir(node["store"])
    socket.create_server((node["address"], config["peers"]["port"]))
admin = socket.socket(socket.AF_UNIX)
admin.bind(config["admin"]["socket_dir"] + "/" + node["name"] + ".sock")
admin.listen()
while True:
    peer, _ = admin.accept()
    assert peer.recv(64) == b"counters\n"
    gauges = b'{"workers_steering": 1, "workers_leased": 1}'
    peer.sendall(b'{"node": "%s", "handoff": %s}' % (node["name"].encode(), gauges))
    peer.close()
"#;

/// A lab of the stand-in; the directory holds the program.
fn stand_in(label: &str) -> (LabSpec, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let program: PathBuf = directory.path().join("prism");
    std::fs::write(&program, STAND_IN).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let name: LabName = format!("{label}-{}", std::process::id()).parse().unwrap();
    (LabSpec::new(name, program), directory)
}

#[test]
fn a_cluster_is_up_once_all_of_it_serves() {
    let Some(_turn) = turn() else { return };
    let (mut spec, _directory) = stand_in("serves");
    spec.frontends = 2;
    let name = spec.name.clone();
    let lab = Lab::up(spec.configure(|config| config.limits.head_timeout_s = 7)).unwrap();
    assert_eq!(lab.admin("be2").unwrap()["node"], "be2");
    assert!(
        lab.admin("switch").is_err(),
        "the stand-in's switch has no counters"
    );
    let config = ConfigFile::load(&lab.config_path()).unwrap();
    assert_eq!(config.limits.head_timeout_s, 7);
    assert_eq!(config.service.first().address.first(), Some(lab.service()));
    let credentials = config.s3.load_credentials().unwrap();
    assert_eq!(&credentials[0], lab.credential());
    assert!(lab.status().hosts.iter().all(|host| host.running));

    lab.keep().unwrap();
    let lab = Lab::attach(&name).unwrap();
    assert!(lab.pid("fe1").is_some(), "a kept lab lives on");
    drop(lab);
    Lab::remove(&name).unwrap();
    for path in [
        "/run/prism-lab/",
        "/sys/fs/bpf/prism-lab-",
        "/dev/shm/prism-lab-",
    ] {
        assert!(
            !PathBuf::from(format!("{path}{name}")).exists(),
            "{path}{name} is left"
        );
    }
}

#[test]
fn a_node_that_does_not_answer_is_named_with_its_output() {
    let Some(_turn) = turn() else { return };
    let (mut spec, _directory) = stand_in("silent");
    spec.backends = 1;
    spec.ready_timeout = Duration::from_secs(5);
    let error =
        Lab::up(spec.configure(|config| config.log.level = "silent=off".into())).unwrap_err();
    assert!(matches!(error, LabError::Unhealthy { .. }), "{error}");
    assert!(
        error.to_string().contains("starts"),
        "the log is not quoted: {error}"
    );
}

#[test]
fn a_change_that_breaks_the_configuration_is_refused() {
    let Some(_turn) = turn() else { return };
    let (spec, _directory) = stand_in("refused");
    let error = Lab::up(spec.configure(|config| config.limits.head_bytes = 0)).unwrap_err();
    assert!(error.to_string().contains("limits.head_bytes"), "{error}");
}
