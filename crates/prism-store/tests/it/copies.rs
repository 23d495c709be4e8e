//! A copy of a store's directory is told from the store by the marks that were reported.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use prism_store::{Config, Store, StoreMark};

use crate::common::{self, StoreExt, copy};

/// Attempts to copy a store that is being written, until one of the copies can be opened.
const COPIES_MAX: usize = 50;
/// Commits in the meantime; far more than there is time for.
const COMMITS_MAX: usize = 50_000;

fn open(dir: &Path) -> Store {
    try_open(dir).unwrap()
}

fn try_open(dir: &Path) -> Option<Store> {
    let config = Config {
        reserve_bytes: 0,
        ..Config::default()
    };
    Store::open(dir, config).ok()
}

fn with_bucket() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket("b", 1).unwrap();
    (dir, store)
}

fn copy_of(dir: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    copy(dir, to.path());
    to
}

/// One commit.
fn put(store: &Store, key: &str) {
    common::put(store, "b", key, b"some bytes").unwrap();
}

#[test]
fn a_store_that_is_restarted_has_lived_all_of_its_marks() {
    let (dir, mut store) = with_bucket();
    let mut marks = vec![store.mark()];
    for round in 0..12 {
        for key in 0..round % 4 {
            put(&store, &format!("{round}/{key}"));
            marks.push(store.mark());
        }
        store.seal_log().unwrap();
        marks.push(store.mark());
        drop(store);
        store = open(dir.path());
        marks.push(store.mark());
        assert!(marks.iter().all(|mark| store.has_lived(mark)), "{marks:?}");
    }
    assert!(marks.is_sorted_by(|a, b| b.may_continue(a)));
    assert_eq!(store.life().openings().len(), 13);
}

#[test]
fn a_mark_counts_every_answered_write_and_an_opening_no_commit_of_its_own() {
    let (dir, store) = with_bucket();
    let before = store.mark();
    put(&store, "k");
    let after = store.mark();
    assert_eq!(after.commits, before.commits + 1);
    let killed = copy_of(dir.path());
    drop(store);
    let store = open(killed.path());
    let found = store.life().openings()[&(after.opening + 1)].commits;
    assert_eq!(found, after.commits);
}

#[test]
fn a_copy_of_a_stopped_store_is_noticed_once_the_original_was_started_again() {
    let (dir, store) = with_bucket();
    put(&store, "k");
    let before = store.mark();
    drop(store);
    let copied = copy_of(dir.path());
    let copy = open(copied.path());
    assert!(copy.has_lived(&before), "nothing was committed since");
    let original = open(dir.path());
    let (of_original, of_copy) = (original.mark(), copy.mark());
    assert_eq!(of_original.store, of_copy.store);
    assert!(original.has_lived(&before));
    assert!(!copy.has_lived(&of_original));
    assert!(!original.has_lived(&of_copy));
}

#[test]
fn a_copy_of_a_running_store_is_noticed_if_commits_followed() {
    let (dir, original) = with_bucket();
    put(&original, "k");
    let copied = copy_of(dir.path());
    let same = original.mark();
    let copy = open(copied.path());
    assert!(copy.has_lived(&same), "nothing was committed since");
    put(&original, "later");
    let later = original.mark();
    assert!(!copy.has_lived(&later));
    assert!(copy.has_lived(&same));
    assert!(original.has_lived(&same) && original.has_lived(&later));
}

#[test]
fn a_copy_without_its_log_tag_is_noticed_too() {
    let (dir, original) = with_bucket();
    let copied = copy_of(dir.path());
    fs::remove_file(copied.path().join("LOGTAG")).unwrap();
    put(&original, "the only commit since");
    let copy = open(copied.path());
    assert!(!copy.has_lived(&original.mark()));
}

#[test]
fn a_copy_that_made_more_commits_than_the_original_is_noticed() {
    let (dir, original) = with_bucket();
    let copied = copy_of(dir.path());
    put(&original, "of the original");
    let mark = original.mark();
    let mut copy = open(copied.path());
    for round in 0..3 {
        for key in 0..10 {
            put(&copy, &format!("{round}/{key}"));
        }
        assert!(copy.mark().commits > mark.commits);
        assert!(!copy.has_lived(&mark), "round {round}");
        drop(copy);
        copy = open(copied.path());
    }
    // The original goes on, and is not taken for a copy.
    drop(original);
    let original = open(dir.path());
    assert!(original.has_lived(&mark));
    assert!(!original.has_lived(&copy.mark()));
}

#[test]
fn a_copy_made_while_commits_go_on_has_lived_the_marks_of_its_own_objects_only() {
    let (dir, original) = with_bucket();
    let mut marks: Vec<(String, StoreMark)> = Vec::new();
    let mut commit = |number: usize| {
        let key = format!("k{number}");
        put(&original, &key);
        marks.push((key, original.mark()));
    };
    (0..10).for_each(&mut commit);
    let is_copied = AtomicBool::new(false);
    let copied = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 10..COMMITS_MAX {
                if is_copied.load(Ordering::Acquire) {
                    break;
                }
                commit(number);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let copied = (0..COPIES_MAX).find_map(|_| {
            let copied = tempfile::tempdir().unwrap();
            let is_whole = try_copy(dir.path(), copied.path());
            (is_whole && try_open(copied.path()).is_some()).then_some(copied)
        });
        is_copied.store(true, Ordering::Release);
        copied.unwrap()
    });
    put(&original, "last");
    let last = original.mark();
    let copy = open(copied.path());
    assert!(copy.has_lived(&marks[9].1));
    for (key, mark) in &marks {
        let is_there = copy.head("b", key).unwrap().is_some();
        assert_eq!(copy.has_lived(mark), is_there, "{key}, {mark:?}");
        assert!(original.has_lived(mark));
    }
    assert!(!copy.has_lived(&last));
}

/// Copies a store that is being written, whose files may be gone by then; whether all were there.
fn try_copy(from: &Path, to: &Path) -> bool {
    fs::create_dir_all(to).unwrap();
    fs::read_dir(from).unwrap().all(|entry| {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => try_copy(&from, &to),
            false => fs::copy(&from, &to).is_ok(),
        }
    })
}

#[test]
fn a_renewed_identity_stays_and_marks_of_the_former_one_are_of_another_store() {
    let (dir, store) = with_bucket();
    let former = store.mark();
    let before = copy_of(dir.path());
    let identity = store.renew_identity().unwrap();
    assert!(identity != 0 && identity != former.store);
    assert_eq!(store.identity(), identity);
    assert_eq!(store.life().openings().len(), 1);
    let renewed = store.mark();
    assert_eq!(renewed.store, identity);
    assert!(renewed.id != former.id && renewed.opening == former.opening);
    assert!(store.has_lived(&renewed) && !store.has_lived(&former));
    put(&store, "k");
    let later = store.mark();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.identity(), identity);
    assert_eq!(store.life().openings().len(), 2);
    assert!(store.has_lived(&renewed) && store.has_lived(&later));
    assert!(!store.has_lived(&former));
    assert_eq!(store.bucket_usage("b").objects, 1);
    // A copy from before the renewal is the former store.
    let copy = open(before.path());
    assert_eq!(copy.identity(), former.store);
    assert!(copy.has_lived(&former) && !copy.has_lived(&renewed));
}
