//! The mistakes of operators. Each gets one line, which names the place, the fault and the
//! remedy, each of them once.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use prism_lab::testing::turn;
use prism_pki::{self as pki, Issuing};

/// The user `nobody`.
const NOBODY: u32 = 65_534;
/// The name of the mistaken pins: no switch has it.
const NO_PIN: &str = "prism-no-such-switch";

/// A directory with both programs, a good configuration and its files.
struct Host {
    directory: tempfile::TempDir,
}

/// A mistake: the command, and parts of what it has to say.
struct Mistake {
    name: &'static str,
    command: Command,
    said: Vec<String>,
}

fn mistake(name: &'static str, command: Command, said: &[&str]) -> Mistake {
    let said = said.iter().map(|part| (*part).to_owned()).collect();
    Mistake {
        name,
        command,
        said,
    }
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let host = Self { directory };
        // For nobody.
        let open = PermissionsExt::from_mode(0o755);
        fs::set_permissions(host.directory.path(), open).unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_prism-lab"));
        for program in ["prism", "prism-lab"] {
            fs::copy(built.with_file_name(program), host.path(program)).unwrap();
        }
        let names = ["n0".to_owned(), "n1".to_owned()];
        let founding = pki::Founding {
            key_file: Some(host.path("authority.key")),
            ..pki::Founding::default()
        };
        pki::found(&host.path("pki"), &names, &founding).unwrap();
        host.secret("switch.key", &"0f".repeat(16));
        host.secret("credentials.toml", GOOD_CREDENTIALS);
        host.write("good.toml", GOOD);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn secret(&self, name: &str, text: &str) {
        self.write(name, text);
        fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o600)).unwrap();
    }

    /// The good configuration with a change, as the file `name`.
    fn config(&self, name: &str, from: &str, to: &str) -> PathBuf {
        assert!(GOOD.contains(from), "{from}");
        self.write(name, &GOOD.replacen(from, to, 1));
        self.path(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path(program));
        command.args(arguments).current_dir(self.directory.path());
        command
    }

    fn prism(&self, arguments: &str) -> Command {
        self.run("prism", &arguments.split(' ').collect::<Vec<_>>())
    }

    fn lab(&self, arguments: &str) -> Command {
        self.run("prism-lab", &arguments.split(' ').collect::<Vec<_>>())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Everybody may make a directory there, and so nobody has.
        let _ = fs::remove_dir(Path::new("/sys/fs/bpf").join(NO_PIN));
    }
}

const GOOD_CREDENTIALS: &str =
    "[[credential]]\naccess_key = \"a\"\nsecret_key = \"hush\"\nadmin = true\n";

const GOOD: &str = r#"[cluster]
name = "mistakes"
[service]
address = "10.77.0.1:80"
[switch]
control = "10.77.0.2:7300"
key_file = "switch.key"
interfaces = ["lo"]
pin_dir = "prism-no-such-switch"
[[node]]
name = "n0"
address = "10.77.0.10"
roles = ["frontend", "backend"]
store = "store"
[peers]
ca_file = "pki/ca.crt"
cert_dir = "pki"
[s3]
credentials_file = "credentials.toml"
[admin]
socket_dir = "run"
listen = ""
"#;

