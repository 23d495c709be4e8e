//! Nodes that get other certificates while they run: the cluster's authority is replaced, and
//! a certificate ends.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use prism_proto::node::ALPN_RELAY;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::wire::{Wire, dialler};
use crate::support::{Cluster, eventually, output, say, tls, turn};

/// The longest time until a node has noticed other files.
const NOTICED: Duration = Duration::from_secs(5);
const PRISM: &str = env!("CARGO_BIN_EXE_prism");

/// The certificates of a cluster.
struct Certificates<'c> {
    cluster: &'c Cluster,
    dir: PathBuf,
}

impl<'c> Certificates<'c> {
    fn of(cluster: &'c Cluster) -> Self {
        let dir = cluster.lab.config_path().with_file_name("pki");
        Self { cluster, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs `prism pki` and returns its output.
    fn run(&self, words: &[&str], more: &[&str]) -> String {
        let mut command = Command::new(PRISM);
        command.arg("pki").args(words).arg("--dir").arg(&self.dir);
        output(command.args(more))
    }

    fn issue(&self, host: &str) {
        let key = self.path("second.key");
        let words = ["issue", "--replace", "--key", key.to_str().unwrap()];
        self.run(&words, &[host]);
    }

    /// The serial numbers in a file.
    fn serials(&self, name: &str) -> Vec<String> {
        let mut command = Command::new(PRISM);
        command.args(["pki", "show", "--json"]).arg(self.path(name));
        let shown: Value = serde_json::from_str(&output(&mut command)).unwrap();
        let serials = shown.as_array().unwrap().iter();
        let serials = serials.map(|found| found["serial"].as_str().unwrap().to_owned());
        serials.collect()
    }

    fn count(&self, host: &str, name: &str) -> u64 {
        self.cluster.counter(host, "handoff", name)
    }

    /// Makes `change`, and waits until `hosts` have loaded their files again.
    fn load_at(&self, hosts: &[String], what: &str, change: impl FnOnce()) {
        let loads = |host: &String| self.count(host, "identity_loads");
        let before: Vec<u64> = hosts.iter().map(loads).collect();
        change();
        eventually(what, NOTICED, || {
            hosts
                .iter()
                .map(loads)
                .zip(&before)
                .all(|(now, before)| now > *before)
        });
    }

    fn node_port(&self, host: &str) -> SocketAddr {
        (self.cluster.lab.address(host).unwrap(), 7400).into()
    }

    /// be1's connection to `host` with the certificate in `dir`.
    fn dial(&self, host: &str, dir: &Path) -> std::io::Result<Wire> {
        let config = dialler(&self.dir, Some((dir, "be1")), ALPN_RELAY);
        let address = self.node_port(host);
        self.cluster.on("be1", || Wire::dial(address, host, config))
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// wrk, which asks for the same objects again and again on connections that it keeps.
struct Load(Child);

impl Load {
    fn start(cluster: &Cluster, objects: &[Object], service: SocketAddr, url: &str) -> Self {
        let script = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let script = script.join(format!("renewal-{}.lua", service.port()));
        let mut lua = "local requests = {\n".to_owned();
        for object in objects {
            let head = Request::get(object).encode_by(&cluster.signer, service);
            writeln!(lua, "  {:?},", String::from_utf8(head).unwrap()).unwrap();
        }
        lua += "}\nlocal n = 0\nfunction request()\n  n = n % #requests + 1\n  \
                return requests[n]\nend\n";
        std::fs::write(&script, lua).unwrap();
        let mut wrk = cluster.lab.command("client", "wrk").unwrap();
        wrk.args(["-t1", "-c4", "-d60", "-s"]).arg(&script).arg(url);
        Self(wrk.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Stops it, and checks that every request was answered with success.
    fn finish(self) {
        signal(self.0.id(), Signal::INT);
        let report = self.0.wait_with_output().unwrap();
        let report = String::from_utf8_lossy(&report.stdout);
        let total = report.lines().find(|line| line.contains(" requests in "));
        say(total
            .unwrap_or_else(|| panic!("no report: {report}"))
            .trim());
        assert!(!report.contains("Socket errors"), "{report}");
        assert!(!report.contains("Non-2xx"), "{report}");
    }
}

#[test]
fn the_authority_is_replaced_under_load_without_a_failed_request() {
    let Some(_turn) = turn() else { return };
    let mut cluster = tls::up(3, |_| {});
    let mut objects = cluster.one_on_each("renewal", |_| 1_000);
    objects.extend(cluster.one_on_each("renewal-large", |_| 100_000));
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "renewal");
    let https = cluster.lab.https_service().unwrap();
    let (plain, sealed) = (
        cluster.lab.endpoint(),
        cluster.lab.https_endpoint().unwrap(),
    );
    let loads = [
        Load::start(&cluster, &objects, cluster.service, &plain),
        Load::start(&cluster, &objects, https, &sealed),
    ];
    let (dropped, old) = replace_authority(&cluster, &objects);
    for load in loads {
        load.finish();
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::AtItsEnd);
    refuses_the_dropped(&Certificates::of(&cluster), &dropped, old.path());
    // All connections between nodes are new ones.
    for host in cluster.nodes() {
        cluster.lab.restart(&host).unwrap();
    }
    let moved = cluster.sum("handoff", "exports_moved");
    eventually("the nodes hand off again", Duration::from_secs(10), || {
        let mut client = cluster.connect();
        let gets = objects
            .iter()
            .map(|object| Request::get(object).encode(&cluster));
        let gets: Vec<_> = gets.collect();
        let are_well = gets.iter().all(|get| client.call(get).status() == 200);
        are_well && cluster.sum("handoff", "exports_moved") > moved
    });
}

/// Makes a second authority, renews each node by it, and drops the first one. Returns the serial
/// number of the first one, and a directory with be1's certificate of that time.
fn replace_authority(cluster: &Cluster, objects: &[Object]) -> (String, tempfile::TempDir) {
    let (certificates, nodes) = (Certificates::of(cluster), cluster.nodes());
    let old = tempfile::tempdir().unwrap();
    for name in ["be1.crt", "be1.key"] {
        std::fs::copy(certificates.path(name), old.path().join(name)).unwrap();
    }
    let moves_on = |when: &str| {
        let moved = || cluster.sum("handoff", "exports_moved");
        let (before, mut client) = (moved(), cluster.connect());
        for object in objects {
            client.get(cluster, object);
        }
        eventually(when, NOTICED, || moved() > before);
    };
    let first = certificates.serials("ca.crt").remove(0);
    let key = certificates.path("second.key");
    certificates.load_at(&nodes, "all nodes trust both authorities", || {
        let words = ["new-authority", "--keep-key", key.to_str().unwrap()];
        certificates.run(&words, &[]);
    });
    moves_on("hand-offs go on with two authorities");
    for host in &nodes {
        certificates.load_at(std::slice::from_ref(host), host, || {
            certificates.issue(host)
        });
        moves_on("hand-offs go on while nodes are renewed");
    }
    // Files that do not fit each other change nothing.
    let failed = certificates.count("be0", "identity_loads_failed");
    let own = std::fs::read(certificates.path("be0.key")).unwrap();
    std::fs::copy(certificates.path("be1.key"), certificates.path("be0.key")).unwrap();
    eventually("a wrong key is noticed", NOTICED, || {
        certificates.count("be0", "identity_loads_failed") > failed
    });
    let log = std::fs::read_to_string(cluster.lab.log_path("be0")).unwrap();
    assert!(log.contains("be0.key is not the key of"), "{log}");
    assert!(certificates.dial("be0", &certificates.dir).is_ok());
    certificates.load_at(&["be0".to_owned()], "the right key is loaded", || {
        std::fs::write(certificates.path("be0.key"), own).unwrap();
    });
    certificates.load_at(&nodes, "no node trusts the first authority", || {
        certificates.run(&["drop-authority", &first], &[]);
    });
    moves_on("hand-offs go on with the second authority");
    certificates.load_at(&["fe0".to_owned()], "SIGHUP loads again", || {
        signal(cluster.lab.pid("fe0").unwrap(), Signal::HUP);
    });
    (first, old)
}

/// Each node shows a certificate of the second authority, and refuses one of the first.
fn refuses_the_dropped(certificates: &Certificates<'_>, dropped: &str, old: &Path) {
    let cluster = certificates.cluster;
    assert!(
        !certificates
            .serials("ca.crt")
            .iter()
            .any(|serial| serial == dropped)
    );
    for host in ["fe0", "be0", "be2"] {
        // It trusts the second authority only.
        assert!(certificates.dial(host, &certificates.dir).is_ok(), "{host}");
        let refused = certificates.count(host, "peers_refused");
        // The refusal comes after our half of a TLS 1.3 handshake.
        if let Ok(mut wire) = certificates.dial(host, old) {
            wire.assert_ended();
        }
        eventually("the dropped authority is refused", NOTICED, || {
            certificates.count(host, "peers_refused") > refused
        });
    }
    let log = std::fs::read_to_string(cluster.lab.log_path("be0")).unwrap();
    assert!(log.contains("UnknownIssuer"), "{log}");
}

#[test]
fn an_ended_certificate_is_named_and_another_one_brings_the_node_back() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(2);
    let objects = cluster.one_on_each("ended", |_| 100_000);
    cluster.put_all(&objects);
    let nodes = cluster.nodes();
    {
        let certificates = Certificates::of(&cluster);
        let key = certificates.path("second.key");
        certificates.load_at(&nodes, "all nodes trust both authorities", || {
            let words = ["new-authority", "--keep-key", key.to_str().unwrap()];
            certificates.run(&words, &[]);
        });
        let how = prism_pki::Issuing {
            key_file: key,
            days: 0,
            replace: true,
        };
        prism_pki::issue(&certificates.dir, &["be0".to_owned()], &how).unwrap();
    }
    std::thread::sleep(Duration::from_millis(1_100));
    cluster.lab.restart("be0").unwrap();
    let certificates = Certificates::of(&cluster);
    let log = || std::fs::read_to_string(cluster.lab.log_path("be0")).unwrap();
    eventually("the log names the certificate", NOTICED, || {
        log().contains("be0.crt (CN=be0) has ended on")
    });
    let mut curl = cluster.lab.command("be0", "curl").unwrap();
    let metrics = output(curl.args(["-sS", "http://127.0.0.1:9464/metrics"]));
    let is_ended = |line: &str| {
        let value = line.strip_prefix("prism_tls_certificate_expiry_timestamp_seconds{");
        let value = value.filter(|rest| rest.contains("/be0.crt\"} "));
        let end_s = value
            .and_then(|rest| rest.rsplit_once(' '))?
            .1
            .parse::<f64>()
            .ok()?;
        Some(end_s < time::OffsetDateTime::now_utc().unix_timestamp() as f64)
    };
    assert_eq!(metrics.lines().find_map(is_ended), Some(true), "{metrics}");
    assert!(metrics.contains("/ca.crt\"}"), "{metrics}");
    let config = cluster.lab.config_path();
    let mut doctor = Command::new(PRISM);
    doctor
        .arg("doctor")
        .arg("--config")
        .arg(&config)
        .args(["--node", "be0"]);
    let found = doctor.output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout);
    assert!(found.contains("be0.crt (CN=be0) has ended on"), "{found}");
    let get = Request::get(&objects[0]).encode(&cluster);
    let status = || cluster.connect().call(&get).status();
    assert_eq!(status(), 503);
    certificates.load_at(&["be0".to_owned()], "be0", || certificates.issue("be0"));
    eventually("the node serves again", NOTICED, || status() == 200);
}
