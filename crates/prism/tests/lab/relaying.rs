//! Short answers are relayed, long ones bring the connection to who has them. Needs
//! root; without it each test says so and passes, except under CI, where it fails.

use std::sync::Arc;
use std::time::Duration;

use prism_config::RelayUpTo;
use prism_lab::Rate;

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};
use crate::tls_support::{self, Version};

/// The threshold.
const UP_TO_BYTES: u32 = 4096;

/// What was relayed, moved, and asked for in vain so far.
fn counted(cluster: &Cluster) -> [u64; 3] {
    [
        cluster.sum("requests", "relayed"),
        cluster.sum("handoff", "exports_moved"),
        cluster.sum("requests", "asked_in_vain"),
    ]
}

/// Asserts that `work` adds so much to what was counted.
fn adds(cluster: &Cluster, more: [u64; 3], work: impl FnOnce()) {
    let before = counted(cluster);
    work();
    let now = counted(cluster);
    let added = [0, 1, 2].map(|n| now[n] - before[n]);
    assert_eq!(added, more, "relayed, moved, asked in vain");
}

/// A short and a long object on each of two backends.
fn objects(cluster: &Cluster) -> [[Object; 2]; 2] {
    let objects = ["be0", "be1"].map(|host| {
        let object = |label, len| Object::new(cluster.key_on(host, label), len);
        [
            object("short", UP_TO_BYTES.into()),
            object("long", u64::from(UP_TO_BYTES) + 1),
        ]
    });
    cluster.put_all(objects.as_flattened());
    objects
}

#[test]
fn an_answer_is_relayed_up_to_the_length_that_is_configured() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, long], [other_short, other_long]] = objects(&cluster);

    let mut client = cluster.connect();
    adds(&cluster, [2, 0, 0], || {
        client.get(&cluster, &short);
        client.get(&cluster, &other_short);
    });
    // Asked for once, and from then on known to be long.
    adds(&cluster, [1, 1, 1], || client.get(&cluster, &long));
    adds(&cluster, [0, 0, 0], || client.get(&cluster, &short));
    adds(&cluster, [1, 0, 0], || client.get(&cluster, &other_short));
    adds(&cluster, [1, 1, 1], || client.get(&cluster, &other_long));
    adds(&cluster, [1, 1, 1], || client.get(&cluster, &long));
    adds(&cluster, [0, 1, 0], || client.get(&cluster, &other_long));
    drop(client);

    // A short range of a long object, and an answer without an object.
    let mut client = cluster.connect();
    let range = Request::get(&other_long).header("range", "bytes=4000-4095");
    adds(&cluster, [1, 0, 0], || {
        let answer = client.call(&range.encode(&cluster));
        assert_eq!(answer.status(), 206, "{}", answer.text());
        other_long.check(4000, &answer.body);
    });
    let missing = cluster.request("GET", &format!("/{}", cluster.key_on("be1", "missing")));
    adds(&cluster, [1, 0, 0], || {
        let answer = client.call(&missing);
        assert_eq!(answer.status(), 404, "{}", answer.text());
    });

    // All at once: none is lost or out of turn.
    let mixed = [&short, &long, &other_short, &other_long, &short, &long];
    let requests = mixed.map(|object| Request::get(object).encode(&cluster));
    client.send(&requests.concat());
    for object in mixed {
        client.expect(object);
    }
    drop(client);
    cluster.assert_no_flows();
}

#[test]
fn what_becomes_long_or_short_is_noticed() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let object = Object::new(cluster.key_on("be1", "object"), 10);
    cluster.put_all(std::slice::from_ref(&object));
    let get = |object: &Object| cluster.connect().get(&cluster, object);
    adds(&cluster, [1, 0, 0], || get(&object));
    let long = object.other(100_000);
    cluster.put_all(std::slice::from_ref(&long));
    adds(&cluster, [1, 1, 1], || get(&long));
    adds(&cluster, [0, 1, 0], || get(&long));
}

#[test]
fn a_connection_lives_on_when_the_owner_of_a_short_object_is_dead() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, _], [other_short, _]] = objects(&cluster);
    let mut client = cluster.connect();
    client.get(&cluster, &short);
    cluster.lab.kill("be1").unwrap();
    let answer = client.call(&Request::get(&other_short).encode(&cluster));
    assert_eq!(answer.status(), 503, "{}", answer.text());
    client.get(&cluster, &short);
}

#[test]
fn with_several_replicas_another_one_answers() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| {
        spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES);
        spec.configure = Some(Box::new(|config| config.cluster.replicas = 2));
    });
    let objects = objects(&cluster);
    // What its primary has not told the others to be decided cannot be read without it.
    eventually("all is decided", Duration::from_secs(5), || {
        let open = |host| cluster.counter(host, "store", "open_changes");
        open("be0") + open("be1") == 0
    });
    cluster.lab.kill("be1").unwrap();
    let mut client = cluster.connect();
    for object in objects.as_flattened() {
        client.get(&cluster, object);
    }
}

#[test]
fn a_node_that_is_to_find_out_relays_what_is_tiny_and_nothing_large() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Auto);
    let tiny = Object::new(cluster.key_on("be0", "tiny"), 64);
    let large = Object::new(cluster.key_on("be1", "large"), 1 << 20);
    cluster.put_all(&[tiny.clone(), large.clone()]);
    let mut client = cluster.connect();
    adds(&cluster, [1_000, 0, 0], || {
        (0..1_000).for_each(|_| client.get(&cluster, &tiny));
    });
    // Trials are asked for in vain, and their connections move all the same.
    let before = counted(&cluster);
    for _ in 0..500 {
        client.get(&cluster, &large);
        client.get(&cluster, &tiny);
    }
    let now = counted(&cluster);
    assert_eq!(now[0] - before[0], 500 + now[2] - before[2], "relayed");
    assert_eq!(now[1] - before[1], 1, "it stays where what is large is");
    for host in ["fe0", "be0", "be1"] {
        let up_to = cluster.counter(host, "requests", "relay_up_to_bytes");
        assert!((512..=32_768).contains(&up_to), "{host}: {up_to}");
    }
}

#[test]
fn a_connection_moves_from_a_link_that_is_half_full() {
    let Some(_turn) = turn() else { return };
    // As slow as they come: the answer takes 37 ms of it, which nothing else here does.
    let slow = Rate::new(1_000_000).unwrap();
    let cluster = Cluster::up_with(2, |spec| {
        spec.relay_up_to = RelayUpTo::Auto;
        spec.link = Some(slow);
    });
    let object = Object::new(cluster.key_on("be1", "object"), 4_000);
    cluster.put_all(std::slice::from_ref(&object));
    let before = counted(&cluster);
    let mut client = cluster.connect();
    let request = Request::get(&object).encode(&cluster);
    client.send(&request.repeat(20));
    (0..20).for_each(|_| client.expect(&object));
    let now = counted(&cluster);
    assert!((1..20).contains(&(now[0] - before[0])), "relayed");
    assert_eq!(now[1] - before[1], 1, "it stays with the object's owner");
}

#[test]
fn over_https_it_is_the_same() {
    let Some(_turn) = turn() else { return };
    let cluster = tls_support::up(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, long], [other_short, other_long]] = objects(&cluster);
    for version in Version::ALL {
        let config = Arc::new(tls_support::config(&cluster, &[version.rustls()]));
        let mut client = tls_support::connect(&cluster, &config);
        adds(&cluster, [2, 0, 0], || {
            client.get(&cluster, &short);
            client.get(&cluster, &other_short);
        });
        for object in [&long, &other_short, &other_long, &short, &long] {
            client.get(&cluster, object);
        }
    }
}
