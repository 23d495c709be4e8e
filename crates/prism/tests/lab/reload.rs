//! Changes of the configuration while the nodes run and a client keeps its connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prism_config::{ConfigFile, RelayUpTo};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::client::Client;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

const PATIENCE: Duration = Duration::from_secs(20);
const LEN: u64 = 20_000;

/// Changes the configuration file that all processes read.
fn change(cluster: &Cluster, change: impl FnOnce(&mut ConfigFile)) {
    let path = cluster.lab.config_path();
    let mut config = ConfigFile::load(&path).unwrap();
    change(&mut config);
    fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
}

/// Sends SIGHUP to the process of a host.
fn hang_up(cluster: &Cluster, host: &str) {
    let pid = cluster.lab.pid(host).unwrap().cast_signed();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::HUP).unwrap();
}

fn hang_up_all(cluster: &Cluster) {
    for host in cluster.nodes() {
        hang_up(cluster, &host);
    }
}

/// The log of a host's process.
fn log_of(cluster: &Cluster, host: &str) -> String {
    fs::read_to_string(cluster.lab.log_path(host)).unwrap()
}

fn lines_in(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// One GET of each object over the open connection.
fn get_all(cluster: &Cluster, client: &mut Client, objects: &[Object]) {
    for object in objects {
        client.get(cluster, object);
    }
}

#[test]
fn the_access_log_goes_on_off_and_to_another_file() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let cluster = Cluster::up(2);
    let objects = cluster.one_on_each("logged", |_| LEN);
    cluster.put_all(&objects);
    let mut client = cluster.connect();
    get_all(&cluster, &mut client, &objects);
    let to = |path: &Path| {
        change(&cluster, |config| config.log.access = path.to_owned());
        hang_up_all(&cluster);
    };
    let mut writes_to = |path: &Path| {
        eventually("requests stand in the log", PATIENCE, || {
            let before = lines_in(path);
            get_all(&cluster, &mut client, &objects);
            std::thread::sleep(Duration::from_millis(500));
            lines_in(path) == before + objects.len()
        });
    };
    let (first, second) = (file("first"), file("second"));
    to(&first);
    writes_to(&first);
    to(&second);
    writes_to(&second);
    let of_first = lines_in(&first);
    to(Path::new("stdout"));
    // The lab writes standard output and standard error of a node to one file.
    let shown = || -> usize {
        let logs = cluster.backends().into_iter();
        let logs = logs.map(|host| log_of(&cluster, &host));
        logs.map(|log| log.matches("\"operation\":\"GetObject\"").count())
            .sum()
    };
    eventually("requests stand in standard output", PATIENCE, || {
        cluster.connect().get(&cluster, &objects[0]);
        std::thread::sleep(Duration::from_millis(500));
        shown() > 0
    });
    to(&PathBuf::new());
    eventually("no request is written any more", PATIENCE, || {
        let before = shown();
        cluster.connect().get(&cluster, &objects[0]);
        std::thread::sleep(Duration::from_millis(500));
        shown() == before
    });
    assert_eq!(lines_in(&first), of_first);
    to(&first);
    writes_to(&first);
}

/// `prism` on a host of the lab with these arguments: whether it succeeded, and its output.
fn prism(cluster: &Cluster, host: &str, args: &[&str]) -> (bool, String) {
    let mut command = cluster
        .lab
        .command(host, env!("CARGO_BIN_EXE_prism"))
        .unwrap();
    let done = command.args(args).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (
        done.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// `prism ctl reload` for a node of the lab.
fn ctl_reload(cluster: &Cluster, node: &str, more: &[&str]) -> (bool, String) {
    let config = cluster.lab.config_path();
    let config = config.to_str().unwrap();
    let args = ["ctl", "reload", "--node", node, "--config", config];
    prism(cluster, node, &[&args, more].concat())
}

/// Ends the threads that look at it, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads objects over one connection until it is over. Returns the number of rounds.
fn read_on(cluster: &Cluster, objects: &[Object], is_over: &AtomicBool) -> usize {
    let mut client = cluster.connect();
    let mut rounds = 0;
    while !is_over.load(Ordering::Relaxed) {
        get_all(cluster, &mut client, objects);
        rounds += 1;
    }
    rounds
}

#[test]
fn a_reload_changes_what_it_can_and_names_the_rest_while_a_client_goes_on() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let cluster = Cluster::up(2);
    let objects = cluster.one_on_each("read", |_| LEN);
    cluster.put_all(&objects);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let reader = scope.spawn(|| read_on(&cluster, &objects, &is_over));
        let path = audit.clone();
        change(&cluster, move |config| {
            config.log.level = "prism=trace,info".into();
            config.log.audit = path;
            config.service.first_mut().relay_up_to = RelayUpTo::Bytes(1 << 20);
            config.limits.connections = 5_000;
            config.limits.head_bytes += 1;
            config.store.quota_bytes = 1 << 40;
            config.nodes.iter_mut().for_each(|node| node.workers = 7);
        });
        let (is_done, said) = ctl_reload(&cluster, "fe0", &[]);
        assert!(is_done, "{said}");
        for line in [
            "fe0: changed now: service.relay_up_to: 0 -> 1048576",
            "fe0: changed now: limits.connections: 10000 -> 5000",
            "fe0: needs a restart: limits.head_bytes: 16384 -> 16385",
            "fe0: needs a restart: node.fe0.workers: ",
            "fe0: of other processes: node.be0.workers: ",
            // It was 0.
            "fe0: needs a restart: store.quota_bytes: 0 -> ",
        ] {
            assert!(said.contains(line), "{line:?} is not in\n{said}");
        }
        for host in cluster.backends() {
            hang_up(&cluster, &host);
        }
        for host in cluster.nodes() {
            eventually("the bound is the new one", PATIENCE, || {
                cluster.counter(&host, "requests", "relay_up_to_bytes") == 1 << 20
            });
        }
        // The changed level and the diff of SIGHUP.
        let log = log_of(&cluster, "be0");
        assert!(log.contains("service.relay_up_to: 0 -> 1048576"), "{log}");
        assert!(
            log.contains("a change of the configuration needs a restart"),
            "{log}"
        );
        // Requests are relayed from now on.
        let moved = cluster.sum("handoff", "exports_moved");
        let mut client = cluster.connect();
        get_all(&cluster, &mut client, &objects);
        let mut client = cluster.connect();
        get_all(&cluster, &mut client, &objects);
        drop(client);
        drop(over);
        assert!(reader.join().unwrap() > 0);
        assert!(cluster.sum("handoff", "exports_moved") <= moved + 2);
    });
    // The same file again: only a restart is missing.
    let (is_done, said) = ctl_reload(&cluster, "fe0", &["--json"]);
    assert!(is_done, "{said}");
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told[0]["now"], Value::Array(Vec::new()), "{said}");
    assert_eq!(told[0]["restart"].as_array().unwrap().len(), 3, "{said}");
    let audited = fs::read_to_string(&audit).unwrap();
    let by = |who: &str| {
        let mut lines = audited.lines();
        lines.any(|line| line.contains(who) && line.contains("\"action\":\"reload\""))
    };
    assert!(by("\"uid\":0") && by("\"signal\":\"SIGHUP\""), "{audited}");
}

