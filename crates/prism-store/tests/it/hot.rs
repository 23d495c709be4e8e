//! Objects that are read from memory, while they change.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use prism_store::{Config, Durability, Store};

use crate::common::{put, read};

const KEYS: u64 = 4;

fn key(n: u64) -> String {
    format!("k{n}")
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().unwrap())
}

/// One writer for each key, whose values count up; between two of them it deletes
/// sometimes. Readers see what was answered before they asked, or later, and never go back.
#[test]
fn nobody_reads_what_is_older_than_an_answered_write() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        durability: Durability::None,
        ..Config::default()
    };
    let store = Store::open(dir.path(), config).unwrap();
    store.create_bucket("b", 1).unwrap();
    let answered: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for (n, answered) in (0..).zip(&answered) {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let end = Instant::now() + Duration::from_secs(2);
                for value in 1.. {
                    if value % 7 == 0 {
                        store.delete("b", &key(n)).unwrap();
                        assert!(store.get("b", &key(n)).unwrap().is_none());
                    }
                    put(store, "b", &key(n), &u64::to_le_bytes(value).repeat(50)).unwrap();
                    answered.store(value, Ordering::SeqCst);
                    if Instant::now() > end {
                        break;
                    }
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        for reader in 0..3 {
            let (store, answered, done, reads) = (&store, &answered, &done, &reads);
            scope.spawn(move || {
                let mut seen = vec![0; answered.len()];
                let mut random = fastrand::Rng::with_seed(reader);
                while !done.load(Ordering::SeqCst) {
                    let n = random.usize(..answered.len());
                    let floor = answered[n].load(Ordering::SeqCst);
                    if let Some(object) = store.get("b", &key(n as u64)).unwrap() {
                        let value = number(&read(object));
                        assert!(value >= floor, "{value} after {floor} was answered");
                        assert!(value >= seen[n], "{value} after {} was read", seen[n]);
                        seen[n] = value;
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let changes: u64 = answered.into_iter().map(AtomicU64::into_inner).sum();
    let reads = reads.into_inner();
    assert!(changes > 100 && reads > 1000, "{changes} and {reads}");
}
