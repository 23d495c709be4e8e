//! A power loss tears the last write, whose bytes a user has chosen.

use std::{
    fs,
    path::{Path, PathBuf},
};

use prism_store::{AuditError, Config, OpenError, Store};
use xxhash_rust::xxh3::xxh3_64;

use crate::common::{StoreExt, bytes, copy, put, read};

/// A batch of the log, as anyone who knows the tree's library can make it.
fn forged(sequence: u64) -> Vec<u8> {
    let (key, value) = (b"key", b"value");
    let mut item = vec![2, 0, 0];
    item.extend(9_u64.to_le_bytes());
    item.extend(u16::try_from(key.len()).unwrap().to_le_bytes());
    for _ in 0..2 {
        item.extend(u32::try_from(value.len()).unwrap().to_le_bytes());
    }
    item.extend(key);
    item.extend(value);
    let mut batch = vec![1, 1, 0, 0, 0];
    batch.extend(sequence.to_le_bytes());
    batch.extend(&item);
    batch.push(3);
    batch.extend(xxh3_64(&item).to_le_bytes());
    batch.extend(b"FJL\x03");
    batch
}

fn find(data: &[u8], what: &[u8]) -> usize {
    let found = data.windows(what.len()).position(|window| window == what);
    found.unwrap()
}

fn log(dir: &Path) -> PathBuf {
    let logs = fs::read_dir(dir.join("db")).unwrap();
    let logs = logs.map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "jnl"));
    logs.max().unwrap()
}

#[test]
fn a_user_cannot_make_a_torn_write_look_like_damage() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        reserve_bytes: 0,
        ..Config::default()
    };
    let store = Store::open(dir.path(), config.clone()).unwrap();
    store.create_bucket("b", 0).unwrap();
    put(&store, "b", "answered", &bytes(1, 3000)).unwrap();
    let before = fs::read(log(dir.path())).unwrap();
    let end = before.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    // One of them has the number of the next batch.
    let object: Vec<u8> = (1..200).flat_map(forged).collect();
    assert!(object.len() < prism_store::INLINE_MAX);
    put(&store, "b", "last", &object).unwrap();
    // A copy of the open store is the state after a kill. The power loss takes the first page
    // of the last write.
    let killed = tempfile::tempdir().unwrap();
    copy(dir.path(), killed.path());
    let path = log(killed.path());
    let mut torn = fs::read(&path).unwrap();
    let object_at = find(&torn, &forged(1));
    assert!(object_at > end);
    torn[end..object_at].fill(0);
    fs::write(&path, &torn).unwrap();
    let store = Store::open(killed.path(), config.clone()).unwrap();
    assert!(store.recovery().log_bytes_cut > 0);
    let answered = store.get("b", "answered").unwrap().unwrap();
    assert_eq!(read(answered), bytes(1, 3000));
    assert!(store.get("b", "last").unwrap().is_none());
    drop(store);
    // Damage before the last write is still reported.
    let damaged = tempfile::tempdir().unwrap();
    copy(dir.path(), damaged.path());
    let path = log(damaged.path());
    let mut log = fs::read(&path).unwrap();
    log[end - 20] ^= 1;
    fs::write(&path, &log).unwrap();
    let error = Store::open(damaged.path(), config).unwrap_err();
    let is_damage = matches!(error, OpenError::Audit(AuditError::Damaged(_)));
    assert!(is_damage, "{error}");
}