#[test]
fn each_mistake_gets_one_line_with_the_place_the_fault_and_the_remedy() {
    let Some(_turn) = turn() else { return };
    let host = Host::new();
    let good = host.prism("check good.toml --node n0").output().unwrap();
    assert!(good.status.success(), "{good:?}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut mistakes = of_the_configuration(&host);
    mistakes.extend(of_secrets(&host));
    mistakes.extend(of_the_host(&host, &taken.local_addr().unwrap().to_string()));
    mistakes.extend(of_the_cluster(&host));
    let faults: Vec<_> = mistakes.into_iter().filter_map(judge).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn of_the_configuration(host: &Host) -> Vec<Mistake> {
    host.config(
        "field.toml",
        "address = \"10.77.0.1",
        "adress = 1\naddress = \"10.77.0.1",
    );
    host.config("type.toml", "[peers]\n", "[peers]\nport = \"many\"\n");
    host.config("syntax.toml", "[peers]\n", "[peers]\nport =\n");
    host.config("address.toml", "10.77.0.1:80", "fd00::1");
    host.config(
        "twice.toml",
        "\"10.77.0.10\"",
        "[\"10.77.0.10\", \"10.77.0.12\"]",
    );
    vec![
        mistake(
            "unknown field",
            host.prism("check field.toml"),
            &[
                "prism: field.toml:4: service.adress: unknown field",
                "correct the name or remove",
            ],
        ),
        mistake(
            "wrong type",
            host.prism("check type.toml"),
            &[
                "prism: type.toml:16: peers.port: is the text \"many\"",
                "use a whole number from 0 to 65535, without quotes",
            ],
        ),
        mistake(
            "no TOML",
            host.prism("check syntax.toml"),
            &[
                "prism: syntax.toml:16: not valid TOML: ",
                "correct this line",
            ],
        ),
        mistake(
            "missing file",
            host.prism("node --config absent.toml --node n0"),
            &[
                "prism: cannot read absent.toml: No such file",
                "name the file of the cluster",
            ],
        ),
        mistake(
            "address without a port",
            host.prism("check address.toml"),
            &[
                "prism: address.toml:4: service.address: \"fd00::1\" is not an address with a port",
                "\"[fd00::1]:PORT\"",
            ],
        ),
        mistake(
            "two addresses of one family",
            host.prism("check twice.toml"),
            &[
                "prism: twice.toml:12: node[0].address: 10.77.0.10 and 10.77.0.12",
                "give one address of each family",
            ],
        ),
        mistake(
            "option without a port",
            host.prism("serve new --listen ::1"),
            &["error: ", "--listen", "as in 127.0.0.1:9000 or [::1]:9000"],
        ),
        mistake(
            "unknown node",
            host.prism("node --config good.toml --node n7"),
            &["prism: good.toml has no node \"n7\"; its nodes are n0"],
        ),
    ]
}

fn of_secrets(host: &Host) -> Vec<Mistake> {
    let credentials = GOOD_CREDENTIALS;
    let with = |name: &str, file: &str, text: &str| {
        host.config(name, "credentials.toml", file);
        host.secret(file, text);
    };
    with("exposed.toml", "exposed.cred", credentials);
    let open = PermissionsExt::from_mode(0o644);
    fs::set_permissions(host.path("exposed.cred"), open).unwrap();
    with(
        "form.toml",
        "form.cred",
        &credentials.replace("secret_key", "secret"),
    );
    host.config("absent_secret.toml", "credentials.toml", "absent.cred");
    host.secret("short.key", "0f0f");
    host.config("short.toml", "switch.key", "short.key");
    let mut unreadable = host.prism("check good.toml --node n0");
    unreadable.uid(NOBODY).gid(NOBODY);
    // Nobody reads all other files.
    chown(host.path("switch.key"), Some(NOBODY), None).unwrap();
    chown(host.path("pki/n0.key"), Some(NOBODY), None).unwrap();
    for (dir, key) in [("mixed", "n1.key"), ("ended", "n0.key")] {
        copy_pki(host, dir, key);
        host.config(
            &format!("{dir}.toml"),
            "cert_dir = \"pki\"",
            &format!("cert_dir = \"{dir}\""),
        );
    }
    let how = Issuing {
        key_file: host.path("authority.key"),
        days: 0,
        replace: true,
    };
    pki::issue(&host.path("ended"), &["n0".to_owned()], &how).unwrap();
    std::thread::sleep(Duration::from_millis(1_100));
    vec![
        mistake(
            "exposed secret",
            host.prism("check exposed.toml --node n0"),
            &[
                "s3.credentials_file: exposed.cred can be read by others",
                "chmod 600 exposed.cred",
            ],
        ),
        mistake(
            "unreadable secret",
            unreadable,
            &["credentials.toml: Permission denied", "run this as root"],
        ),
        mistake(
            "missing secret",
            host.prism("check absent_secret.toml --node n0"),
            &[
                "cannot read absent.cred: No such file",
                "make it as in docs/install.md",
            ],
        ),
        mistake(
            "wrong line of a secret",
            host.prism("node --config form.toml --node n0"),
            &["form.cred:3: ", "correct the line"],
        ),
        mistake(
            "wrong key of the switch",
            host.prism("check short.toml --node n0"),
            &[
                "switch.key_file: short.key: not 1 or 2 lines",
                "`prism ctl switch rotate-key` makes a secret",
            ],
        ),
        mistake(
            "wrong key of a node",
            host.prism("node --config mixed.toml --node n0"),
            &["mixed/n0.key is not the key of mixed/n0.crt; install both files"],
        ),
        mistake(
            "expired certificate",
            host.prism("check ended.toml --node n0"),
            &[
                "ended/n0.crt (CN=n0) has ended on ",
                "prism pki issue --replace",
            ],
        ),
    ]
}

/// A copy of the directory `pki`, in which n0 has this key.
fn copy_pki(host: &Host, dir: &str, key: &str) {
    let (from, to) = (host.path("pki"), host.path(dir));
    fs::create_dir(&to).unwrap();
    for (file, name) in [("ca.crt", "ca.crt"), ("n0.crt", "n0.crt"), (key, "n0.key")] {
        fs::copy(from.join(file), to.join(name)).unwrap();
    }
}

fn of_the_host(host: &Host, taken: &str) -> Vec<Mistake> {
    host.config(
        "taken.toml",
        "listen = \"\"",
        &format!("listen = \"{taken}\""),
    );
    let mut not_root = host.prism("switch --config good.toml");
    not_root.uid(NOBODY).gid(NOBODY);
    let mut lab_not_root = host.lab("up");
    lab_not_root.uid(NOBODY).gid(NOBODY);
    let newer = host.path("newer");
    fs::create_dir(&newer).unwrap();
    host.write("newer/FORMAT", "prism-store format 99\n");
    host.config("newer.toml", "store = \"store\"", "store = \"newer\"");
    fs::create_dir(host.path("full")).unwrap();
    let full = "mount -t tmpfs -o size=64k full full \
                && dd if=/dev/zero of=full/lost+found bs=4k count=13 2> /dev/null; \
                exec ./prism serve full --listen 127.0.0.1:0";
    let full = ["--mount", "--propagation", "private", "sh", "-c", full];
    let mut on_full = Command::new("unshare");
    on_full.args(full).current_dir(host.directory.path());
    vec![
        mistake(
            "port in use by serve",
            host.prism(&format!("serve new --listen {taken}")),
            &[
                "another process listens on",
                taken,
                "choose another port with --listen",
            ],
        ),
        mistake(
            "port in use by node",
            host.prism("node --config taken.toml --node n0"),
            &[
                "cannot listen on admin.listen",
                taken,
                "Address already in use",
                "choose another",
            ],
        ),
        mistake(
            "switch without root",
            not_root,
            &["prism: ", "Operation not permitted", "run it as root"],
        ),
        mistake(
            "lab without root",
            lab_not_root,
            &["a lab needs root", "run it with sudo"],
        ),
        mistake(
            "newer store",
            host.prism("node --config newer.toml --node n0"),
            &[
                "the store newer: it has format 99",
                "reads 6; start the release that wrote it",
            ],
        ),
        mistake(
            "full disk",
            on_full,
            &["the store full/store: no space is left", "make room there"],
        ),
    ]
}

fn of_the_cluster(host: &Host) -> Vec<Mistake> {
    let etcd = "[cluster.etcd]\nendpoints = [\"http://127.0.0.1:1\"]\n[service]";
    host.config("etcd.toml", "[service]", etcd);
    let switch = "[switch]\ncontrol = \"10.77.0.2:7300\"\nkey_file = \"switch.key\"\n\
                  interfaces = [\"lo\"]\npin_dir = \"prism-no-such-switch\"\n";
    host.config("no_switch.toml", switch, "");
    vec![
        mistake(
            "unknown lab",
            host.lab("status --name nowhere"),
            &["lab nowhere is not up; start it with `prism-lab up --name nowhere`"],
        ),
        mistake(
            "etcd out of reach",
            host.prism("ctl drain n0 --config etcd.toml"),
            &[
                "etcd at http://127.0.0.1:1: Connection refused",
                "start it, or correct cluster.etcd",
            ],
        ),
        mistake(
            "no etcd",
            host.prism("ctl rebalance --config good.toml"),
            &["good.toml has no [cluster.etcd], which this command needs"],
        ),
        mistake(
            "no switch here",
            host.prism(&format!("ctl flows --pin {NO_PIN}")),
            &[
                "no switch at /sys/fs/bpf/",
                "run this on the host of the switch",
            ],
        ),
        mistake(
            "no switch at all",
            host.prism("switch --config no_switch.toml"),
            &["no_switch.toml has no section [switch]; add it"],
        ),
        mistake(
            "no such process",
            host.prism("ctl cluster --config good.toml --node n0"),
            &[
                "run/n0.sock does not answer: No such file",
                "start it, or run this on its host",
            ],
        ),
    ]
}

/// The fault of what a program says to a mistake.
fn judge(mistake: Mistake) -> Option<String> {
    let Mistake {
        name,
        mut command,
        said: parts,
    } = mistake;
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_said = |line: &&str| {
        let heads = ["prism: ", "prism-lab: ", "error: "];
        heads.iter().any(|head| line.starts_with(head))
    };
    let begins = stderr.lines().filter(is_said).count();
    // Clap prints its usage below its error.
    let from = stderr.lines().skip_while(|line| !is_said(line));
    let text: Vec<_> = from.take_while(|line| !line.is_empty()).collect();
    let [line] = text.as_slice() else {
        return Some(format!("{name}: not one line:\n{stderr}"));
    };
    let absent = parts.iter().find(|part| !line.contains(part.as_str()));
    let repeats = ["(os error", "hush"]
        .iter()
        .find(|part| line.matches(**part).count() > 1);
    let fault = match (output.status.success(), begins, absent, repeats) {
        (true, ..) => "succeeds".to_owned(),
        (_, 2.., ..) => "has several messages".to_owned(),
        (.., Some(part), _) => format!("lacks {part:?}"),
        (.., Some(part)) => format!("says {part:?} twice"),
        _ if line.contains("hush") => "tells a secret".to_owned(),
        _ => return None,
    };
    Some(format!("{name}: {fault}:\n{stderr}"))
}
