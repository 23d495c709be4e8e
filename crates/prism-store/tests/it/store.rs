//! The promises of a store to one process that does not crash.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use crate::common::{StoreExt, bytes, meta, object_files, put, read};
use prism_store::{BLOCK_LEN, Body, Config, Durability, Error, OpenError, Store};

const KIB: usize = 1024;

fn config() -> Config {
    Config {
        reserve_bytes: 0,
        ..Config::default()
    }
}

fn open(dir: &Path) -> Store {
    Store::open(dir, config()).unwrap()
}

fn with_bucket() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 1).unwrap();
    (dir, store)
}

#[test]
fn a_store_keeps_its_identity_and_has_it_alone() {
    let (dir, store) = with_bucket();
    let identity = store.identity();
    drop(store);
    assert_eq!(open(dir.path()).identity(), identity);
    let (_other, store) = with_bucket();
    assert!(store.identity() != identity && store.identity() != 0);
}

#[test]
fn objects_of_every_size_come_back_as_they_were_and_survive_reopening() {
    let (dir, store) = with_bucket();
    let block = usize::try_from(BLOCK_LEN).unwrap();
    let sizes = [
        0,
        1,
        16 * KIB,
        16 * KIB + 1,
        block - 1,
        block,
        block + 1,
        5 * block + 3,
    ];
    for len in sizes {
        put(&store, "b", &format!("o{len}"), &bytes(len as u64, len)).unwrap();
    }
    let check = |store: &Store| {
        for len in sizes {
            let key = format!("o{len}");
            let object = store.get("b", &key).unwrap().unwrap();
            assert_eq!(object.len, len as u64);
            assert_eq!(object.meta, meta(&bytes(len as u64, len)));
            assert_eq!(matches!(object.body, Body::Inline(_)), len <= 16 * KIB);
            assert_eq!(read(object), bytes(len as u64, len));
            assert_eq!(store.head("b", &key).unwrap().unwrap().len, len as u64);
            let verified = store.verify("b", &key).unwrap();
            assert_eq!(verified, Some(len as u64));
        }
    };
    check(&store);
    drop(store);
    let store = open(dir.path());
    check(&store);
    assert_eq!(store.recovery().files, 5);
    assert_eq!(store.recovery().orphans_removed, 0);
}

#[test]
fn buckets_are_created_once_listed_by_name_and_deleted_when_empty() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("zebra", 26).unwrap();
    store.create_bucket("ant", 1).unwrap();
    assert!(matches!(
        store.create_bucket("ant", 2),
        Err(Error::AlreadyExists)
    ));
    let listed = store.buckets().list().unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|b| (b.name.as_str(), b.created_ms))
        .collect();
    assert_eq!(listed, [("ant", 1), ("zebra", 26)]);
    put(&store, "ant", "k", b"x").unwrap();
    assert!(matches!(store.delete_bucket("ant"), Err(Error::NotEmpty)));
    store.delete("ant", "k").unwrap();
    store.delete_bucket("ant").unwrap();
    assert!(matches!(
        store.delete_bucket("ant"),
        Err(Error::NoSuchBucket)
    ));
    assert!(matches!(
        store.buckets().get("ant"),
        Err(Error::NoSuchBucket)
    ));
    assert_eq!(store.buckets().get("zebra").unwrap().created_ms, 26);
}

#[test]
fn a_missing_object_and_a_missing_bucket_are_told_apart() {
    let (_dir, store) = with_bucket();
    assert!(store.get("b", "k").unwrap().is_none());
    assert!(store.head("b", "k").unwrap().is_none());
    assert!(store.verify("b", "k").unwrap().is_none());
    assert!(!store.delete("b", "k").unwrap());
    assert!(matches!(store.get("c", "k"), Err(Error::NoSuchBucket)));
    assert!(matches!(store.head("c", "k"), Err(Error::NoSuchBucket)));
    assert!(matches!(store.delete("c", "k"), Err(Error::NoSuchBucket)));
    assert!(matches!(
        store.list("c", "", "", 10),
        Err(Error::NoSuchBucket)
    ));
    assert!(matches!(
        store.begin_put("c", "k", None),
        Err(Error::NoSuchBucket)
    ));
}

