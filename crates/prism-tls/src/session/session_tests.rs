#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod kernel_tests;
mod read_tests;
mod saved_tests;
mod vector_tests;
mod write_tests;

use super::record::kind;
use super::*;
use crate::keys::{DirectionKeys, Secret};

/// Every version with every suite.
fn all() -> impl Iterator<Item = (Version, Suite)> {
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    [Version::Tls12, Version::Tls13]
        .into_iter()
        .flat_map(move |version| suites.map(|suite| (version, suite)))
}

fn direction(version: Version, suite: Suite, seed: u8, sequence: u64) -> DirectionKeys {
    match version {
        Version::Tls13 => {
            let secret = Secret::new(&vec![seed; suite.traffic_secret_bytes()]).unwrap();
            DirectionKeys::Tls13 { secret, sequence }
        }
        Version::Tls12 => {
            let key = Secret::new(&vec![seed; suite.key_bytes()]).unwrap();
            DirectionKeys::Tls12 {
                key,
                iv: [seed ^ 0x5a; 12],
                sequence,
            }
        }
    }
}

/// A session that has received `read_at` records and sent `write_at`.
fn at(version: Version, suite: Suite, read_at: u64, write_at: u64) -> Session {
    let read = direction(version, suite, 1, read_at);
    let write = direction(version, suite, 2, write_at);
    Session::new(SessionKeys { suite, read, write }).unwrap()
}

/// Both ends of one session: server and client.
fn pair(version: Version, suite: Suite) -> (Session, Session) {
    let read = direction(version, suite, 2, 7);
    let write = direction(version, suite, 1, 9);
    let client = Session::new(SessionKeys { suite, read, write }).unwrap();
    (at(version, suite, 9, 7), client)
}

fn tls13() -> (Session, Session) {
    pair(Version::Tls13, Suite::Aes128Gcm)
}

fn tls12() -> (Session, Session) {
    pair(Version::Tls12, Suite::Aes128Gcm)
}

/// A record with any content type and content, sealed with the right key.
fn forge(by: &mut Session, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut record = vec![0; by.surroundings().before];
    record.extend_from_slice(content);
    record.resize(record.len() + by.surroundings().after, 0);
    let half = &mut by.writer.half;
    half.seal(&mut record, content.len(), kind, &mut Unwitnessed)
        .unwrap();
    record
}

/// A KeyUpdate is due, as when the key is used up.
fn plan_update(session: &mut Session) {
    session.writer.pending = session.writer.pending.with_update();
}

/// A KeyUpdate that asks the peer for one is due, as when the peer's key is used up.
fn plan_request(session: &mut Session) {
    session.writer.pending = session.writer.pending.with_request();
}

fn sealed(by: &mut Session, plaintext: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    by.seal(plaintext, &mut out).unwrap();
    out
}

/// All data and events of the records in `input`.
fn open_all(by: &mut Session, mut input: Vec<u8>) -> (Vec<u8>, Vec<Event>) {
    let (mut data, mut events) = (Vec::new(), Vec::new());
    while !input.is_empty() {
        let opened = by.open(&mut input).unwrap();
        match opened.event {
            Event::Data(place) => data.extend_from_slice(&input[place]),
            other => events.push(other),
        }
        assert!(opened.consumed > 0, "not a whole record");
        input.drain(..opened.consumed);
    }
    (data, events)
}
