//! The store's memory does not grow with the objects it holds.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::fs;

use common::{bytes, meta, put};
use prism_store::{Config, Durability, Store, Verified};

const MIB: u64 = 1024 * 1024;
/// What the whole process may take, in bytes: half of what a node may.
const LIMIT: u64 = 64 * MIB;

/// Alone in its file: it measures the process.
#[test]
fn large_objects_and_many_small_ones_pass_through_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        durability: Durability::None,
        reserve_bytes: 0,
        ..Config::default()
    };
    let store = Store::open(dir.path(), config).unwrap();
    store.create_bucket("b", 0).unwrap();

    let chunk = bytes(1, 256 * 1024);
    let len = 512 * MIB;
    let mut writer = store.begin_put("b", "large", Some(len)).unwrap();
    while writer.written() < len {
        writer.write(&chunk).unwrap();
    }
    writer.commit(meta(b"")).unwrap();
    let verified = store.verify("b", "large").unwrap();
    assert_eq!(verified, Some(Verified { bytes: len }));
    let large = peak();
    store.delete("b", "large").unwrap();

    for k in 0..20_000 {
        put(&store, "b", &format!("small/{k}"), &chunk[..8 * 1024]).unwrap();
    }
    let many = peak();
    println!(
        "peak after 512 MiB: {} KiB; after 160 MiB of small ones: {} KiB",
        large / 1024,
        many / 1024
    );
    assert!(large < LIMIT && many < LIMIT);
}

/// Peak resident memory of this process, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