#[test]
fn names_out_of_bounds_are_refused() {
    let (_dir, store) = with_bucket();
    assert!(matches!(store.get("b", ""), Err(Error::InvalidName(_))));
    assert!(matches!(
        store.get("b", &"k".repeat(1025)),
        Err(Error::InvalidName(_))
    ));
    assert!(matches!(
        store.create_bucket("", 0),
        Err(Error::InvalidName(_))
    ));
    assert!(matches!(
        store.create_bucket(&"b".repeat(64), 0),
        Err(Error::InvalidName(_))
    ));
    assert!(matches!(
        store.list("b", &"p".repeat(70_000), "", 1),
        Err(Error::InvalidName(_))
    ));
    put(&store, "b", &"k".repeat(1024), b"x").unwrap();
}

#[test]
fn overwriting_and_deleting_leave_no_file_behind() {
    let (dir, store) = with_bucket();
    let large = bytes(1, 100 * KIB);
    put(&store, "b", "k", &large).unwrap();
    put(&store, "b", "k", &large).unwrap();
    assert_eq!(object_files(dir.path()).len(), 1);
    put(&store, "b", "k", b"small").unwrap();
    assert_eq!(object_files(dir.path()).len(), 0);
    put(&store, "b", "k", &large).unwrap();
    assert!(store.delete("b", "k").unwrap());
    assert!(!store.delete("b", "k").unwrap());
    assert_eq!(object_files(dir.path()).len(), 0);
    assert!(store.get("b", "k").unwrap().is_none());
    drop(store);
    assert!(open(dir.path()).get("b", "k").unwrap().is_none());
}

#[test]
fn a_reader_goes_on_reading_what_was_overwritten_or_deleted() {
    let (_dir, store) = with_bucket();
    let (old, new) = (bytes(1, 300 * KIB), bytes(2, 200 * KIB));
    put(&store, "b", "k", &old).unwrap();
    let first = store.get("b", "k").unwrap().unwrap();
    put(&store, "b", "k", &new).unwrap();
    let second = store.get("b", "k").unwrap().unwrap();
    store.delete("b", "k").unwrap();
    assert_eq!(read(first), old);
    assert_eq!(read(second), new);
}

#[test]
fn readers_of_a_key_under_overwriting_see_one_whole_version_each() {
    let (_dir, store) = with_bucket();
    let store = Arc::new(store);
    put(&store, "b", "k", &bytes(0, 20 * KIB)).unwrap();
    let writer = {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            for version in 1..=150_u64 {
                // Inline and in files alternately, so that both kinds of look-up race.
                let len = if version % 3 == 0 {
                    KIB
                } else {
                    20 * KIB + version as usize
                };
                put(&store, "b", "k", &bytes(version, len)).unwrap();
            }
        })
    };
    let mut reads = 0;
    while !writer.is_finished() || reads < 100 {
        let object = store.get("b", "k").unwrap().unwrap();
        let etag = object.meta.etag.clone();
        assert_eq!(meta(&read(object)).etag, etag);
        reads += 1;
    }
    writer.join().unwrap();
}

#[test]
fn an_abandoned_or_uncommitted_object_leaves_no_trace() {
    let (dir, store) = with_bucket();
    let mut writer = store.begin_put("b", "k", Some(1 << 20)).unwrap();
    writer.write(&bytes(1, 500 * KIB)).unwrap();
    assert!(store.get("b", "k").unwrap().is_none());
    drop(writer);
    assert_eq!(object_files(dir.path()).len(), 0);
    assert!(store.get("b", "k").unwrap().is_none());
}

