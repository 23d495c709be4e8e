//! What every engine behind the trait does, whatever it is made of. With the
//! feature `leveldb` also the one on LevelDB.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::common::{bytes, meta, read};
use prism_store::{Config, Engine, Error, Store, Verified};

/// Opens an engine in a directory.
type Open = fn(&Path) -> Arc<dyn Engine>;

fn config() -> Config {
    Config {
        reserve_bytes: 0,
        write_buffer_bytes: 256 * 1024,
        max_object_len: 8 << 20,
        ..Config::default()
    }
}

fn engines() -> Vec<Open> {
    vec![
        |dir| Arc::new(Store::open(dir, config()).unwrap()),
        #[cfg(feature = "leveldb")]
        |dir| Arc::new(prism_store::LevelStore::open(dir, &config()).unwrap()),
    ]
}

/// Runs a test on each, in a directory of its own.
fn each(test: impl Fn(Open, &Path)) {
    for open in engines() {
        let dir = tempfile::tempdir().unwrap();
        test(open, &dir.path().join("engine"));
    }
}

fn put(engine: &dyn Engine, key: &str, data: &[u8]) -> Result<bool, Error> {
    let mut writer = engine.begin_put("b", key, Some(data.len() as u64))?;
    for piece in data.chunks(100_000) {
        writer.write(piece)?;
    }
    assert_eq!(writer.written(), data.len() as u64);
    writer
        .commit(meta(data))
        .map(|committed| committed.replaced)
}

fn get(engine: &dyn Engine, key: &str) -> Option<Vec<u8>> {
    engine.get("b", key).unwrap().map(read)
}

#[test]
fn objects_of_every_size_come_back_and_survive_reopening() {
    each(|open, dir| {
        let sizes = [0, 1, 1_000, 16_384, 16_385, 100_000, 1 << 20, 3_000_017];
        let engine = open(dir);
        engine.create_bucket("b", 7).unwrap();
        for (seed, len) in (0..).zip(sizes) {
            assert!(!put(&*engine, &format!("k{len}"), &bytes(seed, len)).unwrap());
        }
        drop(engine);
        let engine = open(dir);
        assert_eq!(engine.head_bucket("b").unwrap().created_ms, 7);
        for (seed, len) in (0..).zip(sizes) {
            let (key, data) = (format!("k{len}"), bytes(seed, len));
            let object = engine.get("b", &key).unwrap().unwrap();
            assert_eq!(object.meta, meta(&data));
            assert_eq!(read(object), data);
            assert_eq!(engine.head("b", &key).unwrap().unwrap().len, len as u64);
            let verified = engine.verify("b", &key).unwrap();
            assert_eq!(verified, Some(Verified { bytes: len as u64 }));
        }
    });
}

#[test]
fn what_is_overwritten_or_deleted_is_gone() {
    each(|open, dir| {
        let engine = open(dir);
        engine.create_bucket("b", 0).unwrap();
        put(&*engine, "k", &bytes(1, 50_000)).unwrap();
        assert!(put(&*engine, "k", &bytes(2, 10)).unwrap());
        assert_eq!(get(&*engine, "k").unwrap(), bytes(2, 10));
        assert!(engine.delete("b", "k").unwrap());
        assert!(!engine.delete("b", "k").unwrap());
        assert!(get(&*engine, "k").is_none());
        assert!(engine.head("b", "k").unwrap().is_none());
        assert!(engine.verify("b", "k").unwrap().is_none());
        drop(engine);
        assert!(get(&*open(dir), "k").is_none());
    });
}

