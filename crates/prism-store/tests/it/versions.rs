//! Versions of objects after random writes and deletions, compared with a model, also after the
//! store was opened again.

use std::{collections::BTreeMap, sync::Arc};

use crate::common::{StoreExt, bytes, meta, object_files, put, read, usage::check_usage};
use prism_store::{
    Config, Entry, Error, Position, Removed, Step, Store, ToDelete, UploadName, VersionId,
    VersionPosition, Versioning,
};

/// Changes of one run of the comparison, and runs.
const CHANGES: usize = 150;
const RUNS: u64 = 3;

fn open(dir: &std::path::Path) -> Store {
    let config = Config {
        durability: prism_store::Durability::None,
        reserve_bytes: 0,
        ..Config::default()
    };
    Store::open(dir, config).unwrap()
}

fn versioned() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 1).unwrap();
    store.set_versioning("b", Versioning::Enabled).unwrap();
    (dir, store)
}

fn list(store: &Store) -> Vec<Entry> {
    let mut all = Vec::new();
    let begin = VersionPosition::Key(Position::Start);
    let visit = |entry| {
        all.push(entry);
        Step::Entry
    };
    store.scan_versions("b", "", begin, visit).unwrap();
    all
}

fn delete(store: &Store, key: &str, version: Option<VersionId>) -> Option<Removed> {
    let deletion = ToDelete { key, version };
    store.delete_version("b", deletion, None).unwrap()
}

fn get(store: &Store, key: &str, version: Option<VersionId>) -> Option<Vec<u8>> {
    store.get_version("b", key, version).unwrap().map(read)
}

#[test]
fn a_bucket_that_never_kept_versions_has_the_null_version_of_each_object() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 1).unwrap();
    assert_eq!(put(&store, "b", "k", b"one").unwrap().version, None);
    assert_eq!(
        store.buckets().get("b").unwrap().versioning,
        Versioning::Never
    );
    assert_eq!(get(&store, "k", Some(VersionId::Null)).unwrap(), b"one");
    let listed = list(&store);
    assert_eq!(listed.len(), 1);
    assert!(listed[0].is_latest && listed[0].id == VersionId::Null);
    assert_eq!(store.delete_marker("b", "k").unwrap(), None);
    delete(&store, "k", Some(VersionId::Null)).unwrap();
    assert!(list(&store).is_empty());
    assert_eq!(delete(&store, "k", None), None);
}

#[test]
fn a_delete_marker_hides_an_object_until_it_is_deleted_itself() {
    let (_dir, store) = versioned();
    let first = put(&store, "b", "k", b"one").unwrap().version;
    let marker = delete(&store, "k", None).unwrap();
    assert!(marker.is_marker);
    assert_eq!(get(&store, "k", None), None);
    assert_eq!(store.delete_marker("b", "k").unwrap(), Some(marker.version));
    assert_eq!(get(&store, "k", first).unwrap(), b"one");
    let of_marker = store.get_version("b", "k", Some(marker.version));
    assert!(matches!(of_marker, Err(Error::IsDeleteMarker)));
    assert!(matches!(store.delete_bucket("b"), Err(Error::NotEmpty)));
    let gone = delete(&store, "k", Some(marker.version)).unwrap();
    assert_eq!(gone, marker);
    assert_eq!(get(&store, "k", None).unwrap(), b"one");
    delete(&store, "k", first).unwrap();
    store.delete_bucket("b").unwrap();
}

#[test]
fn what_nobody_has_asked_to_delete_is_kept_and_what_was_deleted_leaves_no_file() {
    let (dir, store) = versioned();
    let large = bytes(1, 200_000);
    let ids: Vec<_> = (0..3)
        .map(|_| put(&store, "b", "k", &large).unwrap().version)
        .collect();
    assert_eq!(object_files(dir.path()).len(), 3);
    for id in &ids {
        assert!(get(&store, "k", *id).unwrap() == large);
    }
    // An open version stays readable.
    let opened = store.get_version("b", "k", ids[1]).unwrap().unwrap();
    let every = ids.iter().map(|id| ToDelete {
        key: "k",
        version: *id,
    });
    let removed = store.delete_many("b", &every.collect::<Vec<_>>()).unwrap();
    assert_eq!(
        removed
            .iter()
            .map(|r| r.as_ref().unwrap().map(|r| r.version))
            .collect::<Vec<_>>(),
        ids
    );
    assert!(object_files(dir.path()).is_empty());
    assert!(read(opened) == large);
    let missing = store.get_version("b", "k", ids[0]);
    assert!(matches!(missing, Err(Error::NoSuchVersion)));
    // A missing version is answered as deleted.
    assert!(!delete(&store, "k", ids[0]).unwrap().is_marker);
}