#[test]
fn the_announced_length_is_binding() {
    let (dir, store) = with_bucket();
    let writer = store.begin_put("b", "k", Some(3)).unwrap();
    let short = writer.commit(meta(b""));
    assert!(matches!(short, Err(Error::LengthMismatch { .. })));
    for len in [10, 100_000] {
        let mut writer = store.begin_put("b", "k", Some(len)).unwrap();
        writer.write(&bytes(1, len as usize - 1)).unwrap();
        assert!(matches!(
            writer.write(b"xy"),
            Err(Error::LengthMismatch { expected, written }) if expected == len && written == len + 1
        ));
        assert!(matches!(
            writer.commit(meta(b"")),
            Err(Error::LengthMismatch { .. })
        ));
    }
    assert!(matches!(
        store.begin_put("b", "k", Some(u64::MAX)),
        Err(Error::TooLarge)
    ));
    assert_eq!(object_files(dir.path()).len(), 0);
}

#[test]
fn an_object_without_announced_length_is_cut_off_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Config {
        max_object_len: 50_000,
        ..config()
    };
    let store = Store::open(dir.path(), limits).unwrap();
    store.create_bucket("b", 0).unwrap();
    let announced = store.begin_put("b", "k", Some(50_001));
    assert!(matches!(announced, Err(Error::TooLarge)));
    let mut writer = store.begin_put("b", "k", None).unwrap();
    writer.write(&bytes(1, 50_000)).unwrap();
    assert!(matches!(writer.write(b"x"), Err(Error::TooLarge)));
    assert_eq!(writer.commit(meta(&bytes(1, 50_000))).unwrap().len, 50_000);
}

#[test]
fn a_put_into_a_bucket_deleted_meanwhile_fails_and_leaves_nothing() {
    let (dir, store) = with_bucket();
    let mut writer = store.begin_put("b", "k", None).unwrap();
    writer.write(&bytes(1, 100 * KIB)).unwrap();
    store.delete_bucket("b").unwrap();
    assert!(matches!(writer.commit(meta(b"")), Err(Error::NoSuchBucket)));
    assert_eq!(object_files(dir.path()).len(), 0);
    store.create_bucket("b", 1).unwrap();
    assert!(store.get("b", "k").unwrap().is_none());
}

#[test]
fn a_listing_is_ordered_bounded_and_continues_where_it_ended() {
    let (_dir, store) = with_bucket();
    store.create_bucket("b2", 0).unwrap();
    put(&store, "b2", "a/0", b"other bucket").unwrap();
    for key in ["a/1", "a/2", "a/3", "a", "a0", "b/1", "ä"] {
        put(&store, "b", key, key.as_bytes()).unwrap();
    }
    let keys = |prefix: &str, after: &str, max: usize| {
        let page = store.list("b", prefix, after, max).unwrap();
        let keys: Vec<String> = page.into_iter().map(|e| e.key).collect();
        keys.join(" ")
    };
    assert_eq!(keys("", "", 100), "a a/1 a/2 a/3 a0 b/1 ä");
    assert_eq!(keys("a/", "", 100), "a/1 a/2 a/3");
    assert_eq!(keys("a/", "", 2), "a/1 a/2");
    assert_eq!(keys("a/", "a/2", 2), "a/3");
    assert_eq!(keys("a/", "0", 1), "a/1");
    assert_eq!(keys("", "a/3", 2), "a0 b/1");
    assert_eq!(keys("a/", "zzz", 5), "");
    assert_eq!(keys("none", "", 5), "");
    assert_eq!(keys("", "", 0), "");
    let entry = store.list("b", "a/1", "", 1).unwrap().remove(0);
    assert_eq!((entry.len, entry.etag), (3, meta(b"a/1").etag));
}

#[test]
fn a_flipped_byte_in_a_file_is_found_and_located() {
    let (dir, store) = with_bucket();
    put(&store, "b", "k", &bytes(1, 3 << 20)).unwrap();
    let path = object_files(dir.path()).remove(0);
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 2_500_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 2_500_000).unwrap();
    let error = store.verify("b", "k").unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt(what) if what.contains("from 2097152 on")),
        "{error}"
    );
}

