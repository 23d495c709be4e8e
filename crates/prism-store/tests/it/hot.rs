//! Objects that are read from memory while they change.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use prism_store::{Config, Durability, Error, Store};

use crate::common::{StoreExt, bytes, object_files, put, read};

const KEYS: u64 = 4;

fn key(n: u64) -> String {
    format!("k{n}")
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().unwrap())
}

/// Each key has one writer, whose values count up, with deletions between them. Readers see the
/// last answered value or a later one, and never go back.
#[test]
fn nobody_reads_what_is_older_than_an_answered_write() {
    // Objects in the tree, and in files of their own.
    changes_are_seen(50);
    changes_are_seen(5_000);
}

fn changes_are_seen(repeated: usize) {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        durability: Durability::None,
        ..Config::default()
    };
    let store = Store::open(dir.path(), config).unwrap();
    store.create_bucket("b", 1).unwrap();
    let answered: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for (n, answered) in (0..).zip(&answered) {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let end = Instant::now() + Duration::from_secs(2);
                for value in 1.. {
                    if value % 7 == 0 {
                        store.delete("b", &key(n)).unwrap();
                        assert!(store.get("b", &key(n)).unwrap().is_none());
                    }
                    put(
                        store,
                        "b",
                        &key(n),
                        &u64::to_le_bytes(value).repeat(repeated),
                    )
                    .unwrap();
                    answered.store(value, Ordering::SeqCst);
                    if Instant::now() > end {
                        break;
                    }
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        for reader in 0..3 {
            let (store, answered, done, reads) = (&store, &answered, &done, &reads);
            scope.spawn(move || {
                let mut seen = vec![0; answered.len()];
                let mut random = fastrand::Rng::with_seed(reader);
                while !done.load(Ordering::SeqCst) {
                    let n = random.usize(..answered.len());
                    let floor = answered[n].load(Ordering::SeqCst);
                    if let Some(object) = store.get("b", &key(n as u64)).unwrap() {
                        let value = number(&read(object));
                        assert!(value >= floor, "{value} after {floor} was answered");
                        assert!(value >= seen[n], "{value} after {} was read", seen[n]);
                        seen[n] = value;
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let changes: u64 = answered.into_iter().map(AtomicU64::into_inner).sum();
    let reads = reads.into_inner();
    assert!(changes > 100 && reads > 1000, "{changes} and {reads}");
}

/// A store with one object that has a file, read often enough to be cached.
fn with_kept_file(dir: &Path, config: Config) -> (Store, PathBuf) {
    let store = Store::open(dir, config).unwrap();
    store.create_bucket("b", 1).unwrap();
    put(&store, "b", "k", &bytes(1, 300_000)).unwrap();
    for _ in 0..2 {
        assert_eq!(
            read(store.get("b", "k").unwrap().unwrap()),
            bytes(1, 300_000)
        );
    }
    let file = object_files(dir).remove(0);
    (store, file)
}

#[test]
fn a_file_that_is_known_to_be_good_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = with_kept_file(dir.path(), Config::default());
    let get = || store.get("b", "k").unwrap().unwrap();
    let first = get();
    assert!(Arc::ptr_eq(&first, &get()));
    // Its present reader goes on. There is no other, and its bytes are free afterwards.
    put(&store, "b", "k", &bytes(2, 300_000)).unwrap();
    assert_eq!(read(&*first), bytes(1, 300_000));
    assert_eq!(read(get()), bytes(2, 300_000));
    drop(first);
    assert!(!file.exists());
    // Linux shows a removed file under its name, and marks it.
    let gone = format!("{} (deleted)", file.display());
    assert!(!open_files(dir.path()).contains(&gone.into()));
}

/// The paths of object files that this process has open.
fn open_files(dir: &Path) -> Vec<PathBuf> {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let leads_to = open.filter_map(|fd| fs::read_link(fd.path()).ok());
    let files = dir.join("files");
    leads_to.filter(|to| to.starts_with(&files)).collect()
}

#[test]
fn few_files_are_kept_open() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        hot_files: 8,
        ..Config::default()
    };
    let (store, _) = with_kept_file(dir.path(), config);
    assert_eq!(open_files(dir.path()).len(), 1);
    for n in 0..60 {
        put(&store, "b", &key(n), &bytes(n, 20_000)).unwrap();
        for _ in 0..3 {
            assert_eq!(
                read(store.get("b", &key(n)).unwrap().unwrap()).len(),
                20_000
            );
        }
    }
    let open = open_files(dir.path()).len();
    assert!((1..=16).contains(&open), "{open} files are open");
}

#[test]
fn a_file_that_changes_is_not_taken_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = with_kept_file(dir.path(), Config::default());
    let file = fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(&[!bytes(1, 300_000)[200_000]], 200_000)
        .unwrap();
    let object = store.get("b", "k").unwrap().unwrap();
    let prism_store::Body::File(file) = &object.body else {
        panic!("no file")
    };
    assert!(matches!(file.check_all(0, 300_000), Err(Error::Corrupt(_))));
}

#[test]
fn a_file_that_is_gone_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = with_kept_file(dir.path(), Config::default());
    fs::remove_file(file).unwrap();
    assert!(store.get("b", "k").is_err());
}

#[test]
fn a_kept_file_is_compared_again_in_time_and_does_not_keep_the_store_open() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        recheck: Duration::from_secs(1),
        ..Config::default()
    };
    let (store, _) = with_kept_file(dir.path(), config.clone());
    let first = store.get("b", "k").unwrap().unwrap();
    thread::sleep(Duration::from_millis(2_100));
    assert!(!Arc::ptr_eq(&first, &store.get("b", "k").unwrap().unwrap()));
    drop(store);
    Store::open(dir.path(), config).unwrap();
    assert_eq!(read(&*first), bytes(1, 300_000));
}
