//! Targets that refuse a connection whose state they have. The source builds it again, and
//! relays its request.

use std::io::Write;
use std::time::Duration;

use prism_http::Method;

use super::OBJECTS;
use crate::support::bed::{Bed, NumberedClient, Way, content, path};
use crate::support::{eventually, say, turn};

/// Connections that a node may have.
const LIMIT: u32 = 3;
/// Hand-offs in a row that one connection has refused.
const ROUNDS: usize = 20;

/// The counts of refusals at the source `host` and at `be0`.
fn refused(bed: &Bed, host: &str) -> [u64; 2] {
    [
        bed.count(host, "kept_target_refused"),
        bed.count("be0", "imports_refused"),
    ]
}

/// Checks that `be0` refuses every request of `work`, which returns their number, and that
/// `host` keeps the connection and answers.
fn stays(
    bed: &Bed,
    host: &str,
    client: &mut NumberedClient,
    work: impl FnOnce(&mut NumberedClient) -> usize,
) {
    let before = refused(bed, host);
    let requests = work(client) as u64;
    assert_eq!(
        refused(bed, host),
        before.map(|count| count + requests),
        "at {host}"
    );
    if let Some(known) = bed.flow_of(client.local()) {
        let address = bed.address_like(host, client.local().ip());
        assert_eq!(known.owner.via, address, "{known:?}");
    }
}

/// Requests one by one.
fn one_by_one(bed: &Bed, client: &mut NumberedClient) -> usize {
    let n = bed.object_of("be0");
    (0..ROUNDS).for_each(|_| client.get(n));
    ROUNDS
}

/// Requests that come together. All but the first move unread with the connection.
fn pipelined(bed: &Bed, client: &mut NumberedClient) -> usize {
    let n = bed.object_of("be0");
    let requests: Vec<_> = (0..ROUNDS)
        .map(|_| client.signed("GET", &path(n), b""))
        .collect();
    client.stream.write_all(&requests.concat()).unwrap();
    for _ in 0..ROUNDS {
        let answer = client.answer(&Method::GET);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(answer.body == content(n), "other bytes");
    }
    ROUNDS
}

/// Requests that come in two pieces each, the second during the hand-off of the request before.
fn in_pieces(bed: &Bed, client: &mut NumberedClient) -> usize {
    let n = bed.object_of("be0");
    let requests: Vec<_> = (0..ROUNDS)
        .map(|_| client.signed("GET", &path(n), b""))
        .collect();
    let half = requests[0].len() / 2;
    let bytes = requests.concat();
    for piece in [&bytes[..half], &bytes[half..3 * half]] {
        client.stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    for piece in bytes[3 * half..].chunks(half) {
        client.stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
    for _ in 0..ROUNDS {
        let answer = client.answer(&Method::GET);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(answer.body == content(n), "other bytes");
    }
    ROUNDS
}

/// Bodies that are partly in the socket when it is saved.
fn uploads(bed: &Bed, client: &mut NumberedClient) -> usize {
    let new = (OBJECTS..).find(|n| bed.owner_of(*n) == "be0").unwrap();
    let body = content(new).repeat(1 << 17 >> 10);
    for _ in 0..5 {
        let put = client.request("PUT", &path(new), &body).unwrap();
        assert_eq!(put.status(), 200, "{}", put.text());
        let got = client.request("GET", &path(new), b"").unwrap();
        assert_eq!(got.status(), 200, "{}", got.text());
        assert!(got.body == body, "other bytes");
    }
    10
}

#[test]
fn a_connection_that_a_full_target_refuses_again_and_again_is_none_the_worse() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up_with("imp-full", &Way::Direct, |config| {
        config.limits.connections = LIMIT;
        config.limits.unknown_per_address = Some(LIMIT);
    });
    bed.fill(OBJECTS);
    bed.assert_drained();
    let resets = bed.watch_resets();
    let mut holders: Vec<NumberedClient> = (0..LIMIT).map(|_| bed.client()).collect();
    for holder in &mut holders {
        holder.get_from(&bed, "be0");
    }
    assert_eq!(bed.count("be0", "connections_open"), u64::from(LIMIT));

    let mut client = bed.client();
    for host in ["fe0", "be1", "be2"] {
        if host != "fe0" {
            client.get_from(&bed, host);
        }
        stays(&bed, host, &mut client, |client| one_by_one(&bed, client));
        stays(&bed, host, &mut client, |client| pipelined(&bed, client));
        stays(&bed, host, &mut client, |client| in_pieces(&bed, client));
        stays(&bed, host, &mut client, |client| uploads(&bed, client));
    }
    // The clients that fill the target have not noticed. Once there is room, the connection
    // moves.
    let n = bed.object_of("be0");
    holders.iter_mut().for_each(|holder| holder.get(n));
    holders.pop();
    eventually("there is room", Duration::from_secs(5), || {
        bed.count("be0", "connections_open") < u64::from(LIMIT)
    });
    client.get_from(&bed, "be0");
    say(&format!(
        "{} hand-offs refused",
        bed.total("kept_target_refused")
    ));
    drop((client, holders));
    bed.assert_drained();
    assert_eq!(bed.total("exports_lost"), 0);
    assert_eq!(bed.total("imported"), bed.total("exports_moved"));
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}
