//! How fast one core seals and opens, and what a move costs: medians on this
//! machine, to be compared with `openssl speed -evp aes-128-gcm -bytes 16384`.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::indexing_slicing)]

use std::hint::black_box;
use std::time::Instant;

use prism_tls::{
    DirectionKeys, Event, MAX_PLAINTEXT_BYTES, SavedSession, Secret, Session, SessionKeys, Suite,
    Version,
};

const BULK_BYTES: usize = 64 * MAX_PLAINTEXT_BYTES;
const ROUNDS: usize = 60;
const MOVES: usize = 20_000;

fn session(version: Version, suite: Suite, read: u8, write: u8) -> Session {
    let direction = |seed: u8| match version {
        Version::Tls13 => {
            let secret = Secret::new(&vec![seed; suite.traffic_secret_bytes()]).unwrap();
            DirectionKeys::Tls13 {
                secret,
                sequence: 0,
            }
        }
        Version::Tls12 => {
            let key = Secret::new(&vec![seed; suite.key_bytes()]).unwrap();
            DirectionKeys::Tls12 {
                key,
                iv: [seed; 12],
                sequence: 0,
            }
        }
    };
    let (read, write) = (direction(read), direction(write));
    Session::new(SessionKeys { suite, read, write }).unwrap()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// GB/s of sealing with a copy, of sealing in place, and of opening.
fn bulk(version: Version, suite: Suite) -> [f64; 3] {
    let (mut server, mut client) = (session(version, suite, 1, 2), session(version, suite, 2, 1));
    let mut other = session(version, suite, 1, 2);
    let plaintext = vec![7; BULK_BYTES];
    let (mut out, mut rates) = (Vec::new(), [const { Vec::new() }; 3]);
    let rate = |start: Instant| BULK_BYTES as f64 / start.elapsed().as_nanos() as f64;
    let room = other.surroundings();
    let mut places = vec![0; 64 * (MAX_PLAINTEXT_BYTES + room.total())];
    for _ in 0..ROUNDS {
        out.clear();
        let start = Instant::now();
        server.seal(&plaintext, &mut out).unwrap();
        rates[0].push(rate(start));

        let start = Instant::now();
        for record in places.chunks_mut(MAX_PLAINTEXT_BYTES + room.total()) {
            other.seal_in_place(record, MAX_PLAINTEXT_BYTES).unwrap();
        }
        rates[1].push(rate(start));

        let start = Instant::now();
        let mut rest = out.as_mut_slice();
        while !rest.is_empty() {
            let opened = client.open(rest).unwrap();
            assert!(matches!(opened.event, Event::Data(_)));
            rest = &mut rest[opened.consumed..];
        }
        rates[2].push(rate(start));
    }
    rates.map(median)
}

/// Microseconds of export (save and encode) and of rebuild (decode and restore).
fn moves(version: Version, suite: Suite) -> [f64; 2] {
    let mut session = session(version, suite, 1, 2);
    let (mut exports, mut rebuilds) = (Vec::new(), Vec::new());
    for _ in 0..MOVES {
        let start = Instant::now();
        let bytes = black_box(session.save().unwrap().encode());
        exports.push(start.elapsed().as_nanos() as f64 / 1e3);
        let start = Instant::now();
        session = black_box(Session::restore(SavedSession::decode(&bytes).unwrap()).unwrap());
        rebuilds.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    [median(exports), median(rebuilds)]
}

fn main() {
    println!("                             GB/s                     us");
    println!("                             seal in place   open     export rebuild");
    for version in [Version::Tls12, Version::Tls13] {
        for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
            let [seal, in_place, open] = bulk(version, suite);
            let [export, rebuild] = moves(version, suite);
            let name = format!("{version:?} {suite:?}");
            println!("{name:27} {seal:6.2} {in_place:7.2} {open:7.2}   {export:6.2} {rebuild:7.2}");
        }
    }
}
