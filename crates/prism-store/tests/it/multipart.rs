//! Uploads in parts, conditions and sealed buckets.

use std::{
    path::Path,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use crate::common::{StoreExt, bytes, meta, object_files, put, read};
use prism_store::{
    Body, Bucket, Condition, Config, Error, Object, ObjectMeta, PARTS_MAX, Part, Parts, Position,
    Proof, Segment, Stamp, Step, Store, ToDelete, UploadId, UploadName,
};

const PART: usize = 100_000;

fn open(dir: &Path) -> Store {
    let config = Config {
        reserve_bytes: 0,
        ..Config::default()
    };
    Store::open(dir, config).unwrap()
}

fn with_bucket() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 1).unwrap();
    (dir, store)
}

fn name(key: &str, id: UploadId) -> UploadName<'_> {
    let bucket = "b";
    UploadName { bucket, key, id }
}

fn put_part(store: &Store, name: UploadName<'_>, number: u16, data: &[u8]) -> Result<(), Error> {
    let mut writer = store
        .uploads()
        .begin_part(name, number, Some(data.len() as u64))?;
    writer.write(data)?;
    writer.commit(meta(data)).map(drop)
}

fn parts(store: &Store, name: UploadName<'_>) -> Vec<Part> {
    store.uploads().parts(name, 0, usize::MAX).unwrap().0
}

fn complete(store: &Store, name: UploadName<'_>, parts: &[Part]) -> Result<u64, Error> {
    let seen: Vec<_> = parts.iter().map(|p| (p.number, p.version)).collect();
    let meta = ObjectMeta {
        etag: "whole".into(),
        ..ObjectMeta::default()
    };
    let committed = store.uploads().complete(name, &seen, meta, None, None)?;
    Ok(committed.len)
}

