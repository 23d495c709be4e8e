//! The node port: peers that are no nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use prism_lab::Family;
use prism_proto::facts::{Facts, Form};
use prism_proto::node::{ALPN_HAND_OFF, ALPN_RELAY};
use prism_proto::relay::Preamble;

use super::{POOLED, bed_with_connection};
use crate::support::bed::Bed;
use crate::support::wire::{Wire, dialler, framed};
use crate::support::{eventually, turn};

/// Handshakes that one address may have open.
const MOST_OF_ONE_ADDRESS: u64 = 256;

/// Node `host` refuses the connection of `dial` before any frame.
fn refuses(bed: &Bed, host: &str, what: &str, dial: impl FnOnce(SocketAddr) + Send) {
    let before = bed.count(host, "peers_refused");
    let address = bed.node_port(host);
    // It comes from a node: the switch passes no node's TCP to the outside without a flow.
    bed.on("be1", || dial(address));
    eventually(what, Duration::from_secs(3), || {
        bed.count(host, "peers_refused") == before + 1
    });
}

#[test]
fn strangers_at_the_node_port_are_refused_and_counted() {
    let Some(_turn) = turn() else { return };
    let (bed, mut client, known) = bed_with_connection("hos-strange", Family::V6);
    let pki = bed.pki();
    let other = tempdir("other-authority");
    prism_pki::init(&other, &["fe0".into(), "be1".into()]).unwrap();
    refuses(&bed, "be0", "plain garbage", |address| {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let _ = tcp.read_to_end(&mut Vec::new());
    });
    let strangers = [
        ("no certificate", dialler(&pki, None, ALPN_HAND_OFF)),
        (
            "another authority",
            dialler(&pki, Some((&other, "be1")), ALPN_HAND_OFF),
        ),
        (
            "the node's own name",
            dialler(&pki, Some((&pki, "be0")), ALPN_HAND_OFF),
        ),
    ];
    for (what, config) in strangers {
        refuses(&bed, "be0", what, move |address| {
            // The refusal comes after our half of a TLS 1.3 handshake.
            if let Ok(mut wire) = Wire::dial(address, "be0", config) {
                let _ = wire.send(&framed(&[2; 9]));
                wire.assert_ended();
            }
        });
    }
    // Many silent connections: each costs a descriptor for five seconds.
    let (descriptors, before) = (bed.descriptors("be0"), bed.count("be0", "peers_refused"));
    let address = bed.node_port("be0");
    let silent: Vec<TcpStream> = bed.on("be1", || {
        (0..500)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect()
    });
    // The port refuses the handshakes beyond the bound at once, and not at their timeout.
    eventually(
        "those beyond the bound are refused",
        Duration::from_secs(2),
        || bed.count("be0", "peers_refused") >= before + 500 - MOST_OF_ONE_ADDRESS,
    );
    client.get(bed.object_of("be0"));
    client.get(bed.object_of("be1"));
    client.get(bed.object_of("be0"));
    eventually("the silent are sent away", Duration::from_secs(8), || {
        bed.count("be0", "peers_refused") == before + 500
    });
    drop(silent);
    eventually("their descriptors go", Duration::from_secs(3), || {
        bed.descriptors("be0") <= descriptors + POOLED
    });
    let flow = bed.flow_of(client.local()).unwrap();
    assert_eq!(flow.flow, known.flow);
    drop(client);
    bed.assert_drained();
}

#[test]
fn bad_preambles_end_the_connection_and_bad_heads_behind_good_ones_are_answered() {
    let Some(_turn) = turn() else { return };
    let (bed, mut client, _) = bed_with_connection("hos-preamble", Family::V4);
    let (pki, address) = (bed.pki(), bed.node_port("be0"));
    let malformed = || {
        let counters = bed.lab.admin("be0").unwrap();
        counters["requests"]["malformed"].as_u64().unwrap()
    };
    // be0's answer to the bytes, until it ends the connection.
    let answer = |bytes: &[u8]| {
        let config = dialler(&pki, Some((&pki, "be2")), ALPN_RELAY);
        let mut wire = bed
            .on("be2", || Wire::dial(address, "be0", config))
            .unwrap();
        wire.send(bytes).unwrap();
        let answer = wire.rest();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let mut good = Vec::new();
    let preamble = Preamble {
        alone: false,
        facts: Facts::of_anonymous(1),
        most_bytes: None,
    };
    preamble.encode(Form::Entries, &mut good);
    let request = b"GET /absent?location HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut refused = 0;
    for (at, change) in [(0, 1), (4, 1), (5, 0x80)] {
        let mut bad = [&good[..], request].concat();
        bad[at] ^= change;
        assert_eq!(answer(&bad), "", "byte {at}");
        refused += 1;
    }
    assert_eq!(answer(&[0; 64]), "");
    assert_eq!(malformed(), refused + 1);
    for head in [
        &b"\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    ] {
        let said = answer(&[&good[..], head].concat());
        assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
        assert!(said.contains("\r\nConnection: close\r\n"), "{said}");
    }
    // The unchanged preamble is understood. The word of a node counts that it is allowed.
    let said = answer(&[&good[..], request].concat());
    assert!(said.starts_with("HTTP/1.1 404 "), "{said}");
    client.get(bed.object_of("be0"));
}

/// A directory of this test program's own, empty.
fn tempdir(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}
