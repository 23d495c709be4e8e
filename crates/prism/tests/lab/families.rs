//! Clusters whose hosts have IPv6 alone, and clusters of which one backend lacks it.

use std::path::Path;
use std::time::Duration;

use prism_lab::{Families, Family};

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, eventually, tls, turn};

const LEN: u64 = 300_000;
/// The rounds of requests over one connection.
const ROUNDS: usize = 6;

/// Whether the connection is at `host`.
fn is_at(cluster: &Cluster, client: &Client, host: &str) -> bool {
    let address = cluster.address_like(host, client.local().ip());
    let known = cluster.flow_of(client.local());
    known.is_some_and(|known| known.owner.via == address)
}

/// A cluster of both families, without IPv6 at `be0`.
fn cluster_with_v4_alone_at_be0() -> Cluster {
    let cluster = Cluster::configured(3, |config| {
        let be0 = config.nodes.iter_mut().find(|node| node.name == "be0");
        let be0 = be0.unwrap();
        be0.address.v6 = None;
        be0.gateway.as_mut().unwrap().v6 = None;
    });
    let mut ip = cluster.lab.command("be0", "ip").unwrap();
    let flushed = ip.args(["-6", "address", "flush", "dev", "eth0"]).status();
    assert!(flushed.unwrap().success());
    cluster
}

#[test]
fn ipv6_clients_have_objects_of_a_backend_without_ipv6_relayed_and_the_others_handed_off() {
    let Some(_turn) = turn() else { return };
    let cluster = cluster_with_v4_alone_at_be0();
    let objects = cluster.one_on_each("lacking", |n| LEN + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::all(&cluster, "lacking");
    let count = |group, name| cluster.sum(group, name);
    let before = (
        count("handoff", "exports_moved"),
        count("requests", "relayed"),
    );
    let mut client = cluster.connect_over(Family::V6);
    for round in 0..ROUNDS {
        for (n, object) in objects.iter().enumerate() {
            client.get(&cluster, object);
            client.put(&cluster, object);
            // Requests for objects of be0 leave it where it is.
            let host = match (round, n) {
                (0, 0) => "fe0",
                (_, 0) => "be2",
                (_, 1) => "be1",
                _ => "be2",
            };
            // A frontend claims it later.
            let is_there = host == "fe0" || is_at(&cluster, &client, host);
            assert!(is_there, "object {n}, round {round}: not at {host}");
        }
    }
    drop(client);
    let moved = count("handoff", "exports_moved") - before.0;
    let relayed = count("requests", "relayed") - before.1;
    assert_eq!((moved, relayed), (2 * ROUNDS as u64, 2 * ROUNDS as u64));
    assert_eq!(count("handoff", "exports_kept"), 0, "a hand-off was tried");

    // Clients of IPv4 are at be0 as well.
    let mut client = cluster.connect_over(Family::V4);
    for (n, object) in objects.iter().enumerate() {
        client.get(&cluster, object);
        assert!(is_at(&cluster, &client, &format!("be{n}")), "not at be{n}");
    }
    drop(client);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

#[test]
fn a_cluster_without_ipv4_serves_and_goes_on_without_a_dead_backend() {
    let Some(_turn) = turn() else { return };
    let mut cluster = tls::up_configured(
        3,
        |spec| {
            spec.family = Families::V6;
            spec.frontends = 2;
            spec.etcd = true;
        },
        |config| config.cluster.replicas = 2,
    );
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-ipv4.pcap");
    let v4 = cluster.lab.capture("switch", &file, "ip").unwrap();
    let objects = cluster.one_on_each("six", |n| LEN + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "six");
    let moved = cluster.sum("handoff", "exports_moved");
    let config = std::sync::Arc::new(tls::config(&cluster, rustls::ALL_VERSIONS));
    let mut clients = [cluster.connect(), tls::connect(&cluster, &config)];
    for object in objects.iter().cycle().take(3 * ROUNDS) {
        for client in &mut clients {
            client.get(&cluster, object);
        }
    }
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    // Two of three backends have each object, so that few requests need another one.
    assert!(moved >= clients.len() as u64, "{moved} hand-offs");
    drop(clients);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);

    cluster.lab.kill("be0").unwrap();
    eventually("its objects are served", Duration::from_secs(20), || {
        let get = |object: &Object| {
            let request = Request::get(object).encode(&cluster);
            let answer = cluster.connect().try_call(&request);
            answer.is_ok_and(|answer| answer.status() == 200)
        };
        objects.iter().all(get)
    });
    assert_eq!(v4.stop().unwrap().captured, 0, "packets of IPv4");
}