#[test]
fn a_condition_is_weighed_against_the_version_that_it_is_about() {
    let (_dir, store) = versioned();
    let first = put(&store, "b", "k", b"one").unwrap().version;
    put(&store, "b", "k", b"two").unwrap();
    let deletion = ToDelete {
        key: "k",
        version: first,
    };
    let etag = meta(b"two").etag;
    let is_two = Box::new(move |found: Option<&prism_store::ObjectMeta>| {
        found.is_some_and(|meta| meta.etag == etag)
    });
    let refused = store.delete_version("b", deletion, Some(is_two.clone()));
    assert!(matches!(
        refused,
        Err(Error::ConditionFailed { exists: true })
    ));
    let deletion = ToDelete {
        key: "k",
        version: None,
    };
    let marker = store.delete_version("b", deletion, Some(is_two)).unwrap();
    assert!(marker.unwrap().is_marker);
}

#[test]
fn metadata_of_one_version_changes_and_its_place_does_not() {
    let (_dir, store) = versioned();
    let first = put(&store, "b", "k", b"one").unwrap().version;
    put(&store, "b", "k", b"two").unwrap();
    let before: Vec<_> = list(&store).iter().map(|entry| entry.id).collect();
    for version in [first, None] {
        let change =
            |meta: &mut prism_store::ObjectMeta| meta.user = vec![("x".into(), "y".into())];
        store.change_meta("b", "k", version, change).unwrap();
        let head = store.head_version("b", "k", version).unwrap().unwrap();
        assert_eq!(head.meta.user, [("x".to_owned(), "y".to_owned())]);
    }
    let after: Vec<_> = list(&store).iter().map(|entry| entry.id).collect();
    assert_eq!(before, after);
    let marker = delete(&store, "k", None).unwrap().version;
    let refused = store.change_meta("b", "k", Some(marker), |_| {});
    assert!(matches!(refused, Err(Error::IsDeleteMarker)));
}

/// The expected versions of a key, the newest last.
type History = Vec<(VersionId, Option<Vec<u8>>)>;

/// The expected versions of all keys.
pub(crate) type Wanted = BTreeMap<String, History>;

/// One random change of a store and of the model. `store_of` is the primary of a key, and `say`
/// sets the versioning of all stores.
pub(crate) fn change(
    store_of: &dyn Fn(&str) -> Arc<Store>,
    say: &dyn Fn(Versioning),
    wanted: &mut Wanted,
    versioning: &mut Versioning,
    rng: &mut fastrand::Rng,
) {
    let key = ["a", "a\0", "a\0b", "a/1", "a/2", "b"][rng.usize(..6)].to_owned();
    let store = &store_of(&key);
    let history = wanted.entry(key.clone()).or_default();
    let replace = |history: &mut History| {
        if *versioning != Versioning::Enabled {
            history.retain(|(id, _)| *id != VersionId::Null);
        }
    };
    match rng.u32(..12) {
        9 if !history.is_empty() => {
            let (id, body) = &history[rng.usize(..history.len())];
            let user = vec![("tag".to_owned(), rng.u64(..).to_string())];
            let tag = move |meta: &mut prism_store::ObjectMeta| meta.user = user;
            let done = store.change_meta("b", &key, Some(*id), tag);
            match body {
                Some(_) => assert_eq!(done.unwrap().unwrap_or(VersionId::Null), *id),
                None => assert!(matches!(done, Err(Error::IsDeleteMarker))),
            }
        }
        10 => {
            let body = bytes(rng.u64(..), 20_000);
            let id = put_in_parts(store, &key, &body).unwrap_or(VersionId::Null);
            replace(history);
            history.push((id, Some(body)));
        }
        0..5 => {
            let body = bytes(rng.u64(..), rng.choice([0, 5, 100_000]).unwrap());
            let id = put(store, "b", &key, &body).unwrap().version;
            replace(history);
            history.push((id.unwrap_or(VersionId::Null), Some(body)));
        }
        5..7 => {
            let removed = delete(store, &key, None);
            replace(history);
            assert_eq!(removed.is_none(), *versioning == Versioning::Never);
            history.extend(removed.map(|removed| (removed.version, None)));
        }
        7..9 if !history.is_empty() => {
            let (id, body) = history.remove(rng.usize(..history.len()));
            let removed = delete(store, &key, Some(id)).unwrap();
            let is_marker = body.is_none();
            assert_eq!(
                removed,
                Removed {
                    version: id,
                    is_marker
                }
            );
        }
        _ => {
            *versioning = rng
                .choice([Versioning::Enabled, Versioning::Suspended])
                .unwrap();
            say(*versioning);
        }
    }
}