#[test]
fn a_file_with_a_fault_leaves_all_as_it_was_and_is_named_with_the_line() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access");
    let to = log.clone();
    let cluster = Cluster::configured(2, move |config| config.log.access = to);
    let objects = cluster.one_on_each("read", |_| LEN);
    cluster.put_all(&objects);
    let mut client = cluster.connect();
    get_all(&cluster, &mut client, &objects);
    let path = cluster.lab.config_path();
    let good = fs::read_to_string(&path).unwrap();
    let bad = good.replace("level = \"", "level = \"loud");
    let line = 1 + bad.lines().position(|line| line.contains("loud")).unwrap();
    fs::write(&path, format!("{bad}\n")).unwrap();
    let (is_done, said) = ctl_reload(&cluster, "fe0", &[]);
    let fault = format!("prism.toml:{line}: log.level: ");
    assert!(!is_done && said.contains(&fault), "{said}");
    // Its file was renamed, which the fault of the other file does not hinder.
    let old = directory.path().join("access.1");
    fs::rename(&log, &old).unwrap();
    hang_up_all(&cluster);
    for host in cluster.nodes() {
        eventually("the log names the fault", PATIENCE, || {
            let log = log_of(&cluster, &host);
            log.contains(&fault) && log.contains(path.to_str().unwrap())
        });
    }
    get_all(&cluster, &mut client, &objects);
    eventually("the access log goes on", PATIENCE, || lines_in(&log) > 0);

    // A fault of the machine, not of the file.
    fs::write(&path, good).unwrap();
    change(&cluster, |config| {
        config.log.access = "/nowhere/access".into();
        config.limits.idle_timeout_s += 1;
    });
    let (is_done, said) = ctl_reload(&cluster, "fe0", &[]);
    assert!(!is_done, "{said}");
    assert!(
        said.contains("fe0: changed now: limits.idle_timeout_s"),
        "{said}"
    );
    assert!(said.contains("fe0: fault: log.access: "), "{said}");
    get_all(&cluster, &mut client, &objects);
}

#[test]
fn the_agent_of_the_switch_follows_its_file() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    change(&cluster, |config| {
        config.log.level = "debug".into();
        config.admin.scrapers.push([10, 255, 255, 1].into());
        config.switch.as_mut().unwrap().max_flows *= 2;
    });
    hang_up(&cluster, "switch");
    eventually("the agent has the change", PATIENCE, || {
        let log = log_of(&cluster, "switch");
        log.contains("change=admin.scrapers: added \"10.255.255.1\"")
            && log.contains("the switch has the present nodes")
            && log.contains("a change of the configuration needs a restart")
    });
    let objects = cluster.one_on_each("read", |_| LEN);
    cluster.put_all(&objects);
}

#[test]
fn check_prints_the_changes_between_two_files() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    let text = include_str!("../../../../packaging/prism.toml");
    fs::write(&old, text).unwrap();
    let check = |args: &[&Path]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prism"));
        let done = command.arg("check").arg("--diff").args(args).output();
        let done = done.unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(said).unwrap())
    };
    fs::write(&new, text).unwrap();
    assert_eq!(check(&[&old, &new]), (Some(0), "no changes\n".into()));
    let changed = format!("{text}\n[log]\nlevel = \"debug\"\n[trace]\notlp = \"http://h:1/\"\n");
    fs::write(&new, changed).unwrap();
    let expected = "log.level: \"info\" -> \"debug\" (reload of the nodes and the switch agent)\n\
                    trace.otlp: \"\" -> \"http://h:1/\" (restart of the nodes)\n";
    assert_eq!(check(&[&old, &new]), (Some(0), expected.into()));
    fs::write(&new, format!("{text}\n[log]\nlevel = \"loud\"\n")).unwrap();
    let (status, said) = check(&[&old, &new]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("log.level: "), "{said}");
}
