//! The promises to clients: they read what they wrote, and nobody misses an answered write.

use prism_nodes::is_root;
use rustix::process::{Signal, kill_process};

use crate::cluster::{Cluster, LARGE_BYTES, eventually};

#[test]
fn clients_read_what_they_wrote_while_their_connections_move() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("own");
    let clients: Vec<_> = (0..16).map(|n| (n, cluster.client())).collect();
    std::thread::scope(|threads| {
        for (n, mut client) in clients {
            threads.spawn(move || {
                let key = format!("key of {n}").into_bytes();
                for round in 0..60_usize {
                    // Readers of small values stay, and those of larger ones move.
                    let bytes = [20, 500, LARGE_BYTES, 50_000, 120_000][(n + round) % 5];
                    let mut value = vec![b'a' + (round % 26) as u8; bytes];
                    value.splice(..0, format!("{n} {round} ").into_bytes());
                    // Half of the commands do not wait for the answer of the one before.
                    client.send(&[b"SET", &key, &value]).unwrap();
                    if round % 2 == 0 {
                        assert_eq!(client.answer().unwrap(), b"OK");
                    }
                    client.send(&[b"GET", &key]).unwrap();
                    client.send(&[b"PING"]).unwrap();
                    if round % 2 == 1 {
                        assert_eq!(client.answer().unwrap(), b"OK");
                    }
                    assert!(client.answer().unwrap() == value, "{n} {round}");
                    assert_eq!(client.answer().unwrap(), b"PONG");
                }
            });
        }
    });
    let mut client = cluster.client();
    let moved: u64 = client.info("moved").unwrap().parse().unwrap();
    assert!(moved > 16 * 10, "{moved}");
}

#[test]
fn a_replica_that_is_cut_off_does_not_answer_from_the_past() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("cut");
    let mut writer = cluster.client();
    let mut reader = cluster.client_at_replica();
    let replica = reader.info("node").unwrap();
    assert_eq!(writer.call(&[b"SET", b"key", b"old"]).unwrap(), b"OK");
    assert_eq!(reader.call(&[b"GET", b"key"]).unwrap(), b"old");
    // A write by the replica leaves a stream on which the next one is sent.
    assert_eq!(reader.call(&[b"SET", b"by it", b"1"]).unwrap(), b"OK");
    cluster.set_reachable(&replica, false);
    let answer = String::from_utf8(reader.call(&[b"SET", b"by it", b"2"]).unwrap()).unwrap();
    assert!(answer.starts_with("ERR the outcome is unknown"), "{answer}");
    assert_eq!(writer.call(&[b"GET", b"by it"]).unwrap(), b"2");
    assert_eq!(writer.call(&[b"SET", b"key", b"new"]).unwrap(), b"OK");
    let answer = String::from_utf8(reader.call(&[b"GET", b"key"]).unwrap()).unwrap();
    assert!(answer.starts_with("TRYAGAIN"), "{answer}");
    cluster.set_reachable(&replica, true);
    eventually(&mut reader, "the client reads again", |reader| {
        let answer = reader.call(&[b"GET", b"key"]).unwrap();
        assert_ne!(answer, b"old");
        answer == b"new"
    });
}

#[test]
fn writes_go_on_without_a_replica_that_died() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("died");
    let mut client = cluster.client();
    kill_process(cluster.pid("r1"), Signal::KILL).unwrap();
    for n in 0..20 {
        let value = vec![b'a' + n; LARGE_BYTES];
        assert_eq!(client.call(&[b"SET", b"key", &value]).unwrap(), b"OK");
        assert_eq!(client.call(&[b"GET", b"key"]).unwrap(), value);
    }
    assert_eq!(client.info("node").unwrap(), "r2");
}

#[test]
fn replicas_forget_the_values_of_a_primary_that_starts_again() {
    if !is_root() {
        return;
    }
    let mut cluster = Cluster::start("again");
    let mut reader = cluster.client_at_replica();
    assert_eq!(reader.call(&[b"SET", b"key", b"old"]).unwrap(), b"OK");
    assert_eq!(reader.call(&[b"GET", b"key"]).unwrap(), b"old");
    cluster.restart("primary");
    eventually(&mut reader, "the client reads again", |reader| {
        let answer = reader.call(&[b"GET", b"key"]).unwrap();
        assert_ne!(answer, b"old");
        answer == b"nil"
    });
    let mut writer = cluster.client();
    assert_eq!(writer.call(&[b"SET", b"key", b"new"]).unwrap(), b"OK");
    assert_eq!(reader.call(&[b"GET", b"key"]).unwrap(), b"new");
}
