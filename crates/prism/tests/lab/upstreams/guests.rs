//! Idle connections on which nobody was authenticated, as all of an upstream: one address has its
//! share of them, and the one that has waited longest makes room for another client.

use std::io::Read;
use std::time::Duration;

use prism_config::RelayUpTo;
use prism_http::Method;
use prism_lab::{Family, LabSpec};

use super::PATIENCE;
use super::behind::Behind;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::packets::{ClientResets, Watch};
use crate::support::turn;

/// The most connections of a node, and first those of one address.
const CONNECTIONS: u32 = 40;
const SHARE: u32 = 30;
/// Its first two answers are relayed, so the connection stays at the frontend.
const SHORT: &str = "/bytes?n=100";
/// The connection moves to the backend.
const LONG: &str = "/bytes?n=100000";
/// The time of a request that is under way.
const WORK_MS: u64 = 3_000;

/// One backend, so that it gets every connection that moves.
fn small(spec: &mut LabSpec) {
    spec.backends = 1;
    spec.relay_up_to = RelayUpTo::Bytes(4_096);
    let upstreams = spec.configure.take().unwrap();
    spec.configure = Some(Box::new(|config| {
        upstreams(config);
        config.limits.connections = CONNECTIONS;
        config.limits.unknown_per_address = Some(SHARE);
        config.limits.idle_timeout_s = 300;
    }));
}

fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes()
}

/// A request that has to be answered.
fn ask(client: &mut Client, path: &str) {
    let answer = client.call(&request(path));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(answer.keep_alive());
}

/// Connections of one family, and so of one address, each after a request.
fn guests(behind: &Behind, family: Family, count: u32, path: &str) -> Vec<Client> {
    let connect = || {
        let mut client = behind.cluster.connect_over(family);
        ask(&mut client, path);
        // The order of rests is by milliseconds.
        std::thread::sleep(Duration::from_millis(5));
        client
    };
    (0..count).map(|_| connect()).collect()
}

/// The places of the connections that the server has ended, each in order.
fn ended(clients: &[Client]) -> Vec<usize> {
    let has_ended = |client: &Client| {
        let mut stream = client.stream();
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0; 1]);
        stream.set_nonblocking(false).unwrap();
        match read {
            Ok(0) => true,
            Ok(_) => panic!("an answer to nothing"),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                false
            }
        }
    };
    let all = clients.iter().enumerate();
    let ended = all.filter(|(_, client)| has_ended(client));
    ended.map(|(place, _)| place).collect()
}

fn evicted(behind: &Behind, host: &str) -> u64 {
    behind.cluster.counter(host, "handoff", "guests_evicted")
}

/// Waits until the nodes hold no connection.
fn await_none(behind: &Behind) {
    eventually("all connections have ended", PATIENCE, || {
        let open = |host: &String| behind.cluster.counter(host, "handoff", "connections_open");
        behind.cluster.nodes().iter().map(open).sum::<u64>() == 0
    });
}

#[test]
fn idle_connections_of_one_address_shut_no_other_one_out() {
    let Some(_turn) = turn() else { return };
    let behind = Behind::up(small, "");
    await_none(&behind);
    let watch = Watch::events(&behind.cluster, "guests");
    an_address_has_its_share(&behind);
    await_none(&behind);
    behind
        .cluster
        .lab
        .reload(|config| config.limits.unknown_per_address = Some(CONNECTIONS))
        .unwrap();
    let of_frontend = Place {
        host: "fe0",
        path: SHORT,
    };
    let of_backend = Place {
        host: "be0",
        path: LONG,
    };
    for place in [of_frontend, of_backend] {
        the_longest_wait_gives_way(&behind, &place);
        await_none(&behind);
    }
    watch.finish(ClientResets::AtItsEnd);
}

fn an_address_has_its_share(behind: &Behind) {
    let over_limit = || {
        behind
            .cluster
            .counter("fe0", "handoff", "address_over_limit")
    };
    let mut held = guests(behind, Family::V4, SHARE, SHORT);
    assert_eq!(over_limit(), 0);
    for n in 1..=3 {
        let mut refused = behind.cluster.connect_over(Family::V4);
        assert!(!refused.fill().unwrap(), "bytes for nothing");
        assert_eq!(over_limit(), n);
    }
    // Another address has its own share.
    let others = guests(behind, Family::V6, CONNECTIONS - SHARE, SHORT);
    assert_eq!((ended(&held), ended(&others)), (vec![], vec![]));
    for client in &mut held {
        ask(client, SHORT);
    }
    assert_eq!(evicted(behind, "fe0"), 0);
    // One that ends leaves its place.
    held.pop();
    let open = || behind.cluster.counter("fe0", "handoff", "connections_open");
    eventually("one has ended", PATIENCE, || {
        open() < u64::from(CONNECTIONS)
    });
    held.extend(guests(behind, Family::V4, 1, SHORT));
    assert_eq!(over_limit(), 3);
}

/// A node that is full, and the requests by which its clients are there.
struct Place {
    host: &'static str,
    path: &'static str,
}

fn the_longest_wait_gives_way(behind: &Behind, &Place { host, path }: &Place) {
    let before = evicted(behind, host);
    let mut held = guests(behind, Family::V4, CONNECTIONS, path);
    let open = || behind.cluster.counter(host, "handoff", "connections_open");
    eventually("the node is full", PATIENCE, || {
        open() == u64::from(CONNECTIONS)
    });
    assert_eq!((evicted(behind, host), ended(&held)), (before, vec![]));
    // The first has waited longest. It asks again, and the third has a request under way.
    ask(&mut held[0], path);
    held[2].send(&request(&format!("{path}&ms={WORK_MS}")));
    std::thread::sleep(Duration::from_millis(200));
    let mut others = Vec::new();
    for gone in [vec![1], vec![1, 3], vec![1, 3, 4]] {
        others.extend(guests(behind, Family::V6, 1, path));
        eventually("one gives way", PATIENCE, || {
            evicted(behind, host) == before + gone.len() as u64
        });
        eventually("it ends", PATIENCE, || ended_but(&held, 2) == gone);
    }
    let answer = held[2].answer(&Method::GET);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    // Guests that stay are served, and so are the others.
    ask(&mut held[0], path);
    ask(&mut held[CONNECTIONS as usize - 1], path);
    for other in &mut others {
        ask(other, path);
    }
}

/// As `ended`, without the connection at `place`.
fn ended_but(clients: &[Client], place: usize) -> Vec<usize> {
    let (before, from) = clients.split_at(place);
    let behind = ended(&from[1..]).into_iter().map(|n| n + place + 1);
    ended(before).into_iter().chain(behind).collect()
}
