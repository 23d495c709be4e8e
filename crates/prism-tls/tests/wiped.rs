//! A session that has moved away leaves nothing in memory that opens or seals a record. The process
//! searches its own heap.
//!
//! This test is alone in its program, so that no other test has secrets there.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use prism_tls::{DirectionKeys, KernelKeys, Secret, Session, SessionKeys, Suite, Version};

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

/// The end of a secret, inverted so that the search does not find it. The allocator overwrites the
/// first 16 bytes of freed memory, which prove nothing.
struct Inverted(&'static str, Vec<u8>);

impl Inverted {
    fn of(name: &'static str, secret: &[u8]) -> Self {
        let end = &secret[secret.len() - secret.len().min(16)..];
        Self(name, end.iter().map(|byte| !byte).collect())
    }

    fn is_in(&self, memory: &[u8]) -> bool {
        let here = |window: &[u8]| window.iter().zip(&self.1).all(|(a, b)| *a == !b);
        memory.windows(self.1.len()).any(here)
    }
}

/// Calls `look` with all memory of allocations.
fn heap(mut look: impl FnMut(&[u8])) {
    let memory = File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for map in maps.lines() {
        let fields: Vec<&str> = map.split_whitespace().collect();
        let allocated = fields.len() == 5 || fields[5] == "[heap]";
        if !allocated || !fields[1].starts_with("rw") {
            continue;
        }
        let (from, to) = fields[0].split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        let mut bytes = vec![0; (to - from) as usize];
        if memory.read_exact_at(&mut bytes, from).is_ok() {
            look(&bytes);
        }
        bytes.fill(0);
    }
}

fn found(secrets: &[Inverted]) -> Vec<&'static str> {
    let mut found = Vec::new();
    heap(|bytes| found.extend(secrets.iter().filter(|s| s.is_in(bytes)).map(|s| s.0)));
    found.sort_unstable();
    found.dedup();
    found
}

fn direction(version: Version, suite: Suite, rng: &mut fastrand::Rng) -> DirectionKeys {
    let mut bytes = [0; 48];
    rng.fill(&mut bytes);
    let keys = match version {
        Version::Tls13 => {
            let secret = Secret::new(&bytes[..suite.traffic_secret_bytes()]).unwrap();
            DirectionKeys::Tls13 {
                secret,
                sequence: 1,
            }
        }
        Version::Tls12 => {
            let key = Secret::new(&bytes[..suite.key_bytes()]).unwrap();
            DirectionKeys::Tls12 {
                key,
                iv: [7; 12],
                sequence: 1,
            }
        }
    };
    bytes.fill(0);
    std::hint::black_box(&bytes);
    keys
}

fn secret_of(keys: &DirectionKeys) -> &[u8] {
    match keys {
        DirectionKeys::Tls13 { secret, .. } => secret.as_bytes(),
        DirectionKeys::Tls12 { key, .. } => key.as_bytes(),
    }
}

fn session(version: Version, suite: Suite, seed: u64) -> (Session, Vec<Inverted>) {
    let directions = || {
        let mut rng = fastrand::Rng::with_seed(seed);
        let first = direction(version, suite, &mut rng);
        (first, direction(version, suite, &mut rng))
    };
    let (read, write) = directions();
    let mut secrets = vec![
        Inverted::of("read secret", secret_of(&read)),
        Inverted::of("write secret", secret_of(&write)),
    ];
    let mut session = Session::new(SessionKeys { suite, read, write }).unwrap();
    secrets.push(Inverted::of("write key", &write_key(&mut session).key));
    // The peer writes with the key that the session reads with.
    let (write, read) = directions();
    let mut peer = Session::new(SessionKeys { suite, read, write }).unwrap();
    secrets.push(Inverted::of("read key", &write_key(&mut peer).key));
    (session, secrets)
}

fn write_key(session: &mut Session) -> KernelKeys {
    let keys = session.write_to_kernel().unwrap();
    session.write_from_kernel(1).unwrap();
    keys
}

#[test]
fn a_session_that_moved_leaves_no_secret_in_freed_memory() {
    let versions = [Version::Tls12, Version::Tls13];
    let all = versions.into_iter().flat_map(|v| SUITES.map(|s| (v, s)));
    for (seed, (version, suite)) in (1..).zip(all) {
        let (mut session, secrets) = session(version, suite, seed);
        session.seal(b"data", &mut Vec::new()).unwrap();
        assert!(found(&secrets).len() >= 2, "the search finds what is there");
        let bytes = session.save().unwrap();
        drop(Session::restore(&bytes));
        assert!(!found(&secrets).is_empty(), "the encoded form is there");
        drop(bytes);
        assert_eq!(found(&secrets), [""; 0], "{version:?} {suite:?}");
    }
}
