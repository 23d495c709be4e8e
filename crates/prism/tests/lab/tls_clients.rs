//! Seven HTTPS clients, unmodified. Each holds one connection while it moves from backend to
//! backend, with every version and suite that the client can be told to use, over IPv4 and over
//! IPv6 in turn. Every byte is
//! compared. No client sees a reset, or an alert other than close_notify.

use prism_config::{Tls, TlsSuite};

use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::tls::programs::{Bench, Choice, Program};
use crate::support::tls::s_client::SClient;
use crate::support::tls::{Aead, Version, up, up_configured};
use crate::support::{Cluster, say, turn};

const BACKENDS: usize = 5;
/// Each connection moves at least this often.
const HAND_OFFS: u64 = 20;
/// The number of fetches of each object over one connection.
const ROUNDS: usize = 5;

/// Objects of less than a record, of several, and of many, on all backends.
fn objects(cluster: &Cluster) -> Vec<Object> {
    let mut objects = cluster.one_on_each("small", |n| 100 + n as u64);
    objects.extend(cluster.one_on_each("large", |n| 70_000 + 50_001 * n as u64));
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    objects
}

/// Runs one client, which fetches `wanted` over one connection. Checks from outside that it was
/// one connection, that it moved, and its version and suite.
fn observe(cluster: &Cluster, label: &str, fetch: impl FnOnce()) {
    let watch = Watch::all(cluster, label);
    let count = |name| cluster.sum("handoff", name);
    let before = (count("accepted"), count("exports_moved"));
    fetch();
    let accepted = count("accepted") - before.0;
    let moved = count("exports_moved") - before.1;
    say(&format!("{label}: {moved} hand-offs"));
    assert_eq!(accepted, 1, "{label}: connections");
    assert!(moved >= HAND_OFFS, "{label}: {moved} hand-offs");
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

fn observe_program(
    cluster: &Cluster,
    bench: &Bench,
    program: Program,
    choice: Choice,
    objects: &[Object],
) {
    let wanted: Vec<&Object> = objects.iter().cycle().take(ROUNDS * BACKENDS).collect();
    let label = format!("{program:?}-{}", choice.label()).to_lowercase();
    observe(cluster, &label, || {
        bench.fetch(cluster, program, choice, &wanted);
    });
}

#[test]
fn clients_hold_one_connection_over_twenty_hand_offs_with_every_suite() {
    let Some(_turn) = turn() else { return };
    let cluster = up(BACKENDS, |_| {});
    let objects = objects(&cluster);
    let bench = Bench::new();
    for program in Program::ALL
        .into_iter()
        .filter(|program| program.is_there())
    {
        bench.compile(program);
        let choices = Choice::all().into_iter();
        for choice in choices.filter(|choice| program.chooses_suite(choice.version)) {
            observe_program(&cluster, &bench, program, choice, &objects);
        }
    }
}

#[test]
fn clients_that_leave_the_suite_to_the_server_hold_theirs_too() {
    let Some(_turn) = turn() else { return };
    let program = Program::Go;
    if !program.is_there() {
        return;
    }
    let bench = Bench::new();
    bench.compile(program);
    let choices = Choice::all().into_iter();
    for choice in choices.filter(|choice| choice.version == Version::Tls13) {
        let suite = match choice.aead {
            Aead::Aes128 => TlsSuite::TLS_AES_128_GCM_SHA256,
            Aead::Aes256 => TlsSuite::TLS_AES_256_GCM_SHA384,
            Aead::ChaCha20 => TlsSuite::TLS_CHACHA20_POLY1305_SHA256,
        };
        let only = move |tls: &mut Tls| tls.suites = vec![suite];
        let cluster = up_configured(
            BACKENDS,
            |_| {},
            move |config| only(config.service.first_mut().tls.as_mut().unwrap()),
        );
        let objects = objects(&cluster);
        observe_program(&cluster, &bench, program, choice, &objects);
    }
}

#[test]
fn s_client_holds_one_connection_over_twenty_hand_offs_with_every_suite() {
    let Some(_turn) = turn() else { return };
    let cluster = up(BACKENDS, |_| {});
    let objects = objects(&cluster);
    for choice in Choice::all() {
        let label = format!("s_client-{}", choice.label());
        observe(&cluster, &label, || {
            let mut client = SClient::connect(&cluster, choice, &[]);
            for object in objects.iter().cycle().take(ROUNDS * BACKENDS) {
                client.get(object);
            }
            client.finish();
        });
    }
}