/// An object of two parts.
fn put_in_parts(store: &Store, key: &str, body: &[u8]) -> Option<VersionId> {
    let id = store.uploads().create("b", key, meta(&[])).unwrap();
    let name = UploadName {
        bucket: "b",
        key,
        id,
    };
    for (number, data) in [(1, &body[..7]), (2, &body[7..])] {
        let mut writer = store.uploads().begin_part(name, number, None).unwrap();
        writer.write(data).unwrap();
        writer.commit(meta(data)).unwrap();
    }
    let (parts, _) = store.uploads().parts(name, 0, 2).unwrap();
    let parts: Vec<_> = parts.iter().map(|p| (p.number, p.version)).collect();
    let done = store
        .uploads()
        .complete(name, &parts, meta(body), None, None);
    done.unwrap().version
}

/// Files that the objects of these lengths have.
pub(crate) fn files_of(wanted: &Wanted) -> usize {
    let bodies = wanted
        .values()
        .flatten()
        .filter_map(|(_, body)| body.as_ref());
    let files = bodies.map(|body| match body.len() {
        20_000 => 2,
        len => usize::from(len > 70_000),
    });
    files.sum()
}

/// Compares all answers of a store with the model.
pub(crate) fn compare(store: &Store, wanted: &Wanted) {
    let mut entries = Vec::new();
    for (key, history) in wanted {
        let current = history.last().and_then(|(_, body)| body.clone());
        assert_eq!(get(store, key, None), current, "{key:?}");
        let marker = history.last().filter(|(_, body)| body.is_none());
        let marker = marker.map(|(id, _)| *id);
        assert_eq!(store.delete_marker("b", key).unwrap(), marker, "{key:?}");
        for (n, (id, body)) in history.iter().rev().enumerate() {
            entries.push((key.clone(), *id, n == 0, body.is_none()));
            match body {
                Some(body) => assert!(get(store, key, Some(*id)).unwrap() == *body),
                None => assert!(matches!(
                    store.get_version("b", key, Some(*id)),
                    Err(Error::IsDeleteMarker)
                )),
            }
        }
    }
    let found = list(store);
    let short = |e: &Entry| (e.key.clone(), e.id, e.is_latest, e.is_marker);
    let listed: Vec<_> = found.iter().map(short).collect();
    assert_eq!(listed, entries);
    check_usage(store, "b", "after random changes");
    pages(store, &listed);
}

/// Lists the versions one by one, each page from the end of the last one, and by folders.
fn pages(store: &Store, listed: &[(String, VersionId, bool, bool)]) {
    let mut begin: Option<(String, VersionId)> = None;
    for wanted in listed {
        let at = match &begin {
            None => VersionPosition::Key(Position::Start),
            Some((key, id)) => VersionPosition::AfterVersion(key, *id),
        };
        let mut first = None;
        let visit = |entry| {
            first = Some(entry);
            Step::End
        };
        store.scan_versions("b", "", at, visit).unwrap();
        let first: Entry = first.unwrap();
        assert_eq!(
            (&first.key, first.id, first.is_latest),
            (&wanted.0, wanted.1, wanted.2)
        );
        begin = Some((first.key, first.id));
    }
    for prefix in ["a\0", "a/", "a"] {
        let mut rest = Vec::new();
        let begin = VersionPosition::Key(Position::Behind(prefix));
        let visit = |entry: Entry| {
            rest.push((entry.key, entry.id));
            Step::Entry
        };
        store.scan_versions("b", "", begin, visit).unwrap();
        let wanted = listed
            .iter()
            .filter(|(key, ..)| key.as_str() > prefix && !key.starts_with(prefix));
        let wanted: Vec<_> = wanted.map(|(key, id, ..)| (key.clone(), *id)).collect();
        assert_eq!(rest, wanted, "behind {prefix:?}");
    }
}

#[test]
fn random_changes_leave_what_they_should_also_when_opened_anew() {
    for seed in 0..RUNS {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(open(dir.path()));
        store.create_bucket("b", 1).unwrap();
        let (mut wanted, mut versioning) = (BTreeMap::new(), Versioning::Never);
        let mut rng = fastrand::Rng::with_seed(seed);
        for n in 0..CHANGES {
            let store_of = |_: &str| Arc::clone(&store);
            let say = |v| store.set_versioning("b", v).unwrap();
            change(&store_of, &say, &mut wanted, &mut versioning, &mut rng);
            if n % 10 == 0 {
                compare(&store, &wanted);
            }
        }
        drop(store);
        let store = open(dir.path());
        let report = store.recovery();
        assert_eq!(
            (report.orphans_removed, report.dangling),
            (0, 0),
            "seed {seed}"
        );
        assert_eq!(store.buckets().get("b").unwrap().versioning, versioning);
        compare(&store, &wanted);
        let files = object_files(dir.path()).len();
        assert_eq!(files, files_of(&wanted), "seed {seed}");
    }
}
