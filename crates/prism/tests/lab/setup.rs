//! `prism setup`: a cluster on hosts that it alone has set up, and hosts of which it leaves
//! nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prism_lab::Lab;
use prism_netns::NetNs;

use crate::support::{Cluster, eventually, say, turn};

mod hosts;

const PRISM: &str = env!("CARGO_BIN_EXE_prism");
/// The nodes and the switch of the cluster.
const HOSTS: [&str; 4] = ["switch", "fe0", "be0", "be1"];

/// The state of a host's kernel and files: the answers of commands.
type Snapshot = BTreeMap<String, String>;

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn snapshot(run: impl Fn(&str) -> Command, root: &Path) -> Snapshot {
    let root = root.to_str().unwrap();
    let lines = [
        "ip rule",
        "ip route show table all",
        "ip -4 address",
        "nft list ruleset",
        // The network namespace has parameters of its own.
        "sysctl -a -r ^net.ipv4",
        &format!("find {root} -type f -exec grep -r ^ {{}} +"),
        &format!("find {root}"),
    ];
    let said = lines.into_iter().map(|line| {
        let mut words = line.split(' ');
        let output = run(words.next().unwrap()).args(words).output().unwrap();
        // Routes of one metric come in any order.
        let mut said: Vec<_> = text(&output).lines().map(str::to_owned).collect();
        said.sort_unstable();
        (line.to_owned(), said.join("\n"))
    });
    said.collect()
}

/// Names the parts that differ.
fn assert_same(before: &Snapshot, after: &Snapshot) {
    for (line, before) in before {
        assert_eq!(before, &after[line], "{line}");
    }
}

/// Sets up a host that has nothing of Prism yet.
pub fn set_up(lab: &Lab, host: &str) {
    std::fs::create_dir_all(root(lab, host).join("etc/prism")).unwrap();
    setup(lab, host, "--apply");
}

/// The directory of the files of `host`.
fn root(lab: &Lab, host: &str) -> PathBuf {
    let state = lab.config_path().parent().unwrap().to_owned();
    state.join("hosts").join(host)
}

fn prism(lab: &Lab, host: &str, arguments: &str) -> Output {
    let mut command = lab.command(host, PRISM).unwrap();
    command.args(arguments.split(' ')).output().unwrap()
}

fn setup(lab: &Lab, host: &str, what: &str) -> String {
    let (config, root) = (lab.config_path(), root(lab, host));
    let (config, root) = (config.display(), root.display());
    let line = format!("setup --config {config} --node {host} {what} --root {root}");
    let output = prism(lab, host, &line);
    let said = text(&output);
    assert!(output.status.success(), "{line}: {said}");
    said
}

/// Whether `prism doctor` finds nothing missing, and what it says.
pub fn doctor(lab: &Lab, host: &str) -> (bool, String) {
    let config = lab.config_path();
    let line = format!("doctor --config {} --node {host}", config.display());
    let output = prism(lab, host, &line);
    (output.status.success(), text(&output))
}

fn snapshot_of(lab: &Lab, host: &str) -> Snapshot {
    snapshot(
        |program| lab.command(host, program).unwrap(),
        &root(lab, host),
    )
}