#[test]
fn a_shortened_or_missing_file_is_reported_never_served() {
    let (dir, store) = with_bucket();
    put(&store, "b", "short", &bytes(1, 100 * KIB)).unwrap();
    let path = object_files(dir.path()).remove(0);
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(5)
        .unwrap();
    assert!(matches!(store.get("b", "short"), Err(Error::Corrupt(_))));
    assert!(matches!(store.verify("b", "short"), Err(Error::Corrupt(_))));
    for path in object_files(dir.path()) {
        fs::remove_file(path).unwrap();
    }
    assert!(matches!(store.get("b", "short"), Err(Error::Corrupt(_))));
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.recovery().dangling, 1);
    put(&store, "b", "short", b"mended").unwrap();
    assert_eq!(read(store.get("b", "short").unwrap().unwrap()), b"mended");
}

#[test]
fn orphans_are_removed_at_opening_and_foreign_files_are_not() {
    let (dir, store) = with_bucket();
    put(&store, "b", "k", &bytes(1, 100 * KIB)).unwrap();
    drop(store);
    let orphan = dir.path().join("files/00/0000000000000001");
    let foreign = dir.path().join("files/00/readme");
    let misplaced = dir.path().join("files/01/0000000000000001");
    for path in [&orphan, &foreign, &misplaced] {
        fs::write(path, "1234567").unwrap();
    }
    let store = open(dir.path());
    let report = store.recovery();
    assert_eq!(
        (report.files, report.orphans_removed, report.orphan_bytes),
        (1, 1, 7)
    );
    assert_eq!(report.foreign, 2);
    assert!(!orphan.exists() && foreign.exists() && misplaced.exists());
}

#[test]
fn two_stores_cannot_have_one_directory() {
    let (dir, store) = with_bucket();
    assert!(matches!(
        Store::open(dir.path(), config()),
        Err(OpenError::Locked(_))
    ));
    let writer = store.begin_put("b", "k", None).unwrap();
    drop(store);
    // A writer keeps the store open.
    assert!(matches!(
        Store::open(dir.path(), config()),
        Err(OpenError::Locked(_))
    ));
    drop(writer);
    open(dir.path());
}

#[test]
fn object_files_without_metadata_are_not_taken_for_orphans() {
    let (dir, store) = with_bucket();
    put(&store, "b", "k", &bytes(1, 100 * KIB)).unwrap();
    drop(store);
    fs::rename(dir.path().join("db"), dir.path().join("elsewhere")).unwrap();
    let error = Store::open(dir.path(), config()).unwrap_err();
    assert!(matches!(error, OpenError::MetadataMissing(_)));
    fs::rename(dir.path().join("elsewhere"), dir.path().join("db")).unwrap();
    assert!(open(dir.path()).get("b", "k").unwrap().is_some());
}

#[test]
fn a_creation_interrupted_at_any_step_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("LOCK"), "").unwrap();
    fs::write(dir.path().join("FORMAT.new"), "prism-st").unwrap();
    drop(open(dir.path()));
    fs::rename(dir.path().join("db"), dir.path().join("db.new")).unwrap();
    fs::remove_dir_all(dir.path().join("db.new/keyspaces")).unwrap();
    fs::remove_dir(dir.path().join("files/3f")).unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 0).unwrap();
}

#[test]
fn a_store_may_lie_several_new_directories_deep() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("a/b/c");
    drop(open(&dir));
    open(&dir).create_bucket("b", 0).unwrap();
}

#[test]
fn the_reserve_is_kept_free_and_what_is_there_can_be_read_and_deleted() {
    let (dir, store) = with_bucket();
    put(&store, "b", "k", &bytes(1, 100 * KIB)).unwrap();
    drop(store);
    let all = Config {
        reserve_bytes: u64::MAX / 2,
        ..Config::default()
    };
    let store = Store::open(dir.path(), all).unwrap();
    assert!(matches!(
        store.begin_put("b", "k2", None),
        Err(Error::NoSpace)
    ));
    assert!(matches!(store.create_bucket("c", 0), Err(Error::NoSpace)));
    assert_eq!(
        read(store.get("b", "k").unwrap().unwrap()),
        bytes(1, 100 * KIB)
    );
    assert!(store.delete("b", "k").unwrap());
}