/// An object of parts 1, 3 and 4; part 2 is sent and left out.
fn make(store: &Store, key: &str) -> Vec<u8> {
    let id = store.uploads().create("b", key, meta(b"upload")).unwrap();
    let mut whole = Vec::new();
    for (number, len) in [(4, 17), (1, PART), (2, PART), (3, PART + 1)] {
        put_part(store, name(key, id), number, &bytes(number.into(), len)).unwrap();
    }
    let mut seen = parts(store, name(key, id));
    assert_eq!(
        seen.iter().map(|p| p.number).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    seen.remove(1);
    for (number, len) in [(1, PART), (3, PART + 1), (4, 17)] {
        whole.extend_from_slice(&bytes(number, len));
    }
    assert_eq!(
        complete(store, name(key, id), &seen).unwrap(),
        whole.len() as u64
    );
    whole
}

fn opened(object: Arc<Object>) -> Parts {
    match Arc::into_inner(object).unwrap().body {
        Body::Parts(parts) => parts,
        other => panic!("{other:?}"),
    }
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_object_of_parts_is_their_bytes_in_order_and_survives_reopening() {
    let (dir, store) = with_bucket();
    let whole = make(&store, "k");
    let check = |store: &Store| {
        let object = store.get("b", "k").unwrap().unwrap();
        assert_eq!(
            (object.len, object.meta.etag.as_str()),
            (whole.len() as u64, "whole")
        );
        assert!(read(object) == whole);
        assert_eq!(store.verify("b", "k").unwrap().unwrap(), whole.len() as u64);
        assert_eq!(
            store.list("b", "", "", 9).unwrap()[0].len,
            whole.len() as u64
        );
    };
    check(&store);
    assert_eq!(
        object_files(dir.path()).len(),
        3,
        "the part left out is gone"
    );
    drop(store);
    let store = open(dir.path());
    check(&store);
    assert_eq!(
        (store.recovery().files, store.recovery().orphans_removed),
        (3, 0)
    );
    assert_eq!(store.recovery().dangling, 0);
    store.delete("b", "k").unwrap();
    assert!(object_files(dir.path()).is_empty());
    store.delete_bucket("b").unwrap();
}

#[test]
fn any_range_lies_where_its_bytes_are() {
    let (_dir, store) = with_bucket();
    let whole = make(&store, "k");
    let parts = opened(store.get("b", "k").unwrap().unwrap());
    assert_eq!(parts.count(), 3);
    let part = PART as u64;
    assert_eq!(parts.range_of(1), Some(part..2 * part + 1));
    assert_eq!(parts.range_of(3), None);
    let segment = |index, offset, len| Segment { index, offset, len };
    assert_eq!(
        parts.segments(part - 1, part + 3),
        [
            segment(0, part - 1, 1),
            segment(1, 0, part + 1),
            segment(2, 0, 1)
        ]
    );
    assert_eq!(parts.segments(2 * part + 18, u64::MAX), []);
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let from = rng.usize(..whole.len());
        let to = rng.usize(from..=whole.len());
        let covered = parts.segments(from as u64, (to - from) as u64);
        assert_eq!(
            covered.iter().map(|s| s.len).sum::<u64>(),
            (to - from) as u64
        );
        let mut at = from as u64;
        for segment in covered {
            let start = parts.range_of(segment.index).unwrap().start;
            assert_eq!(start + segment.offset, at);
            at += segment.len;
        }
    }
}

#[test]
fn a_part_sent_again_replaces_the_first_and_an_old_view_of_it_is_refused() {
    let (dir, store) = with_bucket();
    let id = store.uploads().create("b", "k", meta(b"")).unwrap();
    put_part(&store, name("k", id), 1, &bytes(1, PART)).unwrap();
    let old = parts(&store, name("k", id));
    put_part(&store, name("k", id), 1, &bytes(2, PART)).unwrap();
    assert_eq!(object_files(dir.path()).len(), 1);
    let refused = complete(&store, name("k", id), &old);
    assert!(matches!(refused, Err(Error::PartChanged)), "{refused:?}");
    assert!(store.get("b", "k").unwrap().is_none());
    complete(&store, name("k", id), &parts(&store, name("k", id))).unwrap();
    assert!(read(store.get("b", "k").unwrap().unwrap()) == bytes(2, PART));
}

#[test]
fn an_upload_that_has_ended_takes_nothing_more() {
    let (dir, store) = with_bucket();
    let id = store.uploads().create("b", "k", meta(b"")).unwrap();
    put_part(&store, name("k", id), 1, &bytes(1, PART)).unwrap();
    let mut late = store.uploads().begin_part(name("k", id), 2, None).unwrap();
    late.write(&bytes(2, PART)).unwrap();
    store.uploads().abort(name("k", id)).unwrap();
    assert!(matches!(late.commit(meta(b"")), Err(Error::NoSuchUpload)));
    assert!(object_files(dir.path()).is_empty());
    let again = store.uploads().abort(name("k", id));
    assert!(matches!(again, Err(Error::NoSuchUpload)));
    assert!(matches!(
        complete(&store, name("k", id), &[]),
        Err(Error::NoSuchUpload)
    ));
    let other = store.uploads().create("b", "k", meta(b"")).unwrap();
    let wrong_key = store
        .uploads()
        .begin_part(name("other", other), 1, None)
        .err();
    assert!(matches!(wrong_key, Some(Error::NoSuchUpload)));
    for number in [0, PARTS_MAX + 1] {
        assert!(
            store
                .uploads()
                .begin_part(name("k", other), number, None)
                .is_err()
        );
    }
}

#[test]
fn a_reader_of_parts_goes_on_reading_what_was_replaced_and_its_files_go_then() {
    let (dir, store) = with_bucket();
    let whole = make(&store, "k");
    let first = store.get("b", "k").unwrap().unwrap();
    let second = store.get("b", "k").unwrap().unwrap();
    put(&store, "b", "k", b"small").unwrap();
    assert_eq!(object_files(dir.path()).len(), 3);
    assert!(read(first) == whole);
    assert_eq!(object_files(dir.path()).len(), 3);
    assert!(read(second) == whole);
    eventually("the files are gone", || object_files(dir.path()).is_empty());
    assert_eq!(read(store.get("b", "k").unwrap().unwrap()), b"small");
}

#[test]
fn parts_of_one_upload_from_many_threads_share_flushes() {
    let (_dir, store) = with_bucket();
    let id = store.uploads().create("b", "k", meta(b"")).unwrap();
    let before = store.mark().commits;
    let all_here = Barrier::new(8);
    thread::scope(|scope| {
        for t in 0..8_u16 {
            let (store, all_here) = (&store, &all_here);
            scope.spawn(move || {
                all_here.wait();
                for n in 0..25 {
                    let number = t * 25 + n + 1;
                    put_part(store, name("k", id), number, &bytes(number.into(), 20_000)).unwrap();
                }
            });
        }
    });
    let batches = store.mark().commits - before;
    assert!(batches < 180, "{batches}");
    let seen = parts(&store, name("k", id));
    assert_eq!(seen.len(), 200);
    let (page, more) = store.uploads().parts(name("k", id), 150, 10).unwrap();
    assert_eq!((page[0].number, page.len(), more), (151, 10, true));
    complete(&store, name("k", id), &seen).unwrap();
    let wanted: Vec<u8> = (1..=200).flat_map(|n| bytes(n, 20_000)).collect();
    assert!(read(store.get("b", "k").unwrap().unwrap()) == wanted);
}

#[test]
fn uploads_are_listed_by_key_and_age_from_anywhere() {
    let (_dir, store) = with_bucket();
    store.create_bucket("c", 1).unwrap();
    store.uploads().create("c", "other", meta(b"")).unwrap();
    let create = |key: &str, ms| {
        let created = ObjectMeta {
            created_ms: ms,
            ..ObjectMeta::default()
        };
        (
            key.to_owned(),
            store.uploads().create("b", key, created).unwrap(),
        )
    };
    let mut made = vec![
        create("a/1", 5),
        create("a/1", 6),
        create("a/1\0", 1),
        create("b", 2),
    ];
    made.push(create("a/1", 7));
    made.sort_by_key(|(key, id)| (key.clone(), *id));
    let all = |prefix: &str, after: Option<(&str, Option<UploadId>)>, max| {
        let (found, more) = store.uploads().list("b", prefix, after, max).unwrap();
        let found: Vec<_> = found.into_iter().map(|u| (u.key, u.id)).collect();
        (found, more)
    };
    assert_eq!(all("", None, 9), (made.clone(), false));
    assert_eq!(all("a", None, 2), (made[..2].to_vec(), true));
    assert_eq!(all("", Some(("a/1", None)), 9).0, made[3..]);
    assert_eq!(all("", Some(("a/1", Some(made[0].1))), 9).0, made[1..]);
    assert_eq!(all("b", Some(("a", None)), 9).0, made[4..]);
}

#[test]
fn a_scan_steps_over_what_begins_alike() {
    let (_dir, store) = with_bucket();
    for key in ["a", "d/1", "d/\u{10ffff}\u{10ffff}", "d0", "e/1", "e/2"] {
        put(&store, "b", key, b"").unwrap();
    }
    let seen = |begin, prefix: &str| {
        let mut seen = Vec::new();
        let visit = |entry: prism_store::Entry| {
            let folder = entry.key.find('/').map(|end| entry.key[..=end].to_owned());
            seen.push(entry.key);
            folder.map_or(Step::Entry, Step::Behind)
        };
        store.scan("b", prefix, begin, visit).unwrap();
        seen
    };
    assert_eq!(seen(Position::Start, ""), ["a", "d/1", "d0", "e/1"]);
    assert_eq!(seen(Position::Behind("d/"), ""), ["d0", "e/1"]);
    assert_eq!(seen(Position::After("e/1"), ""), ["e/2"]);
    assert_eq!(seen(Position::Behind("a"), "d0"), ["d0"]);
}

#[test]
fn of_many_who_create_a_key_under_condition_exactly_one_does() {
    let (dir, store) = with_bucket();
    let store = Arc::new(store);
    let all_here = Barrier::new(8);
    let won: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let (store, all_here) = (&store, &all_here);
                scope.spawn(move || {
                    let mut writer = store.begin_put("b", "k", None).unwrap();
                    writer.write(&bytes(n, 30_000)).unwrap();
                    all_here.wait();
                    let absent = Box::new(|current: Option<&ObjectMeta>| current.is_none());
                    let commit = writer.ready(meta(&bytes(n, 30_000)), Some(absent));
                    match commit.unwrap().commit() {
                        Ok(_) => 1,
                        Err(Error::ConditionFailed { exists: true }) => 0,
                        Err(error) => panic!("{error}"),
                    }
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!((won, object_files(dir.path()).len()), (1, 1));
    let never = || -> Condition { Box::new(|_: Option<&ObjectMeta>| false) };
    let delete_if = |key: &str, condition| {
        let deletion = ToDelete { key, version: None };
        store.delete_version("b", deletion, Some(condition))
    };
    let kept = delete_if("k", never());
    assert!(matches!(kept, Err(Error::ConditionFailed { exists: true })));
    let nothing = delete_if("x", never());
    assert!(matches!(
        nothing,
        Err(Error::ConditionFailed { exists: false })
    ));
    delete_if("k", Box::new(|meta| meta.is_some())).unwrap();
    assert!(store.head("b", "k").unwrap().is_none());
}

#[test]
fn a_bucket_that_is_being_deleted_takes_nothing_in_and_goes_only_when_it_is_empty() {
    let (_dir, store) = with_bucket();
    let mut early = store.begin_put("b", "k", None).unwrap();
    early.write(b"x").unwrap();
    let id = store.uploads().create("b", "k", meta(b"")).unwrap();
    put_part(&store, name("k", id), 1, b"part").unwrap();
    let known = store.buckets().record("b").unwrap().unwrap();
    let later = |time_us| Stamp {
        time_us: known.stamp.time_us + time_us,
        ..known.stamp
    };
    let deleting = Bucket::begin_deletion(Some(&known), later(1)).unwrap();
    store
        .buckets()
        .accept_record("b", &deleting, Proof::TRUSTED)
        .unwrap();
    store.buckets().check_deletable("b", |_| true).unwrap();
    assert!(matches!(early.commit(meta(b"x")), Err(Error::Busy)));
    assert!(matches!(put(&store, "b", "k", b"x"), Err(Error::Busy)));
    assert!(matches!(
        store.uploads().create("b", "k", meta(b"")),
        Err(Error::Busy)
    ));
    let seen = parts(&store, name("k", id));
    assert!(matches!(
        complete(&store, name("k", id), &seen),
        Err(Error::Busy)
    ));
    assert!(matches!(store.delete_bucket("b"), Err(Error::Busy)));
    // The bucket lives on with all of its objects.
    let kept = deleting.end_deletion(later(2), false);
    store
        .buckets()
        .accept_record("b", &kept, Proof::TRUSTED)
        .unwrap();
    assert_eq!(parts(&store, name("k", id)).len(), 1);
    put(&store, "b", "k", b"x").unwrap();
    assert!(matches!(store.delete_bucket("b"), Err(Error::NotEmpty)));
    let all = ["k", "k", "none"].map(|key| ToDelete { key, version: None });
    let deleted = store.delete_many("b", &all).unwrap();
    assert!(deleted.iter().all(|done| matches!(done, Ok(None))));
    store.configure_bucket("b", "cors", "x").unwrap();
    store.delete_bucket("b").unwrap();
    assert!(!store.buckets().has("b"));
    store.create_bucket("b", 1).unwrap();
    assert_eq!(store.buckets().document("b", "cors").unwrap(), None);
    assert!(store.uploads().list("b", "", None, 9).unwrap().0.is_empty());
}

#[test]
fn metadata_changes_without_touching_the_bytes() {
    let (_dir, store) = with_bucket();
    let whole = make(&store, "k");
    let object = store.get("b", "k").unwrap().unwrap();
    let change = |meta: &mut ObjectMeta| meta.user.push(("new".into(), "1".into()));
    store.change_meta("b", "k", None, change).unwrap();
    assert!(read(object) == whole);
    let object = store.get("b", "k").unwrap().unwrap();
    assert_eq!(object.meta.user, [("new".to_owned(), "1".to_owned())]);
    assert!(read(object) == whole);
    assert!(matches!(
        store.change_meta("b", "x", None, |_| {}),
        Err(Error::NoSuchObject)
    ));
    assert!(matches!(
        store.change_meta("c", "x", None, |_| {}),
        Err(Error::NoSuchBucket)
    ));
    let grow = |meta: &mut ObjectMeta| meta.user.push(("x".into(), "y".repeat(20_000)));
    assert!(matches!(
        store.change_meta("b", "k", None, grow),
        Err(Error::MetaTooLarge)
    ));
}

#[test]
fn idle_uploads_are_those_to_which_nothing_has_come_since() {
    let (_dir, store) = with_bucket();
    let at = |created_ms| ObjectMeta {
        created_ms,
        ..ObjectMeta::default()
    };
    let begin = |key: &str, begun, part: Option<u64>| {
        let id = store.uploads().create("b", key, at(begun)).unwrap();
        if let Some(came) = part {
            let writer = store
                .uploads()
                .begin_part(name(key, id), 1, Some(0))
                .unwrap();
            writer.commit(at(came)).unwrap();
        }
        id
    };
    let old = begin("old", 100, None);
    let filled = begin("old", 101, Some(499));
    begin("old", 102, Some(500));
    begin("young", 500, None);
    let last = begin("z", 1, Some(2));
    let mut found = Vec::new();
    let mut after: Option<(String, UploadId)> = None;
    loop {
        let begin = after.as_ref().map(|(key, id)| (key.as_str(), Some(*id)));
        let (idle, next) = store.uploads().list_idle("b", 500, begin, 2).unwrap();
        found.extend(idle.into_iter().map(|(_, id)| id));
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(found, [old, filled, last]);
}
