//! Buckets by records that were agreed elsewhere: the later record counts, a life ends with all of
//! its objects.

use std::time::{Duration, Instant};

use crate::common::{StoreExt, agreed, meta, put};
use prism_store::{Bucket, Config, Durability, Error, Phase, Proof, Stamp, Store, Versioning};

/// Unfinished uploads in a bucket that is deleted.
const UPLOADS: usize = 3_000;

fn open(dir: &std::path::Path) -> Store {
    let config = Config {
        reserve_bytes: 0,
        durability: Durability::None,
        ..Config::default()
    };
    Store::open(dir, config).unwrap()
}

fn later(record: &Bucket) -> Stamp {
    Stamp {
        time_us: record.stamp.time_us + 1,
        ..record.stamp
    }
}

#[test]
fn of_two_records_the_later_counts_in_whatever_order_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (first, second) = (agreed(5, Some(true)), agreed(6, Some(false)));
    for record in [&first, &second, &first] {
        store
            .buckets()
            .accept_record("b", record, Proof::TRUSTED)
            .unwrap();
    }
    let is = store.buckets().get("b").unwrap().versioning;
    assert_eq!(is, Versioning::Suspended);
    let gone = second.buried(later(&second));
    store
        .buckets()
        .accept_record("b", &gone, Proof::TRUSTED)
        .unwrap();
    store
        .buckets()
        .accept_record("b", &second, Proof::TRUSTED)
        .unwrap();
    assert!(matches!(store.buckets().get("b"), Err(Error::NoSuchBucket)));
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.buckets().record("b").unwrap(), Some(gone.clone()));
    assert!(!store.buckets().has("b"));
    store.buckets().forget("b", second.stamp).unwrap();
    assert!(store.buckets().record("b").unwrap().is_some());
    store.buckets().forget("b", gone.stamp).unwrap();
    assert!(store.buckets().record("b").unwrap().is_none());
}

#[test]
fn a_change_counts_only_if_nobody_else_has_changed_the_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let first = agreed(5, None);
    store.buckets().change_record("b", None, &first).unwrap();
    let late = store.buckets().change_record("b", None, &agreed(6, None));
    assert!(matches!(late, Err(Error::BucketChanged)), "{late:?}");
    let next = agreed(6, Some(true));
    store
        .buckets()
        .change_record("b", Some(first.stamp), &next)
        .unwrap();
    let late = store
        .buckets()
        .change_record("b", Some(first.stamp), &agreed(7, None));
    assert!(matches!(late, Err(Error::BucketChanged)), "{late:?}");
}

#[test]
fn nothing_of_an_earlier_life_is_there_in_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let first = agreed(5, None);
    store
        .buckets()
        .accept_record("b", &first, Proof::TRUSTED)
        .unwrap();
    // This store has missed that the bucket was deleted and created again.
    put(&store, "b", "old", b"old").unwrap();
    put(&store, "b", "large", &[1; 100_000]).unwrap();
    store.uploads().create("b", "old", meta(b"")).unwrap();
    let gone = first.buried(later(&first));
    let second = Bucket::create(Some(&gone), later(&gone), 9).unwrap();
    store
        .buckets()
        .accept_record("b", &second, Proof::TRUSTED)
        .unwrap();
    assert_eq!(store.buckets().record("b").unwrap(), Some(second.clone()));
    assert!(store.list("b", "", "", 9).unwrap().is_empty());
    assert!(store.uploads().list("b", "", None, 9).unwrap().0.is_empty());
    put(&store, "b", "new", b"new").unwrap();
    store
        .buckets()
        .accept_record("b", &gone, Proof::TRUSTED)
        .unwrap();
    assert!(store.head("b", "new").unwrap().is_some());
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.recovery().dangling, 0);
    assert!(store.head("b", "new").unwrap().is_some());
}

#[test]
fn only_keys_that_count_keep_their_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 1).unwrap();
    for key in ["left-1", "left-2"] {
        put(&store, "b", key, b"deleted elsewhere").unwrap();
    }
    let known = store.buckets().record("b").unwrap().unwrap();
    let deleting = Bucket::begin_deletion(Some(&known), later(&known)).unwrap();
    store
        .buckets()
        .accept_record("b", &deleting, Proof::TRUSTED)
        .unwrap();
    let among = |key: &'static str| {
        store
            .buckets()
            .check_deletable("b", move |found| found == key)
    };
    assert!(matches!(among("left-2"), Err(Error::NotEmpty)));
    among("other").unwrap();
}

#[test]
fn uploads_go_after_their_bucket_in_few_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 1).unwrap();
    for n in 0..UPLOADS {
        store
            .uploads()
            .create("b", &format!("k{n}"), meta(b""))
            .unwrap();
    }
    let known = store.buckets().record("b").unwrap().unwrap();
    let deleting = Bucket::begin_deletion(Some(&known), later(&known)).unwrap();
    store
        .buckets()
        .accept_record("b", &deleting, Proof::TRUSTED)
        .unwrap();
    store.buckets().check_deletable("b", |_| true).unwrap();
    assert!(!store.uploads().list("b", "", None, 9).unwrap().0.is_empty());
    let gone = deleting.end_deletion(later(&deleting), true);
    store
        .buckets()
        .accept_record("b", &gone, Proof::TRUSTED)
        .unwrap();
    let begun = Instant::now();
    store.catch_up().purge("b").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    let again = Bucket::create(Some(&gone), later(&gone), 2).unwrap();
    store
        .buckets()
        .accept_record("b", &again, Proof::TRUSTED)
        .unwrap();
    assert_eq!(again.phase, Phase::Live);
    assert!(store.uploads().list("b", "", None, 9).unwrap().0.is_empty());
    let purged = store.catch_up().purge("b");
    assert!(matches!(purged, Err(Error::AlreadyExists)), "{purged:?}");
}

#[test]
fn what_is_left_of_a_bucket_is_removed_while_the_next_one_is_made_and_filled() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut known = agreed(1, None);
    store
        .buckets()
        .accept_record("b", &known, Proof::TRUSTED)
        .unwrap();
    std::thread::scope(|scope| {
        let purging = [(); 2].map(|()| {
            scope.spawn(|| {
                while store.buckets().record("end").unwrap().is_none() {
                    let _ = store.catch_up().purge("b");
                }
            })
        });
        for round in 0..300 {
            let gone = known.buried(later(&known));
            store
                .buckets()
                .accept_record("b", &gone, Proof::TRUSTED)
                .unwrap();
            let next = Bucket::create(Some(&gone), later(&gone), round).unwrap();
            store
                .buckets()
                .accept_record("b", &next, Proof::TRUSTED)
                .unwrap();
            put(&store, "b", "k", b"new").unwrap();
            assert!(store.head("b", "k").unwrap().is_some(), "round {round}");
            known = next;
        }
        store
            .buckets()
            .accept_record("end", &agreed(1, None), Proof::TRUSTED)
            .unwrap();
        purging
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
}
