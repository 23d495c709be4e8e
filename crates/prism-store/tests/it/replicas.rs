//! Three stores as replicas of each other, in one process. A change at a key's primary is on all of
//! them or on none, even if one of them fails.

use std::{
    os::unix::fs::FileExt,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use crate::common::{StoreExt, agreed, bytes, meta, object_files, put, read, request};
use prism_cluster::Placement;
use prism_store::{
    Bucket, Bytes, Change, Config, Decided, Durability, Error, ObjectMeta, OpenError, Prepare,
    Proof, Refusal, Replicas, Scope, ScopedChange, Stamp, Standing, Store, ToDelete, UploadName,
};

mod cluster;
mod versions;

use cluster::{Cluster, NAMES};

fn keys() -> Vec<String> {
    (0..12).map(|n| format!("k{n}")).collect()
}

#[test]
fn whatever_is_done_at_a_primary_is_on_all_replicas_whether_they_are_told_or_ask() {
    for (silent, replicas) in [(false, 3), (true, 3), (true, 2)] {
        let cluster = Cluster::new(replicas);
        cluster.silent.store(silent, Ordering::Relaxed);
        for (n, key) in keys().iter().enumerate() {
            let store = cluster.primary(key);
            put(&store, "b", key, &bytes(1, 100)).unwrap();
            put(&store, "b", key, &bytes(2, 100_000)).unwrap();
            match n % 4 {
                0 => assert!(store.delete("b", key).unwrap()),
                1 => put_in_parts(&store, key),
                2 => put(&store, "b", key, &bytes(3, 7)).map(drop).unwrap(),
                _ => {}
            }
            if n % 4 != 0 {
                let change = |meta: &mut ObjectMeta| meta.etag = "changed".into();
                store.change_meta("b", key, None, change).unwrap();
            }
        }
        cluster.settle();
        for (n, key) in keys().iter().enumerate() {
            let wanted = match n % 4 {
                0 => None,
                1 => Some([bytes(4, 30_000), bytes(5, 10)].concat()),
                2 => Some(bytes(3, 7)),
                _ => Some(bytes(2, 100_000)),
            };
            assert!(cluster.agreed(key) == wanted, "{key}");
        }
        for (at, name) in NAMES.iter().enumerate() {
            let store = cluster.store(name);
            assert_eq!(store.uploads().list("b", "", None, 9).unwrap().0.len(), 0);
            drop(store);
            cluster.stop(name);
            // No file is left without an object.
            let files = object_files(cluster.dirs[at].path()).len();
            cluster.start(name);
            assert_eq!(cluster.store(name).recovery().orphans_removed, 0);
            assert_eq!(object_files(cluster.dirs[at].path()).len(), files);
        }
    }
}

fn put_in_parts(store: &Store, key: &str) {
    let id = store
        .uploads()
        .create("b", key, ObjectMeta::default())
        .unwrap();
    let name = UploadName {
        bucket: "b",
        key,
        id,
    };
    for (number, data) in [
        (1, bytes(9, 5)),
        (2, bytes(5, 10)),
        (1, bytes(4, 30_000)),
        (7, bytes(6, 6)),
    ] {
        let mut writer = store.uploads().begin_part(name, number, None).unwrap();
        writer.write(&data).unwrap();
        writer.commit(meta(&data)).unwrap();
    }
    let (parts, _) = store.uploads().parts(name, 0, 2).unwrap();
    let parts: Vec<_> = parts.iter().map(|p| (p.number, p.version)).collect();
    store
        .uploads()
        .complete(name, &parts, ObjectMeta::default(), None, None)
        .unwrap();
    let id = store
        .uploads()
        .create("b", key, ObjectMeta::default())
        .unwrap();
    let name = UploadName { id, ..name };
    store.uploads().abort(name).unwrap();
}

#[test]
fn with_a_replica_down_writes_are_refused_and_leave_nothing_anywhere() {
    let cluster = Cluster::new(3);
    for key in keys() {
        put(&cluster.primary(&key), "b", &key, b"old").unwrap();
    }
    cluster.settle();
    for key in keys() {
        let owners = cluster.owners(&key);
        let down: &'static str = NAMES.iter().find(|n| **n == owners[1]).unwrap();
        cluster.stop(down);
        let store = cluster.primary(&key);
        let refused = [
            put(&store, "b", &key, &bytes(1, 50_000)).map(drop),
            put(&store, "b", &key, b"new").map(drop),
            store.delete("b", &key).map(drop),
            store
                .change_meta("b", &key, None, |meta| meta.etag.clear())
                .map(drop),
        ];
        for refused in refused {
            assert!(
                matches!(&refused, Err(Error::Unreplicated { node, .. }) if node == down),
                "{refused:?}"
            );
        }
        assert_eq!(read(store.get("b", &key).unwrap().unwrap()), b"old");
        drop(store);
        cluster.start(down);
        cluster.settle();
        assert_eq!(cluster.agreed(&key).unwrap(), b"old");
        put(&cluster.primary(&key), "b", &key, b"after").unwrap();
        cluster.settle();
        assert_eq!(cluster.agreed(&key).unwrap(), b"after");
    }
}

/// A change that was prepared and never decided.
fn prepare_only(store: &Store, key: &str, stamp: Stamp, data: &[u8]) -> Result<(), Error> {
    let len = data.len() as u64;
    let change = prism_store::ScopedChange {
        scope: Scope::object("b", key),
        before: None,
        change: prism_store::Change::Write {
            meta: meta(data),
            len,
        },
    };
    let prepare = Prepare {
        epoch: 1,
        life: Stamp::NONE,
        stamp,
        changes: vec![change],
    };
    let mut writer = store.open_changes().begin_prepare(prepare)?;
    writer.write(data)?;
    writer.prepare()
}

#[test]
fn a_prepared_change_is_seen_by_nobody_survives_and_is_dropped_if_its_primary_knows_nothing() {
    let cluster = Cluster::new(3);
    let owners = cluster.owners("k");
    let other: &'static str = NAMES.iter().find(|n| **n == owners[2]).unwrap();
    let stamp = Stamp {
        epoch: 1,
        time_us: 5,
        origin: 5,
    };
    for data in [bytes(1, 10), bytes(1, 60_000)] {
        prepare_only(&cluster.store(other), "k", stamp, &data).unwrap();
        // Again, as after a broken connection.
        prepare_only(&cluster.store(other), "k", stamp, &data).unwrap();
        cluster.stop(other);
        cluster.start(other);
        let store = cluster.store(other);
        assert_eq!(store.get("b", "k").unwrap().map(read), None);
        assert_eq!(store.list("b", "", "", 9).unwrap(), []);
        let (scope, pending) = store.open_changes().of_object("b", "k").unwrap();
        assert_eq!(pending.stamp, stamp);
        delete_from(&store, 3);
        assert!(matches!(
            store.buckets().check_deletable("b", |_| true),
            Err(Error::Busy)
        ));
        keep(&store, 4);
        let primary = cluster.primary("k");
        assert_eq!(
            primary.open_changes().standing(&scope, stamp).unwrap(),
            Standing::Nothing
        );
        drop((store, primary));
        cluster.settle();
        let at = NAMES.iter().position(|n| *n == other).unwrap();
        assert_eq!(cluster.agreed("k"), None);
        assert_eq!(object_files(cluster.dirs[at].path()).len(), 0);
        let store = cluster.store(other);
        delete_from(&store, 5);
        store.buckets().check_deletable("b", |_| true).unwrap();
        let sealed = prepare_only(&store, "k", stamp, b"x");
        assert!(matches!(sealed, Err(Error::Busy)), "{sealed:?}");
        keep(&store, 6);
    }
}

/// The time of each round at which the deletion of the bucket is agreed.
fn delete_from(store: &Store, time_us: u64) {
    let known = store.buckets().record("b").unwrap().unwrap();
    let stamp = Stamp {
        time_us: known.stamp.time_us + time_us,
        ..known.stamp
    };
    let deleting = Bucket::begin_deletion(Some(&known), stamp).unwrap();
    store
        .buckets()
        .accept_record("b", &deleting, Proof::TRUSTED)
        .unwrap();
}

/// The time at which the deletion is given up.
fn keep(store: &Store, time_us: u64) {
    let known = store.buckets().record("b").unwrap().unwrap();
    let stamp = Stamp {
        time_us: known.stamp.time_us + time_us,
        ..known.stamp
    };
    store
        .buckets()
        .accept_record("b", &known.end_deletion(stamp, false), Proof::TRUSTED)
        .unwrap();
}

#[test]
fn a_primary_whose_clock_was_set_back_is_told_and_then_above_what_others_have() {
    let cluster = Cluster::new(3);
    let other = cluster.owners("k")[1].clone();
    let future = Stamp {
        epoch: 1,
        time_us: 1 << 60,
        origin: 1,
    };
    prepare_only(&cluster.store(&other), "k", future, b"never").unwrap();
    let store = cluster.primary("k");
    let refused = put(&store, "b", "k", b"1").unwrap_err();
    let newer = Refusal::Newer(future).to_string();
    assert!(refused.to_string().contains(&newer), "{refused}");
    put(&store, "b", "k", b"2").unwrap();
    let stamp = store.head("b", "k").unwrap().unwrap().stamp;
    assert!(stamp > future);
    drop(store);
    cluster.settle();
    assert_eq!(cluster.agreed("k").unwrap(), b"2");
}

#[test]
fn only_the_primary_makes_changes_and_deletions_are_forgotten_in_time() {
    let cluster = Cluster::new(3);
    let other = cluster.store(&cluster.owners("k")[1]);
    let refused = put(&other, "b", "k", b"1");
    assert!(matches!(refused, Err(Error::NotPrimary)), "{refused:?}");
    let store = cluster.primary("k");
    put(&store, "b", "k", b"1").unwrap();
    store.delete("b", "k").unwrap();
    cluster.settle();
    for store in [&store, &other] {
        assert_eq!(store.old_deletions(&[], 0).unwrap().0, []);
        let (old, _) = store.old_deletions(&[], u64::MAX / 2).unwrap();
        assert_eq!(old.len(), 1);
        store.forget_deletions(&old).unwrap();
        assert_eq!(store.old_deletions(&[], u64::MAX / 2).unwrap().0, []);
    }
    assert_eq!(cluster.agreed("k"), None);
}

#[test]
fn writers_of_one_key_come_one_after_the_other_and_conditions_see_that() {
    let cluster = Cluster::new(2);
    let won = OnceLock::new();
    thread::scope(|scope| {
        for n in 0..8_u8 {
            let (cluster, won) = (&cluster, &won);
            scope.spawn(move || {
                let store = cluster.primary("k");
                let mut writer = store.begin_put("b", "k", None).unwrap();
                writer.write(&[n]).unwrap();
                let is_absent = Box::new(|meta: Option<&ObjectMeta>| meta.is_none());
                let commit = writer.ready(meta(&[n]), Some(is_absent));
                match commit.unwrap().commit() {
                    Ok(_) => won.set(n).unwrap(),
                    Err(Error::ConditionFailed { exists: true }) => {}
                    Err(error) => panic!("{error}"),
                }
                put(&store, "b", &format!("own{n}"), b"x")
                    .map(drop)
                    .or_else(|error| match error {
                        Error::NotPrimary => Ok(()),
                        error => Err(error),
                    })
                    .unwrap();
            });
        }
    });
    cluster.settle();
    assert_eq!(cluster.agreed("k").unwrap(), [*won.get().unwrap()]);
}

#[test]
fn the_number_of_replicas_of_a_store_that_is_in_use_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        reserve_bytes: 0,
        ..Config::default()
    };
    let store = Store::open(dir.path(), config).unwrap();
    store.expect_replicas(3).unwrap();
    store.expect_replicas(2).unwrap();
    store.create_bucket("b", 1).unwrap();
    store.expect_replicas(2).unwrap();
    let refused = store.expect_replicas(3).unwrap_err();
    assert!(matches!(
        refused,
        OpenError::Replicas {
            noted: 2,
            wanted: 3
        }
    ));
}

