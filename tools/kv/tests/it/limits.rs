//! The bounds on clients: what they may send reaches replicas, and the rest is refused.

use prism_nodes::is_root;

use crate::cluster::Cluster;

/// The largest command.
const COMMAND_BYTES: usize = 128 << 10;

#[test]
fn replicas_answer_with_the_largest_values() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start("large");
    let mut many = vec![&b"key"[..]; 10_000];
    many[0] = b"DEL";
    let value = vec![b'v'; COMMAND_BYTES - 50];
    let mut client = cluster.client_at_replica();
    let replica = client.info("node").unwrap();
    // Both move back to the primary.
    assert_eq!(client.call(&many).unwrap(), b"0");
    assert_eq!(client.call(&[b"SET", b"large", &value]).unwrap(), b"OK");
    assert_eq!(client.info("node").unwrap(), "primary");
    for _ in 0..2 {
        assert_eq!(client.call(&[b"GET", b"large"]).unwrap(), value);
        assert_ne!(client.info("node").unwrap(), "primary");
    }
    assert_ne!(client.info("node").unwrap(), replica);
    let value = vec![b'v'; COMMAND_BYTES];
    let answer = cluster.client().call(&[b"SET", b"large", &value]).unwrap();
    assert!(answer.starts_with(b"ERR"), "{answer:?}");
}