#[test]
fn hosts_that_only_setup_has_prepared_serve_and_hand_off_and_are_as_before_after_remove() {
    let Some(_turn) = turn() else { return };
    let before: Arc<Mutex<BTreeMap<&str, Snapshot>>> = Arc::default();
    let noted = before.clone();
    let cluster = Cluster::up_with(2, |spec| {
        spec.prepare = Some(Box::new(move |lab: &Lab| {
            for host in HOSTS {
                std::fs::create_dir_all(root(lab, host).join("etc/prism")).unwrap();
                noted.lock().unwrap().insert(host, snapshot_of(lab, host));
                let (is_well, said) = doctor(lab, host);
                assert!(!is_well, "{said}");
                assert!(said.contains(&format!("{} --apply", role(host))), "{said}");
                say(&setup(lab, host, "--apply"));
                assert_eq!(setup(lab, host, "--apply"), "this host was ready already\n");
            }
        }));
    });
    for host in HOSTS {
        let (is_well, said) = doctor(&cluster.lab, host);
        assert!(is_well, "{said}");
        let advice = ["rp_filter", "routes", "conntrack", "sysctl", "addresses"];
        for subject in advice {
            let bad = said.lines().find(|line| {
                line.contains(subject) && !line.starts_with("ok") && line.contains("  ")
            });
            assert_eq!(bad, None, "{said}");
        }
    }
    let objects = cluster.one_on_each("key", |_| 300_000);
    cluster.put_all(&objects);
    let mut client = cluster.connect();
    for object in objects.iter().cycle().take(10) {
        client.get(&cluster, object);
    }
    drop(client);
    assert!(cluster.sum("handoff", "exports_moved") >= 10);
    let before = before.lock().unwrap();
    for host in HOSTS {
        say(&setup(&cluster.lab, host, "--remove"));
        assert_same(&before[host], &snapshot_of(&cluster.lab, host));
        let (is_well, said) = doctor(&cluster.lab, host);
        assert!(!is_well, "{said}");
    }
}

fn role(host: &str) -> String {
    match host {
        "switch" => "--switch".into(),
        _ => format!("--node {host}"),
    }
}

/// A host in a network namespace of its own, with a directory in the place of `/`.
struct Host {
    netns: NetNs,
    root: tempfile::TempDir,
}

impl Host {
    /// A host on the network of `CONFIG`, whose address ends in `number`.
    fn new(number: u8) -> Self {
        let (netns, root) = (NetNs::anonymous().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(root.path().join("etc/prism")).unwrap();
        let host = Self { netns, root };
        host.write("etc/prism/prism.toml", hosts::CONFIG);
        host.connect(number);
        host
    }

    fn connect(&self, number: u8) {
        for line in [
            "ip link set lo up",
            "ip link add eth0 type veth peer name eth1",
            // Link-local addresses and their routes come a while after the link is up.
            "ip link set eth0 addrgenmode none",
            "ip link set eth1 addrgenmode none",
            &format!("ip address add 10.0.1.{number}/24 dev eth0"),
            "ip link set eth0 up",
            "ip link set eth1 up",
        ] {
            self.shell(line);
        }
        eventually("the links are up", Duration::from_secs(10), || {
            let routes = self.shell("ip route show table all");
            let multicast = ["eth0", "eth1"].map(|link| format!("multicast ff00::/8 dev {link} "));
            !routes.contains("linkdown") && multicast.iter().all(|route| routes.contains(route))
        });
    }

    /// The same host after a boot: its files, and a kernel that knows nothing.
    fn boot(&mut self, number: u8) {
        self.netns = NetNs::anonymous().unwrap();
        self.connect(number);
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    fn run(&self, mut command: Command) -> (bool, String) {
        let output = self.netns.run(|| command.output().unwrap()).unwrap();
        (output.status.success(), text(&output))
    }

    fn shell(&self, line: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        let (is_well, said) = self.run(command);
        assert!(is_well, "{line}: {said}");
        said
    }

    fn setup(&self, arguments: &str) -> (bool, String) {
        let mut command = Command::new(PRISM);
        command.arg("setup").args(arguments.split(' '));
        if !arguments.contains("--restore") {
            command.arg("--config");
            command.arg(self.path("etc/prism/prism.toml"));
        }
        command.arg("--root").arg(self.root.path());
        self.run(command)
    }

    /// The same, which succeeds.
    fn set_up(&self, arguments: &str) -> String {
        let (is_well, said) = self.setup(arguments);
        assert!(is_well, "{arguments}: {said}");
        said
    }

    fn snapshot(&self) -> Snapshot {
        let all = self
            .netns
            .run(|| snapshot(|program| Command::new(program), self.root.path()));
        all.unwrap()
    }
}
