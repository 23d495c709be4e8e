//! Processes that are replaced by a successor on the same host, while clients read and write
//! without repeating a request.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prism_lab::LabSpec;

use crate::leaving::{self, Caller, Load};
use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, Stop, eventually, output, say, turn};

mod fake;
mod releases;
mod stopping;

/// The longest time until the process that was replaced has ended.
const ENDED_IN: Duration = Duration::from_secs(30);
/// A socket that closes while its process ends is released by nobody. The switch ages its flow out
/// as that of a node that has left, after 65 s.
const AGED_IN: Duration = Duration::from_secs(100);
/// Take-overs of each host.
const ROUNDS: usize = 3;

/// One frontend, so no other node can take its connections.
fn up(backends: usize) -> Cluster {
    Cluster::up_with(backends, |spec: &mut LabSpec| spec.tls = true)
}

fn prism(cluster: &Cluster, host: &str) -> Command {
    let program = env!("CARGO_BIN_EXE_prism");
    let mut command = cluster.lab.command(host, program).unwrap();
    command.stdin(Stdio::null());
    command
}

/// The number of the process that answers for `host`.
fn pid(cluster: &Cluster, host: &str) -> u64 {
    cluster.lab.admin(host).unwrap()["pid"].as_u64().unwrap()
}

fn has_ended(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// Replaces the process of `host`, and waits until the former one has ended.
pub fn take_over(cluster: &Cluster, host: &str) {
    let (begun, former) = (Instant::now(), pid(cluster, host));
    let mut ctl = prism(cluster, host);
    ctl.args(["ctl", "take-over", host, "--config"]);
    output(ctl.arg(cluster.lab.config_path()));
    let taken = begun.elapsed();
    eventually("the former process ends", ENDED_IN, || has_ended(former));
    assert_ne!(pid(cluster, host), former);
    say(&format!(
        "{host}: taken over in {taken:?}, alone after {:?}",
        begun.elapsed()
    ));
}

/// Runs `work` while clients of all kinds read and write. No request may fail.
fn under_load(cluster: &Cluster, label: &str, work: impl FnOnce(&Load)) {
    let watch = Watch::events(cluster, label);
    let (caller, load) = (Caller::of(cluster), Load::new());
    std::thread::scope(|scope| {
        let stop = Stop(&load.stop);
        for n in 0..8 {
            let (load, caller) = (&load, &caller);
            scope.spawn(move || load.run(caller, n, n % 2 == 0, n % 4 < 2));
        }
        std::thread::sleep(Duration::from_millis(500));
        work(&load);
        std::thread::sleep(Duration::from_millis(500));
        drop(stop);
    });
    load.assert_well();
    // The tables of a switch of another release cannot be read.
    if cluster.try_view().is_ok() {
        eventually("no flow is left", AGED_IN, || {
            cluster.flow_ports().is_empty()
        });
    }
    watch.finish(ClientResets::None);
}

fn replace(cluster: &Cluster, load: &Load, hosts: &[&str]) {
    for round in 0..ROUNDS {
        for host in hosts {
            *load.restarting.lock().unwrap() = format!("{host}, round {round}");
            take_over(cluster, host);
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

#[test]
fn the_only_frontend_is_replaced_under_load_without_a_failed_request() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    cluster.assert_no_flows();
    under_load(&cluster, "successor-fe", |load| {
        replace(&cluster, load, &["fe0"]);
    });
}

#[test]
fn backends_are_replaced_under_load_without_a_failed_request() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    cluster.assert_no_flows();
    under_load(&cluster, "successor-be", |load| {
        replace(&cluster, load, &["be0", "be1", "fe0"]);
    });
}

/// The agreed state of the cluster does not change: the lease goes on, and backends stay in sync.
#[test]
fn a_cluster_with_replicas_and_etcd_does_not_notice_a_take_over() {
    let Some(_turn) = turn() else { return };
    let cluster = leaving::up(1, true);
    let is_well = || leaving::all_in_sync(&cluster);
    eventually("all are in sync", leaving::IN_SYNC, is_well);
    let epoch = || cluster.lab.ask("fe0", "cluster").unwrap()["epoch"].clone();
    let before = epoch();
    under_load(&cluster, "successor-replicas", |load| {
        replace(&cluster, load, &["be0", "be1", "be2", "fe0"]);
    });
    assert!(is_well());
    assert_eq!(epoch(), before);
}

/// Clients whose connections wait at each node.
fn waiting(cluster: &Cluster, objects: &[Object]) -> Vec<Client> {
    let clients = objects.iter().map(|object| {
        let mut client = cluster.connect();
        client.get(cluster, object);
        client
    });
    clients.collect()
}

#[test]
fn connections_that_wait_pass_with_their_flows() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    let objects = cluster.one_on_each("passed", |_| 20_000);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::all(&cluster, "successor-waiting");
    let mut clients = waiting(&cluster, &objects);
    // These have sent nothing yet.
    clients.extend((0..4).map(|_| cluster.connect()));
    std::thread::sleep(Duration::from_millis(300));
    for host in ["be0", "fe0", "be1", "fe0"] {
        take_over(&cluster, host);
        for (client, object) in clients.iter_mut().zip(objects.iter().cycle()) {
            client.get(&cluster, object);
        }
    }
    assert_eq!(cluster.sum("handoff", "exports_lost"), 0);
    drop(clients);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// Starts a successor of `host` that reads `config`.
fn start(cluster: &Cluster, host: &str, config: &Path) -> Child {
    let mut command = prism(cluster, host);
    command.args(["node", "--take-over", "--node", host, "--config"]);
    command
        .arg(config)
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_successor_that_fails_leaves_the_node_as_it_was() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    cluster.assert_no_flows();
    let good = cluster.lab.config_path();
    let bad = good.with_file_name("bad.toml");
    let text = std::fs::read_to_string(&good).unwrap();
    std::fs::write(&bad, text.replace("key_file", "key_flie")).unwrap();
    let object = Object::new(cluster.key_on("be0", "waits"), 20_000);
    cluster.put_all(std::slice::from_ref(&object));
    let mut client = cluster.connect();
    client.get(&cluster, &object);
    under_load(&cluster, "successor-fails", |_| {
        for host in ["fe0", "be0"] {
            let former = pid(&cluster, host);
            let failed = start(&cluster, host, &bad).wait_with_output().unwrap();
            assert!(!failed.status.success());
            // Killed before it can be ready.
            for wait_ms in [1, 4] {
                let mut killed = start(&cluster, host, &good);
                std::thread::sleep(Duration::from_millis(wait_ms));
                killed.kill().unwrap();
                killed.wait().unwrap();
            }
            for step in fake::Step::ALL {
                let socket = cluster.lab.config_path();
                let config = prism_config::ConfigFile::load(&socket).unwrap();
                // It waits at the frontend, so that there is a connection to pass.
                let _idle = cluster.connect();
                drop(fake::take_over_until(
                    step,
                    &config.parts()[0].admin_socket(host),
                ));
                eventually("it serves again", ENDED_IN, || {
                    cluster.lab.admin(host).is_ok()
                });
            }
            assert_eq!(pid(&cluster, host), former);
            client.get(&cluster, &object);
            take_over(&cluster, host);
        }
        client.get(&cluster, &object);
        drop(client);
    });
}

#[test]
fn a_node_says_why_it_cannot_be_taken_over() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    let told = cluster.lab.ask("fe0", "take-over 250 251").unwrap();
    let told = told["error"].as_str().unwrap().to_owned();
    assert!(
        told.contains("[2, 1]") && told.contains("[250, 251]"),
        "{told}"
    );
    let object = Object::new(cluster.key_on("be0", "after"), 1_000);
    cluster.put_all(std::slice::from_ref(&object));
    let status = cluster
        .connect()
        .call(&Request::get(&object).encode(&cluster));
    assert_eq!(status.status(), 200);
}
