//! `prism ctl status` and `prism ctl top` on a whole cluster. The tests need root; without it each
//! test says so and passes, except under CI, where it fails.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

const PRISM: &str = env!("CARGO_BIN_EXE_prism");
/// The time until every node is seen as it is.
const SEEN: Duration = Duration::from_secs(15);

fn ctl(cluster: &Cluster, words: &[&str]) -> Output {
    let mut command = Command::new(PRISM);
    command
        .arg("ctl")
        .arg("--config")
        .arg(cluster.lab.config_path());
    command.args(words).output().unwrap()
}

/// The status of `prism ctl status --json`, and its document.
fn status(cluster: &Cluster) -> (Option<i32>, Value) {
    let output = ctl(cluster, &["status", "--json"]);
    let document = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), document)
}

#[test]
fn the_exit_status_tells_the_health() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(2);
    eventually("the cluster is healthy", SEEN, || {
        status(&cluster).0 == Some(0)
    });
    let (_, document) = status(&cluster);
    assert_eq!(document["health"], "healthy");
    assert_eq!(document["nodes"].as_array().unwrap().len(), 3);
    let shown = ctl(&cluster, &["status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    for part in [
        "healthy, as",
        "NODE",
        "be1",
        "BACKEND",
        "in-sync",
        "CERTIFICATE ENDS",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains('\x1b'), "{shown:?}");

    cluster.lab.stop("be1").unwrap();
    eventually("the cluster is degraded", SEEN, || {
        status(&cluster).0 == Some(1)
    });
    let shown = ctl(&cluster, &["status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("CRITICAL  be1 does not answer"), "{shown}");

    cluster.lab.stop("fe0").unwrap();
    eventually("the cluster is down", SEEN, || {
        status(&cluster).0 == Some(2)
    });
    cluster.lab.stop("be0").unwrap();
    let output = ctl(&cluster, &["status", "--node", "be0"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("does not answer"), "{said}");
}

#[test]
fn the_rates_are_those_of_the_load() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let object = Object::new("top".to_owned(), 1_000);
    cluster.put_all(std::slice::from_ref(&object));
    let get = Request::get(&object).encode(&cluster);
    let rates = std::thread::scope(|scope| {
        let top = scope.spawn(|| ctl(&cluster, &["top", "--count", "2", "--json"]));
        let mut client = cluster.connect();
        while !top.is_finished() {
            assert_eq!(client.call(&get).status(), 200);
            std::thread::sleep(Duration::from_millis(10));
        }
        top.join().unwrap()
    });
    assert!(rates.status.success(), "{rates:?}");
    let lines = String::from_utf8(rates.stdout).unwrap();
    let documents: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(documents.len(), 2);
    for document in &documents {
        let nodes = document["nodes"].as_array().unwrap().iter();
        let requests: f64 = nodes
            .map(|node| node["rates"]["requests"].as_f64().unwrap())
            .sum();
        assert!((20.0..110.0).contains(&requests), "{document}");
    }
    let table = ctl(&cluster, &["top", "--once"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("REQUESTS/s") && !table.contains('\x1b'),
        "{table:?}"
    );
}

#[test]
fn the_terminal_is_restored_at_the_end() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let config = cluster.lab.config_path();
    let top = format!(
        "timeout --foreground -s INT 2.5 {PRISM} ctl top --config {}",
        config.display()
    );
    let output = Command::new("script")
        .args(["-qec", &top, "/dev/null"])
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let (enter, leave) = ("\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l");
    assert!(
        shown.contains(enter) && shown.contains("REQUESTS/s"),
        "{shown:?}"
    );
    assert!(shown.trim_end().ends_with(leave), "{shown:?}");
}
