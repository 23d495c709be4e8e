//! The bounds on clients: what they may send reaches replicas, and the rest is refused.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use prism_nodes::is_root;

use crate::cluster::{Cluster, PLAN, eventually};

/// The largest number of arguments of a command.
const ARGUMENTS: usize = 1024;
/// The largest value.
const VALUE_BYTES: usize = 64 << 20;

#[test]
fn replicas_follow_the_largest_commands() {
    if !is_root() {
        return;
    }
    let mut cluster = Cluster::start("large");
    let (mut client, mut observer) = (cluster.client(), cluster.client());
    let mut many = vec![&b"key"[..]; ARGUMENTS];
    many[0] = b"DEL";
    let key = vec![b'k'; 127 << 10];
    let large: [&[u8]; 3] = [b"SET", &key, &[b'v'; 65_000]];
    for (write, answer) in [(&many[..], "0"), (&large[..], "OK")] {
        std::thread::scope(|threads| {
            let writing = threads.spawn(|| client.call(write).unwrap());
            while !writing.is_finished() {
                assert_eq!(observer.info("leases").unwrap(), "2");
            }
            assert_eq!(writing.join().unwrap(), answer.as_bytes());
        });
    }
    // The key is among the values that are copied.
    cluster.restart("r1");
    cluster.until_leased();
    many.push(b"key");
    let key = vec![b'k'; 129 << 10];
    let large: [&[u8]; 3] = [b"SET", &key, b"value"];
    for refused in [&many[..], &large[..]] {
        let answer = cluster.client().call(refused).unwrap();
        assert!(answer.starts_with(b"ERR"), "{answer:?}");
    }
}

#[test]
fn an_answer_is_no_larger_than_a_value() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("answer");
    let mut client = cluster.client();
    let value = vec![b'v'; VALUE_BYTES / 2];
    assert_eq!(client.call(&[b"SET", b"half", &value]).unwrap(), b"OK");
    let answer = client.call(&[b"MGET", b"half", b"half", b"half"]).unwrap();
    assert_eq!(answer, b"ERR the values take more than 64 MiB");
}

#[test]
fn values_that_arrive_are_bounded_together() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("arriving");
    let connect = || TcpStream::connect(PLAN.service());
    let sender = || {
        let mut sender = cluster.network.client.run(connect).unwrap().unwrap();
        let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE_BYTES}\r\n");
        sender.write_all(head.as_bytes()).unwrap();
        sender
    };
    let part = vec![b'v'; VALUE_BYTES - (1 << 20)];
    let mut senders: Vec<_> = (0..4).map(|_| sender()).collect();
    for sender in &mut senders {
        sender.write_all(&part).unwrap();
    }
    // The node reads all of them.
    std::thread::sleep(Duration::from_millis(500));
    let mut last = sender();
    // The node may close before it has read all.
    let _ = last.write_all(&part);
    let mut answer = [0; 4];
    last.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"-OOM");
    drop(senders);
    let value = vec![b'v'; VALUE_BYTES];
    eventually(&mut cluster.client(), "a value finds room again", |_| {
        let answer = cluster.client().call(&[b"SET", b"key", &value]);
        answer.is_ok_and(|answer| answer == b"OK")
    });
}
