//! The bytes and objects of each bucket, as a store counts them.

use std::path::Path;

use prism_store::{BucketUsage, Config, ObjectMeta, Store, UploadName};

use crate::common::{StoreExt, bytes, put, usage::check_usage};

fn open(dir: &Path) -> Store {
    let config = Config {
        reserve_bytes: 0,
        ..Config::default()
    };
    Store::open(dir, config).unwrap()
}

fn usage(bytes: u64, objects: u64) -> BucketUsage {
    BucketUsage { bytes, objects }
}

#[test]
fn parts_count_until_their_upload_ends_and_once_as_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 0).unwrap();
    let (bucket, key) = ("b", "k");
    let id = store
        .uploads()
        .create(bucket, key, ObjectMeta::default())
        .unwrap();
    let name = UploadName { bucket, key, id };
    let send = |number, len| {
        let mut writer = store.uploads().begin_part(name, number, None).unwrap();
        writer.write(&bytes(1, len)).unwrap();
        writer.commit(ObjectMeta::default()).unwrap();
    };
    send(1, 100_000);
    send(2, 10);
    send(2, 70);
    assert_eq!(store.bucket_usage("b"), usage(100_070, 0));
    let (parts, _) = store.uploads().parts(name, 0, 1).unwrap();
    let seen = [(1, parts[0].version)];
    let completed = store
        .uploads()
        .complete(name, &seen, ObjectMeta::default(), None, None);
    completed.unwrap();
    // The part that was left out is gone.
    assert_eq!(store.bucket_usage("b"), usage(100_000, 1));
    put(&store, "b", "k", b"instead").unwrap();
    assert_eq!(store.bucket_usage("b"), usage(7, 1));
    store.delete("b", "k").unwrap();
    assert_eq!(store.bucket_usage("b"), usage(0, 0));
}

#[test]
fn each_bucket_has_its_own_sum_which_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (bucket, count) in [("one", 3), ("two", 5)] {
        store.create_bucket(bucket, 0).unwrap();
        for n in 0..count {
            let len = if n == 0 { 100_000 } else { 100 };
            put(&store, bucket, &n.to_string(), &bytes(n, len)).unwrap();
        }
    }
    let wanted = [("one", usage(100_200, 3)), ("two", usage(100_400, 5))];
    drop(store);
    for _ in 0..2 {
        let store = open(dir.path());
        for (bucket, usage) in wanted {
            assert_eq!(store.bucket_usage(bucket), usage);
            check_usage(&store, bucket, "after opening");
        }
    }
}
