//! TLS sessions with more than requests: new keys at the client's wish, also within answers and
//! before further hand-offs; and resumption through another frontend than the one that issued
//! the ticket.

use std::sync::Arc;

use prism_lab::Family;
use rustls::{ClientConfig, HandshakeKind};

use crate::support::client::Client;
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::tls::programs::{Choice, path_of};
use crate::support::tls::s_client::SClient;
use crate::support::tls::{Aead, Version, config, connect, up};
use crate::support::{Cluster, say, turn};

const MIB: u64 = 1 << 20;
/// Connections after which both frontends must have had some.
const MAX_CONNECTIONS: usize = 40;

fn moved(cluster: &Cluster) -> u64 {
    cluster.sum("handoff", "exports_moved")
}

/// The number of KeyUpdates of this direction in the messages of `-msg`.
fn key_updates(messages: &[String], direction: &str) -> usize {
    let lines = messages.iter();
    lines
        .filter(|line| line.starts_with(direction) && line.contains("KeyUpdate"))
        .count()
}

#[test]
fn new_keys_between_requests_are_followed_after_hand_offs() {
    let Some(_turn) = turn() else { return };
    let cluster = up(5, |_| {});
    let mut objects = cluster.one_on_each("keys", |n| 1 + 40_000 * n as u64);
    objects.extend(cluster.one_on_each("more", |n| 200_000 + n as u64));
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let choices = Choice::all().into_iter();
    for choice in choices.filter(|choice| choice.version == Version::Tls13) {
        let watch = Watch::all(&cluster, "key-update");
        let before = moved(&cluster);
        let mut client = SClient::connect(&cluster, choice, &[]);
        let mut asked = 0;
        for (n, object) in objects.iter().cycle().take(25).enumerate() {
            // One, the other, both, neither.
            if n % 4 == 1 || n % 4 == 3 {
                client.command('k');
                asked += 1;
            }
            if n % 4 == 2 || n % 4 == 3 {
                client.command('K');
                asked += 1;
            }
            client.get(object);
        }
        let messages = client.finish();
        let moved = moved(&cluster) - before;
        let (sent, received) = (key_updates(&messages, ">"), key_updates(&messages, "<"));
        say(&format!(
            "{}: {moved} hand-offs, {sent} KeyUpdates sent, {received} received",
            choice.label()
        ));
        // Two at once may merge on the way.
        assert!(sent >= asked * 2 / 3 && received > 0, "{sent} {received}");
        assert!(moved >= 20, "{moved} hand-offs");
        cluster.assert_no_flows();
        watch.finish(ClientResets::None);
    }
}

#[test]
fn new_keys_in_the_middle_of_a_large_answer_are_followed_after_hand_offs() {
    let Some(_turn) = turn() else { return };
    let cluster = up(5, |_| {});
    let large = cluster.one_on_each("large", |n| 24 * MIB + n as u64);
    let small = cluster.one_on_each("small", |n| 5_000 + n as u64);
    cluster.put_all(&large);
    cluster.put_all(&small);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "key-update-within");
    let before = moved(&cluster);
    let choice = Choice {
        version: Version::Tls13,
        aead: Aead::Aes128,
        family: Family::V6,
    };
    let mut client = SClient::connect(&cluster, choice, &[]);
    for (n, (large, small)) in large.iter().zip(&small).cycle().take(12).enumerate() {
        client.send_get(large);
        let len = client.head();
        client.body(large, 0, MIB);
        // The answer stalls meanwhile, as the client does not read.
        client.command(if n % 2 == 0 { 'K' } else { 'k' });
        client.body(large, MIB, len - MIB);
        client.get(small);
    }
    let messages = client.finish();
    let moved = moved(&cluster) - before;
    let (sent, received) = (key_updates(&messages, ">"), key_updates(&messages, "<"));
    let within = updates_within_answers(&messages);
    say(&format!(
        "{moved} hand-offs, {sent} KeyUpdates sent, {within} within answers, {received} received"
    ));
    assert_eq!((sent, received), (12, 6));
    assert!(within > 0, "none was sent within an answer");
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// The number of KeyUpdates sent after which many records were received before the next record
/// was sent.
fn updates_within_answers(messages: &[String]) -> usize {
    let is_update = |line: &String| line.starts_with('>') && line.contains("KeyUpdate");
    let positions = (0..messages.len()).filter(|n| is_update(&messages[*n]));
    let answered = positions.filter(|n| {
        let after = messages[n + 1..].iter();
        after.take_while(|line| line.starts_with('<')).count() > 20
    });
    answered.count()
}

/// The number of connections that each frontend has accepted.
fn accepted(cluster: &Cluster) -> Vec<u64> {
    let frontends = cluster.frontends();
    let counts = frontends
        .iter()
        .map(|host| cluster.counter(host, "handoff", "accepted"));
    counts.collect()
}

#[test]
fn a_session_is_resumed_through_another_frontend() {
    let Some(_turn) = turn() else { return };
    let cluster = up(3, |spec| spec.frontends = 2);
    let objects = cluster.one_on_each("resume", |n| 3_000 + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::all(&cluster, "resume");
    let visit = |config: &Arc<ClientConfig>| {
        let mut client = connect(&cluster, config);
        for object in &objects {
            get(&mut client, object);
        }
        let kind = client.tls().handshake_kind().unwrap();
        client.close_tls();
        kind
    };
    let client = Arc::new(config(&cluster, &[Version::Tls13.rustls()]));
    let (mut last_frontend, mut resumed_elsewhere) = (None, 0);
    for n in 0..MAX_CONNECTIONS {
        let before = accepted(&cluster);
        let kind = visit(&client);
        let after = accepted(&cluster);
        let frontend = (0..after.len()).find(|n| after[*n] > before[*n]);
        let wanted = match n {
            // The first connection to each of the service's addresses.
            0 | 1 => HandshakeKind::Full,
            _ => HandshakeKind::Resumed,
        };
        assert_eq!(kind, wanted, "connection {n}");
        if n > 1 && frontend != last_frontend {
            resumed_elsewhere += 1;
        }
        last_frontend = frontend;
        if resumed_elsewhere == 3 {
            break;
        }
    }
    assert_eq!(resumed_elsewhere, 3);
    // TLS 1.2 gets no tickets.
    let client = Arc::new(config(&cluster, &[Version::Tls12.rustls()]));
    for _ in 0..3 {
        assert_eq!(visit(&client), HandshakeKind::Full);
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

fn get(client: &mut Client, object: &Object) {
    let head = format!("GET {} HTTP/1.1\r\nHost: s3\r\n\r\n", path_of(object));
    client.send(head.as_bytes());
    client.expect(object);
}
