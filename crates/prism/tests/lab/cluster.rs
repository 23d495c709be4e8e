//! Clusters whose state is in a real etcd. A change there reaches every node at once. The
//! others go on without a backend that is gone, and a backend without a lease stops by itself
//! first.

mod cut_off;
mod etcd_copies;
mod lost;
mod members;
mod restored;
mod reverted;
mod untold;

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use prism_lab::{Lab, LabSpec};
use prism_signer::Signer;
use serde_json::Value;

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, say, turn};

/// The longest time until a change reaches every node.
const AT_ONCE: Duration = Duration::from_secs(2);
/// A lease lasts 5 s. After its end the others have to notice, and to agree.
const TAKEN_OUT: Duration = Duration::from_secs(9);

fn with_etcd(spec: &mut LabSpec) {
    spec.etcd = true;
    spec.configure = Some(Box::new(|config| {
        config.cluster.replicas = 3;
        config.cluster.min_replicas = Some(1);
    }));
}

fn up(frontends: usize) -> Cluster {
    Cluster::up_with(3, |spec| {
        spec.frontends = frontends;
        with_etcd(spec);
    })
}

/// `prism ctl` on a host that reaches etcd.
fn ctl(cluster: &Cluster, arguments: &[&str], input: &str) -> String {
    let output = run_ctl(cluster, arguments, input);
    assert!(output.status.success(), "ctl {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The message with which `ctl` refuses.
fn refused_ctl(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = run_ctl(cluster, arguments, "");
    assert!(!output.status.success(), "ctl {arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn run_ctl(cluster: &Cluster, arguments: &[&str], input: &str) -> Output {
    let mut child = start_ctl(cluster, arguments);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn start_ctl(cluster: &Cluster, arguments: &[&str]) -> Child {
    let config = cluster.lab.config_path();
    let mut command = cluster
        .lab
        .command("fe0", env!("CARGO_BIN_EXE_prism"))
        .unwrap();
    command
        .arg("ctl")
        .args(arguments)
        .arg("--config")
        .arg(config);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The cluster, as a node sees it.
fn seen_by(lab: &Lab, host: &str) -> Value {
    lab.ask(host, "cluster").unwrap()
}

fn epoch(lab: &Lab, host: &str) -> u64 {
    seen_by(lab, host)["epoch"].as_u64().unwrap()
}

fn status_of(seen: &Value, backend: &str) -> String {
    let backends = seen["backends"].as_array().unwrap();
    let found = backends.iter().find(|b| b["name"] == backend).unwrap();
    found["status"].as_str().unwrap().to_owned()
}

fn get(cluster: &Cluster, client: &mut Client, object: &Object) -> u16 {
    let answer = client.call(&Request::get(object).encode(cluster));
    if answer.status() == 200 {
        object.check(0, &answer.body);
    }
    answer.status()
}

fn put(cluster: &Cluster, object: &Object) -> u16 {
    let head = Request::put_signed(object).encode(cluster);
    let request = [&head, object.bytes()].concat();
    cluster.connect().call(&request).status()
}

/// Waits until requests on new connections get this answer, in turn, until both frontends must
/// have had some.
fn all_answered(cluster: &Cluster, status: u16) -> Duration {
    let begun = Instant::now();
    let list = || {
        cluster
            .connect()
            .call(&cluster.request("GET", "?max-keys=1"))
    };
    while !(0..16).all(|_| list().status() == status) {
        assert!(begun.elapsed() < AT_ONCE, "not {status} everywhere");
    }
    begun.elapsed()
}

#[test]
fn users_come_and_go_at_once_and_an_etcd_that_is_away_for_a_moment_is_not_missed() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(2);
    let before = epoch(&cluster.lab, "fe1");
    let other = || Signer::new("NEWUSER", "new secret", "us-east-1");
    let first = std::mem::replace(&mut cluster.signer, other());
    let mut open = cluster.connect();
    let refused = open.call(&cluster.request("GET", "?max-keys=1"));
    assert_eq!(refused.status(), 403);

    let add = ["key", "new", "NEWUSER", "--secret-stdin", "--admin"];
    ctl(&cluster, &add, "new-secret\n");
    cluster.signer = Signer::new("NEWUSER", "new-secret", "us-east-1");
    let took = all_answered(&cluster, 200);
    let answer = open.call(&cluster.request("GET", "?max-keys=1"));
    assert_eq!(answer.status(), 200);
    let listed = ctl(&cluster, &["key", "list"], "");
    let mut lines = listed
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert!(lines.any(|line| line == ["NEWUSER", "admin"]), "{listed}");
    let again = refused_ctl(&cluster, &["key", "new", "NEWUSER"]);
    assert!(again.contains("key rotate NEWUSER"), "{again}");
    let answer = open.call(&cluster.request("GET", "?max-keys=1"));
    assert_eq!(answer.status(), 200, "its secret is the same");
    ctl(&cluster, &["key", "delete", "NEWUSER"], "");
    let gone = all_answered(&cluster, 403);
    let answer = open.call(&cluster.request("GET", "?max-keys=1"));
    assert_eq!(answer.status(), 403);
    say(&format!(
        "a user came within {took:?} and went within {gone:?}"
    ));

    cluster.signer = first;
    let objects: Vec<Object> = (0..6).map(|n| Object::new(format!("o{n}"), 2000)).collect();
    cluster.put_all(&objects);
    // The backend is away for less than a lease, its own start included.
    cluster.lab.kill("etcd").unwrap();
    let begun = Instant::now();
    let mut answered = 0;
    while begun.elapsed() < Duration::from_millis(1200) {
        let mut client = cluster.connect();
        for object in &objects {
            assert_eq!(get(&cluster, &mut client, object), 200);
            assert_eq!(put(&cluster, object), 200);
            answered += 2;
        }
    }
    cluster.lab.restart("etcd").unwrap();
    for object in &objects {
        assert_eq!(put(&cluster, object), 200);
    }
    say(&format!("{answered} requests answered without etcd"));
    // Nodes hear of changes there as before; nothing has changed.
    cluster.signer = Signer::new("NEWUSER", "x", "us-east-1");
    ctl(&cluster, &add, "x\n");
    all_answered(&cluster, 200);
    assert_eq!(epoch(&cluster.lab, "fe1"), before);
}

/// Drops etcd's answers to `host`, or no longer does.
fn cut_off(cluster: &Cluster, host: &str, how: &str) {
    let address = cluster.lab.address(host).unwrap().to_string();
    let done = cluster
        .lab
        .command("etcd", "ip")
        .unwrap()
        .args(["route", how, "blackhole", &address])
        .status();
    assert!(done.unwrap().success());
}

/// Every object can be read and written.
fn assert_well(cluster: &Cluster, objects: &[Object]) {
    for object in objects {
        assert_eq!(put(cluster, object), 200);
        assert_eq!(get(cluster, &mut cluster.connect(), object), 200);
    }
    let answer = cluster.connect().call(&cluster.request("GET", "?prefix=o"));
    assert_eq!(answer.status(), 200);
    let listed = String::from_utf8(answer.body).unwrap();
    assert_eq!(listed.matches("<Key>").count(), objects.len(), "{listed}");
}

#[test]
fn who_is_dead_is_gone_on_without_and_who_is_cut_off_stops_first() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(1);
    let objects: Vec<Object> = (0..12)
        .map(|n| Object::new(format!("o{n}"), 2000))
        .collect();
    cluster.put_all(&objects);

    let before = epoch(&cluster.lab, "be0");
    cluster.lab.kill("be1").unwrap();
    let begun = Instant::now();
    let mut refused = 0;
    while put(&cluster, &objects[0]) != 200 {
        refused += 1;
        assert!(begun.elapsed() < TAKEN_OUT, "be1 is waited for");
        // Reads go on from the others.
        for object in &objects {
            assert_eq!(get(&cluster, &mut cluster.connect(), object), 200);
        }
    }
    let took = begun.elapsed();
    say(&format!(
        "dead: written without it after {took:?} ({refused} refusals)"
    ));
    assert!(refused > 0);
    let seen = seen_by(&cluster.lab, "fe0");
    assert_eq!(status_of(&seen, "be1"), "out");
    assert_eq!(seen["epoch"], before + 1);
    assert_well(&cluster, &objects);

    cut_off(&cluster, "be2", "add");
    let begun = Instant::now();
    let (mut stopped, mut refused) = (None, 0);
    let taken_out = loop {
        assert!(begun.elapsed() < TAKEN_OUT, "be2 is still in");
        if stopped.is_none() && seen_by(&cluster.lab, "be2")["lease_ms"] == 0 {
            stopped = Some(begun.elapsed());
        }
        if status_of(&seen_by(&cluster.lab, "be0"), "be2") == "out" {
            break begun.elapsed();
        }
        // Every answer is right, or none.
        for object in &objects {
            let status = get(&cluster, &mut cluster.connect(), object);
            assert!([200, 503].contains(&status), "{status}");
            refused += usize::from(status == 503);
        }
    };
    let stopped = stopped.expect("be2 serves on");
    assert!(stopped < taken_out && refused > 0, "{refused}");
    say(&format!(
        "cut off: stopped after {stopped:?} ({refused} refusals), taken out after {taken_out:?}"
    ));
    assert_eq!(epoch(&cluster.lab, "be0"), before + 2);
    eventually("the frontend knows", AT_ONCE, || {
        epoch(&cluster.lab, "fe0") == before + 2
    });
    assert_well(&cluster, &objects);

    // A backend that returns has missed changes, and the cluster knows that.
    cut_off(&cluster, "be2", "del");
    eventually("be2 is back", TAKEN_OUT, || {
        status_of(&seen_by(&cluster.lab, "be0"), "be2") != "out"
    });
    for object in &objects {
        assert_eq!(get(&cluster, &mut cluster.connect(), object), 200);
    }
}

#[test]
fn a_backend_that_joins_is_known_to_all_at_once() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(4, |spec| {
        spec.members = Some(3);
        with_etcd(spec);
    });
    let before = epoch(&cluster.lab, "fe0");
    // A node is healthy when it has leases of the switch, and so when the switch knows it.
    cluster.lab.restart("be3").unwrap();
    assert_eq!(epoch(&cluster.lab, "fe0"), before);
    eventually("be3 has a lease", AT_ONCE, || {
        seen_by(&cluster.lab, "be3")["lease_ms"].as_u64() > Some(0)
    });

    ctl(&cluster, &["rebalance"], "");
    let begun = Instant::now();
    for host in ["fe0", "be0", "be1", "be2", "be3"] {
        eventually(&format!("{host} knows"), AT_ONCE, || {
            let seen = seen_by(&cluster.lab, host);
            let backends = seen["backends"].as_array().unwrap();
            let found = backends.iter().find(|b| b["name"] == "be3");
            found.is_some_and(|b| b["in_reach"] == true)
        });
    }
    let took = begun.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
    say(&format!("all knew of be3 within {took:?}"));
}

#[test]
fn without_etcd_there_is_nothing_to_change_there() {
    let output = Command::new(env!("CARGO_BIN_EXE_prism"))
        .args(["ctl", "drain", "be0", "--config"])
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/lab/cluster/static.toml"
        ))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no [cluster.etcd]"),
        "{said}"
    );
}