/// Keys of `a`, alternately on `b` and on `c`, each with a file.
fn keys_of_two_groups(cluster: &Cluster) -> Vec<String> {
    let others = ["b", "c"].map(|other| {
        let keys = (0..).map(|n| format!("{other}{n}"));
        let of_both = keys.filter(move |key| cluster.owners(key) == ["a", other]);
        of_both.take(4).collect::<Vec<_>>()
    });
    let [first, second] = others;
    let keys: Vec<String> = first
        .into_iter()
        .zip(second)
        .flat_map(<[_; 2]>::from)
        .collect();
    for key in &keys {
        put(&cluster.store("a"), "b", key, &bytes(1, 50_000)).unwrap();
    }
    keys
}

fn delete_all(store: &Store, keys: &[String]) -> Vec<Result<(), Error>> {
    let all = keys.iter().map(|key| ToDelete { key, version: None });
    let results = store.delete_many("b", &all.collect::<Vec<_>>()).unwrap();
    results.into_iter().map(|done| done.map(drop)).collect()
}

#[test]
fn deletions_on_several_groups_of_replicas_succeed_and_fail_on_their_own() {
    let cluster = Cluster::with(2, Durability::None);
    let store = cluster.store("a");
    let keys = keys_of_two_groups(&cluster);
    let files = || object_files(cluster.dirs[0].path()).len();
    assert_eq!(files(), 8);
    cluster.stop("c");
    let mut all = keys.clone();
    all.push("b-none".into());
    for (key, done) in all.iter().zip(delete_all(&store, &all)) {
        match cluster.owners(key) {
            owners if owners == ["a", "b"] => assert!(done.is_ok(), "{key}: {done:?}"),
            owners if owners == ["a", "c"] => {
                assert!(
                    matches!(done, Err(Error::Unreplicated { .. })),
                    "{key}: {done:?}"
                );
            }
            _ => assert!(matches!(done, Err(Error::NotPrimary)), "{key}: {done:?}"),
        }
        let is_there = store.get("b", key).unwrap().is_some();
        assert_eq!(is_there, key.starts_with('c'), "{key}");
    }
    // Not only when the store is opened again.
    assert_eq!(files(), 4);
}

#[test]
fn a_key_that_cannot_be_deleted_now_keeps_no_other_one() {
    let cluster = Cluster::with(2, Durability::None);
    let store = cluster.store("a");
    let keys = keys_of_two_groups(&cluster);
    let stuck = &keys[4];
    // The outcome of this change is not known yet.
    let stamp = store.head("b", stuck).unwrap().unwrap().stamp;
    let open = Prepare {
        epoch: 1,
        life: Stamp::NONE,
        stamp: Stamp {
            time_us: stamp.time_us + 1,
            ..stamp
        },
        changes: vec![ScopedChange {
            scope: Scope::object("b", stuck),
            before: Some(stamp),
            change: Change::Remove,
        }],
    };
    store
        .open_changes()
        .begin_prepare(open)
        .unwrap()
        .prepare()
        .unwrap();
    for (key, done) in keys.iter().zip(delete_all(&store, &keys)) {
        let is_gone = store.get("b", key).unwrap().is_none();
        assert_eq!(is_gone, key != stuck, "{key}");
        match is_gone {
            true => done.unwrap(),
            false => assert!(matches!(done, Err(Error::Unsettled)), "{done:?}"),
        }
    }
}