/// Below this time a flush is over before another one is needed: the directory lies in memory.
const FLUSH_WORTH_SHARING: Duration = Duration::from_micros(150);

#[test]
fn concurrent_commits_share_flushes() {
    // The build directory is more often on a disk than /tmp.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = Arc::new(open(dir.path()));
    store.create_bucket("b", 1).unwrap();
    let (alone, begun) = (50, Instant::now());
    for i in 0..alone {
        put(&store, "b", &i.to_string(), &bytes(0, 100)).unwrap();
    }
    let one_commit = begun.elapsed() / alone;
    let before = store.mark().commits;
    let (threads, each) = (8, 50);
    let barrier = Arc::new(Barrier::new(threads));
    let workers: Vec<_> = (0..threads)
        .map(|t| {
            let (store, barrier) = (Arc::clone(&store), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                for i in 0..each {
                    put(&store, "b", &format!("{t}/{i}"), &bytes(t as u64, 100)).unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    let batches = store.mark().commits - before;
    println!(
        "{} commits in {batches} flushes; alone one takes {one_commit:?}",
        threads * each
    );
    assert!(
        batches <= (threads * each / 2) as u64 || one_commit < FLUSH_WORTH_SHARING,
        "{batches} flushes of {one_commit:?}"
    );
    assert_eq!(
        store.list("b", "", "", 1000).unwrap().len(),
        threads * each + alone as usize
    );
}

#[test]
fn concurrent_writers_of_one_key_leave_one_whole_object_and_one_file() {
    let (dir, store) = with_bucket();
    let store = Arc::new(store);
    let workers: Vec<_> = (0..6_u64)
        .map(|t| {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                for i in 0..20 {
                    put(&store, "b", "k", &bytes(t * 100 + i, 30 * KIB)).unwrap();
                    if i % 5 == 0 {
                        store.delete("b", "k").unwrap();
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    put(&store, "b", "k", &bytes(7, 30 * KIB)).unwrap();
    assert_eq!(
        read(store.get("b", "k").unwrap().unwrap()),
        bytes(7, 30 * KIB)
    );
    assert_eq!(object_files(dir.path()).len(), 1);
}

#[test]
fn without_fsync_a_clean_close_still_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let fast = Config {
        durability: Durability::None,
        ..config()
    };
    let store = Store::open(dir.path(), fast.clone()).unwrap();
    store.create_bucket("b", 1).unwrap();
    for i in 0..500 {
        put(&store, "b", &format!("k{i}"), &bytes(i, 5000)).unwrap();
    }
    drop(store);
    let store = Store::open(dir.path(), fast).unwrap();
    for i in 0..500 {
        let object = store.get("b", &format!("k{i}")).unwrap().unwrap();
        assert_eq!(read(object), bytes(i, 5000));
    }
}

#[test]
fn each_change_of_a_key_has_a_greater_stamp_also_after_opening_anew() {
    let (dir, store) = with_bucket();
    put(&store, "b", "k", b"1").unwrap();
    let mut last = store.head("b", "k").unwrap().unwrap().stamp;
    store.change_meta("b", "k", None, |_| {}).unwrap();
    let changed = store.get("b", "k").unwrap().unwrap().stamp;
    assert!(changed > last, "{changed} after {last}");
    for data in [&b"2"[..], &bytes(1, 100_000)] {
        put(&store, "b", "k", data).unwrap();
        let stamp = store.head("b", "k").unwrap().unwrap().stamp;
        assert!(stamp > changed && stamp > last);
        last = stamp;
    }
    drop(store);
    let store = Store::open(dir.path(), config()).unwrap();
    assert_eq!(store.head("b", "k").unwrap().unwrap().stamp, last);
    put(&store, "b", "k", b"3").unwrap();
    assert!(store.head("b", "k").unwrap().unwrap().stamp > last);
}
