//! Reads of a store with small buffers, so that commits and flushes always overlap.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::common::{self, StoreExt, bytes, read};
use prism_store::{Config, Store};

/// An empty store with small buffers and the bucket `b`.
fn with_bucket() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        reserve_bytes: 0,
        write_buffer_bytes: 256 * 1024,
        ..Config::default()
    };
    let store = Store::open(dir.path(), config).unwrap();
    store.create_bucket("b", 0).unwrap();
    (dir, store)
}

fn put(store: &Store, key: &str, data: &[u8]) {
    common::put(store, "b", key, data).unwrap();
}

fn get(store: &Store, key: &str) -> Option<Vec<u8>> {
    store.get("b", key).unwrap().map(read)
}

#[test]
fn readers_under_overwriting_see_one_whole_version_each() {
    let (_dir, store) = with_bucket();
    let versions: Vec<Vec<u8>> = (0..6)
        .map(|n| bytes(n, 10_000 + 9_000 * n as usize))
        .collect();
    put(&store, "k", &versions[0]);
    thread::scope(|scope| {
        let (store, versions) = (&store, &versions);
        for writer in 0..2 {
            scope.spawn(move || {
                for round in 0..40 {
                    put(store, "k", &versions[(round + writer * 3) % 6]);
                }
            });
        }
        scope.spawn(move || {
            for _ in 0..200 {
                let found = get(store, "k").unwrap();
                assert!(versions.contains(&found), "{} bytes", found.len());
            }
        });
    });
}

#[test]
fn no_reader_sees_half_a_commit() {
    const KEYS: u64 = 20;
    const ROUNDS: u64 = 60;
    let (_dir, store) = with_bucket();
    let writers = AtomicUsize::new(2);
    let rewrite = |t: u64| {
        for k in 0..ROUNDS * KEYS {
            let len = [40, 9_000, 60_000][(k % 3) as usize];
            put(&store, &format!("{t}/{}", k % KEYS), &bytes(k, len));
        }
        writers.fetch_sub(1, Ordering::Release);
    };
    for k in 0..KEYS {
        for t in 0..2 {
            put(&store, &format!("{t}/{k}"), b"the first");
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| rewrite(0));
        scope.spawn(|| rewrite(1));
        while writers.load(Ordering::Acquire) > 0 {
            for k in 0..KEYS {
                for t in 0..2 {
                    let key = format!("{t}/{k}");
                    assert!(get(&store, &key).is_some(), "{key} was there");
                }
            }
        }
    });
}
