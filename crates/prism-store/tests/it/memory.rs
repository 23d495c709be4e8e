//! The store's memory does not grow with its objects.

use std::{env, fs, process::Command};

use crate::common::{StoreExt, bytes, meta, put};
use prism_store::{Config, Durability, Store};

const MIB: u64 = 1024 * 1024;
/// Memory limit of the whole process, in bytes, for any disk: the worst case of
/// `Config::write_buffer_bytes` (75 MiB), and everything else. Half of the stored bytes.
const LIMIT: u64 = 128 * MIB;
/// The number of small objects of 8 KiB.
const SMALL: usize = 32_768;

/// Measures the memory of a process of its own.
#[test]
fn large_objects_and_many_small_ones_pass_through_bounded_memory() {
    let mut process = Command::new(env::current_exe().unwrap());
    process.args(["--exact", "memory::process", "--ignored", "--nocapture"]);
    let status = process.status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "started by the test above"]
fn process() {
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
    assert_eq!(verified, Some(len));
    let large = peak();
    store.delete("b", "large").unwrap();

    for k in 0..SMALL {
        put(&store, "b", &format!("small/{k}"), &chunk[..8 * 1024]).unwrap();
    }
    let many = peak();
    println!(
        "peak after 512 MiB: {} KiB; after 256 MiB of small ones: {} KiB",
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
