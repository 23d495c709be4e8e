//! A store with a quota.

use std::thread;

use crate::common::{StoreExt, bytes, put};
use prism_store::{Config, Error, ObjectMeta, Store, UploadName};

const QUOTA: u64 = 1 << 20;

fn config() -> Config {
    Config {
        quota_bytes: Some(QUOTA),
        reserve_bytes: 0,
        ..Config::default()
    }
}

fn store(dir: &std::path::Path) -> Store {
    Store::open(dir, config()).unwrap()
}

#[test]
fn writes_beyond_the_quota_are_refused_and_deletes_give_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = self::store(dir.path());
    store.create_bucket("b", 0).unwrap();
    put(&store, "b", "large", &bytes(1, 1_000_000)).unwrap();
    put(&store, "b", "small", &bytes(2, 10_000)).unwrap();
    assert_eq!(store.bytes_used(), 1_010_000);
    let refused = put(&store, "b", "more", &bytes(3, 100_000)).unwrap_err();
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    let refused = store.begin_put("b", "more", Some(QUOTA + 1)).err().unwrap();
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    // The length is not announced, so the commit refuses it.
    let mut writer = store.begin_put("b", "more", None).unwrap();
    writer.write(&bytes(3, 100_000)).unwrap();
    let refused = writer.commit(ObjectMeta::default()).unwrap_err();
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    assert!(store.get("b", "more").unwrap().is_none());
    assert_eq!(store.bytes_used(), 1_010_000);
    // It fits in place of another object.
    put(&store, "b", "large", &bytes(4, 1_020_000)).unwrap();
    assert_eq!(store.bytes_used(), 1_030_000);
    assert!(store.delete("b", "large").unwrap());
    put(&store, "b", "more", &bytes(3, 100_000)).unwrap();
    assert_eq!(store.bytes_used(), 110_000);
    drop(store);
    assert_eq!(self::store(dir.path()).bytes_used(), 110_000);
}

#[test]
fn parts_count_until_their_object_or_upload_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.create_bucket("b", 0).unwrap();
    let (bucket, key) = ("b", "k");
    let begin = || {
        let id = store
            .uploads()
            .create(bucket, key, ObjectMeta::default())
            .unwrap();
        UploadName { bucket, key, id }
    };
    let send = |name, number, len| {
        let mut writer = store.uploads().begin_part(name, number, None)?;
        writer.write(&bytes(u64::from(number), len))?;
        writer.commit(ObjectMeta::default())
    };
    let name = begin();
    send(name, 1, 600_000).unwrap();
    send(name, 2, 300_000).unwrap();
    send(name, 2, 400_000).unwrap();
    assert!(matches!(send(name, 3, 100_000), Err(Error::NoSpace)));
    assert_eq!(store.bytes_used(), 1_000_000);
    let (parts, _) = store.uploads().parts(name, 0, 1).unwrap();
    let seen = [(1, parts[0].version)];
    store
        .uploads()
        .complete(name, &seen, ObjectMeta::default(), None, None)
        .unwrap();
    // The part that was left out is gone.
    assert_eq!(store.bytes_used(), 600_000);
    let aborted = begin();
    send(aborted, 7, 400_000).unwrap();
    store.uploads().abort(aborted).unwrap();
    assert_eq!(store.bytes_used(), 600_000);
    put(&store, "b", "k", b"instead").unwrap();
    assert_eq!(store.bytes_used(), 7);
}

#[test]
fn many_at_once_do_not_exceed_it_together() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.create_bucket("b", 0).unwrap();
    let stored: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8_u64)
            .map(|t| {
                let store = &store;
                let put_all = move || {
                    let put = |k: u64| put(store, "b", &format!("{t}/{k}"), &bytes(k, 40_000));
                    (0..10).filter(|k| put(*k).is_ok()).count()
                };
                scope.spawn(put_all)
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(stored as u64, QUOTA / 40_000);
    assert_eq!(store.bytes_used(), stored as u64 * 40_000);
}
