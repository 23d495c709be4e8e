//! Changes of the configuration while the nodes run and a client keeps its connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prism_config::Config;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::client::Client;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

const PATIENCE: Duration = Duration::from_secs(20);
const LEN: u64 = 20_000;

/// Changes the configuration file that all processes read.
fn change(cluster: &Cluster, change: impl FnOnce(&mut Config)) {
    let path = cluster.lab.config_path();
    let mut config = Config::load(&path).unwrap();
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