#[test]
fn buckets_are_made_once_and_deleted_when_empty() {
    each(|open, dir| {
        let engine = open(dir);
        engine.create_bucket("b", 2).unwrap();
        engine.create_bucket("a", 1).unwrap();
        let again = engine.create_bucket("a", 3);
        assert!(matches!(again, Err(Error::AlreadyExists)));
        let names: Vec<_> = engine
            .list_buckets()
            .unwrap()
            .into_iter()
            .map(|b| b.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
        put(&*engine, "k", b"x").unwrap();
        assert!(matches!(engine.delete_bucket("b"), Err(Error::NotEmpty)));
        engine.delete("b", "k").unwrap();
        engine.delete_bucket("b").unwrap();
        assert!(matches!(engine.head_bucket("b"), Err(Error::NoSuchBucket)));
        assert!(matches!(
            engine.delete_bucket("b"),
            Err(Error::NoSuchBucket)
        ));
        assert!(matches!(engine.get("b", "k"), Err(Error::NoSuchBucket)));
        assert!(matches!(put(&*engine, "k", b"x"), Err(Error::NoSuchBucket)));
        assert!(matches!(
            engine.create_bucket("", 0),
            Err(Error::InvalidName(_))
        ));
    });
}

#[test]
fn a_put_into_a_bucket_that_is_deleted_meanwhile_leaves_nothing() {
    each(|open, dir| {
        let engine = open(dir);
        engine.create_bucket("b", 0).unwrap();
        let mut writer = engine.begin_put("b", "k", None).unwrap();
        writer.write(b"late").unwrap();
        engine.delete_bucket("b").unwrap();
        let refused = writer.commit(meta(b"late"));
        assert!(matches!(refused, Err(Error::NoSuchBucket)));
        engine.create_bucket("b", 0).unwrap();
        assert!(get(&*engine, "k").is_none());
    });
}

#[test]
fn lengths_are_binding_and_bounded() {
    each(|open, dir| {
        let engine = open(dir);
        engine.create_bucket("b", 0).unwrap();
        let writer = engine.begin_put("b", "k", Some(3)).unwrap();
        let short = writer.commit(meta(b""));
        assert!(matches!(short, Err(Error::LengthMismatch { .. })));
        let mut writer = engine.begin_put("b", "k", Some(3)).unwrap();
        assert!(matches!(
            writer.write(b"four"),
            Err(Error::LengthMismatch { .. })
        ));
        let announced = engine.begin_put("b", "k", Some((8 << 20) + 1));
        assert!(matches!(announced.err(), Some(Error::TooLarge)));
        let mut writer = engine.begin_put("b", "k", None).unwrap();
        let piece = vec![0; 1 << 20];
        let refused = (0..9).find_map(|_| writer.write(&piece).err());
        assert!(matches!(refused, Some(Error::TooLarge)));
        drop(writer);
        assert!(get(&*engine, "k").is_none());
    });
}

#[test]
fn listings_are_in_order_bounded_and_go_on_where_they_ended() {
    each(|open, dir| {
        let engine = open(dir);
        for bucket in ["a", "b", "bb"] {
            engine.create_bucket(bucket, 0).unwrap();
        }
        let mut keys: Vec<String> = (0..50).map(|n| format!("x/{n}")).collect();
        keys.extend(["x", "w", "y/1", "ü"].map(str::to_owned));
        for key in &keys {
            put(&*engine, key, key.as_bytes()).unwrap();
        }
        keys.sort();
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let page = engine.list("b", "", &after, 7).unwrap();
            found.extend(page.entries.iter().map(|entry| entry.key.clone()));
            if !page.truncated {
                break;
            }
            after = found.last().unwrap().clone();
        }
        assert_eq!(found, keys);
        let page = engine.list("b", "x/1", "", 100).unwrap();
        assert_eq!(page.entries.len(), 11);
        assert!(!page.truncated);
        assert_eq!(page.entries[0].len, 3);
        assert!(engine.list("b", "x/", "y", 9).unwrap().entries.is_empty());
        assert!(engine.list("a", "", "", 9).unwrap().entries.is_empty());
        assert!(matches!(
            engine.list("none", "", "", 9),
            Err(Error::NoSuchBucket)
        ));
    });
}

#[test]
fn readers_under_overwriting_see_one_whole_version_each() {
    each(|open, dir| {
        let engine = open(dir);
        engine.create_bucket("b", 0).unwrap();
        let versions: Vec<Vec<u8>> = (0..6)
            .map(|n| bytes(n, 10_000 + 9_000 * n as usize))
            .collect();
        put(&*engine, "k", &versions[0]).unwrap();
        thread::scope(|scope| {
            let (engine, versions) = (&engine, &versions);
            for writer in 0..2 {
                scope.spawn(move || {
                    for round in 0..40 {
                        put(&**engine, "k", &versions[(round + writer * 3) % 6]).unwrap();
                    }
                });
            }
            scope.spawn(move || {
                for _ in 0..200 {
                    let found = get(&**engine, "k").unwrap();
                    assert!(versions.contains(&found), "{} bytes", found.len());
                }
            });
        });
    });
}

/// What is written fills the smallest buffers again and again, so that commits
/// and flushes overlap all the time.
#[test]
fn no_reader_sees_half_a_commit() {
    const KEYS: u64 = 20;
    const ROUNDS: u64 = 60;
    each(|open, dir| {
        let engine = open(dir);
        engine.create_bucket("b", 7).unwrap();
        let writers = AtomicUsize::new(2);
        let rewrite = |t: u64| {
            for k in 0..ROUNDS * KEYS {
                let len = [40, 9_000, 60_000][(k % 3) as usize];
                put(&*engine, &format!("{t}/{}", k % KEYS), &bytes(k, len)).unwrap();
            }
            writers.fetch_sub(1, Ordering::Release);
        };
        for k in 0..KEYS {
            for t in 0..2 {
                put(&*engine, &format!("{t}/{k}"), b"the first").unwrap();
            }
        }
        thread::scope(|scope| {
            scope.spawn(|| rewrite(0));
            scope.spawn(|| rewrite(1));
            while writers.load(Ordering::Acquire) > 0 {
                for k in 0..KEYS {
                    for t in 0..2 {
                        let key = format!("{t}/{k}");
                        assert!(get(&*engine, &key).is_some(), "{key} was there");
                    }
                }
            }
        });
    });
}
