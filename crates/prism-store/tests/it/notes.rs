//! The caller's documents in the store, and the handle that may outlive the store.

use std::path::Path;

use prism_store::{Config, Durability, Error, KEY_MAX, Store, WeakStore};

fn open_with(dir: &Path, durability: Durability) -> Store {
    let config = Config {
        reserve_bytes: 0,
        durability,
        ..Config::default()
    };
    Store::open(dir, config).unwrap()
}

fn open(dir: &Path) -> Store {
    open_with(dir, Durability::Fsync)
}

fn noted(store: &Store, name: &str) -> Option<Vec<u8>> {
    store.noted(name).unwrap()
}

#[test]
fn notes_are_kept_and_replaced() {
    for durability in [Durability::Fsync, Durability::None] {
        let dir = tempfile::tempdir().unwrap();
        let store = open_with(dir.path(), durability);
        assert_eq!(noted(&store, "a"), None);
        let long = vec![7; 100_000];
        store.note(&[("a", b"first"), ("b", &long)]).unwrap();
        store.note(&[("a", b"second"), ("c", b"")]).unwrap();
        let check = |store: &Store| {
            assert_eq!(noted(store, "a").unwrap(), b"second");
            assert_eq!(noted(store, "b").unwrap(), long);
            assert_eq!(noted(store, "c").unwrap(), b"");
            assert_eq!(noted(store, "d"), None);
        };
        check(&store);
        drop(store);
        check(&open_with(dir.path(), durability));
    }
}

#[test]
fn several_notes_are_one_commit_and_none_is_no_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let commits = store.mark().commits;
    store.note(&[("a", b"1"), ("b", b"2")]).unwrap();
    store.note(&[]).unwrap();
    assert_eq!(store.mark().commits, commits + 1);
}

#[test]
fn a_note_has_a_name_of_bounded_length() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for name in ["", &"n".repeat(KEY_MAX + 1)] {
        let error = store.note(&[("a", b"1"), (name, b"2")]).unwrap_err();
        assert!(matches!(error, Error::InvalidName(_)), "{error}");
        assert!(store.noted(name).is_err());
    }
    assert_eq!(noted(&store, "a"), None, "all of them or none");
    let longest = "n".repeat(KEY_MAX);
    store.note(&[(&longest, b"1")]).unwrap();
    assert_eq!(noted(&store, &longest).unwrap(), b"1");
}

#[test]
fn a_handle_does_what_the_store_does_until_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let handle = store.handle();
    let other = handle.clone();
    std::thread::spawn(move || other.open().unwrap().note(&[("a", b"1")]).unwrap())
        .join()
        .unwrap();
    assert_eq!(noted(&store, "a").unwrap(), b"1");
    let again = handle.open().unwrap();
    assert_eq!(again.mark(), store.mark());
    assert!(again.has_lived(&store.mark()));
    assert_eq!(again.renew_identity().unwrap(), store.identity());
    drop(again);
    let mark = store.mark();
    drop(store);
    is_closed(&handle);
    // The directory is not locked, and the handle does not reach the next opening.
    let store = open(dir.path());
    is_closed(&handle);
    assert!(store.has_lived(&mark));
    assert_eq!(noted(&store, "a").unwrap(), b"1");
    fn is_closed(handle: &WeakStore) {
        let error = handle.open().err();
        assert!(matches!(error, Some(Error::Closed)), "{error:?}");
    }
}
