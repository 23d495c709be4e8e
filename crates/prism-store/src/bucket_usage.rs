//! The bytes and the objects that a store has of each bucket.
//!
//! | counted | as |
//! |---|---|
//! | an object, and each version that is not current | 1 object, and its bytes |
//! | a part of an open upload, or bytes of an open change in a file | its bytes |
//! | a delete marker | nothing |
//!
//! A commit compares the values that its batch replaces with the new ones, and writes the
//! buckets' new sums in the same batch. So the sums survive a crash as the objects do, and no
//! operation has to count. Bytes in files are counted by the files' records, which name their
//! bucket: parts of uploads, of objects and of garbage have one.
//!
//! A store counts everything at opening if the process before did not count: a release without
//! sums, or one that met a record that it could not read.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    ops::Bound,
};

use fjall::PersistMode;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::{
    codec::decode,
    error::{Error, OpenError},
    keys::bucket_of,
    lsm::{Batch, FILES, Lsm, OBJECTS, VERSIONS},
    record::{FileRecord, Payload, Record},
    view::View,
};

/// The record of the tree `system` that names the generation whose sums are complete. It is
/// missing after a record that was not counted.
const USAGE_KEY: &str = "usage";

/// The bytes and objects of one bucket in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BucketUsage {
    /// Bytes of its objects, of their versions, and of the parts of open uploads.
    pub bytes: u64,
    /// Its objects, and their versions that are not current; no delete markers.
    pub objects: u64,
}

/// The usage of all buckets. Only commits change it, one at a time.
#[derive(Debug, Default)]
pub(crate) struct UsageOfBuckets(RwLock<HashMap<String, BucketUsage>>);

/// The new sums of the buckets that a batch changes.
pub(crate) type NewUsage = Vec<(String, BucketUsage)>;

/// A change of a bucket's usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Delta {
    bytes: i64,
    objects: i64,
}

/// A tree whose values count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Counted {
    /// Objects, or versions that are not current.
    Records,
    Files,
}

impl BucketUsage {
    fn encode(self) -> Vec<u8> {
        [self.bytes.to_be_bytes(), self.objects.to_be_bytes()].concat()
    }

    fn decode(value: &[u8]) -> Result<Self, Error> {
        decode(value, "usage of a bucket", |reader| {
            Ok(Self {
                bytes: reader.u64("bytes")?,
                objects: reader.u64("objects")?,
            })
        })
    }

    fn after(self, delta: Delta) -> Self {
        Self {
            bytes: self.bytes.saturating_add_signed(delta.bytes),
            objects: self.objects.saturating_add_signed(delta.objects),
        }
    }
}

impl UsageOfBuckets {
    /// The usage as the process before has counted it, or counted again. Blocks on disk.
    pub(crate) fn open(lsm: &Lsm, generation: u64) -> Result<Self, OpenError> {
        let view = lsm.view();
        let mut batch = Batch::default();
        let counted_by = lsm.number(USAGE_KEY)?;
        let is_counted = counted_by.is_some_and(|by| by.checked_add(1) == Some(generation));
        let sums = if is_counted {
            read(&view)?
        } else {
            count_again(&view, &mut batch)?
        };
        batch.insert(&lsm.system, USAGE_KEY, generation.to_be_bytes());
        lsm.commit(batch, PersistMode::SyncAll)?;
        Ok(Self(RwLock::new(sums)))
    }

    pub(crate) fn get(&self, bucket: &str) -> BucketUsage {
        let sums = self.0.read();
        sums.get(bucket).copied().unwrap_or_default()
    }

    /// Adds the new sums of the buckets that a batch changes to it. Reads the values that the
    /// batch replaces.
    pub(crate) fn stage(&self, view: &View<'_>, batch: &mut Batch) -> NewUsage {
        let (deltas, are_complete) = deltas(view, batch);
        if !are_complete {
            batch.remove(&view.lsm.system, USAGE_KEY);
        }
        let changed = deltas.into_iter().filter(|(_, d)| *d != Delta::default());
        let new: NewUsage = changed
            .map(|(bucket, delta)| {
                let usage = self.get(&bucket).after(delta);
                (bucket, usage)
            })
            .collect();
        for (bucket, usage) in &new {
            stage(view.lsm, batch, bucket, *usage);
        }
        new
    }

    /// Shows the sums of a batch that was committed.
    pub(crate) fn apply(&self, new: NewUsage) {
        if new.is_empty() {
            return;
        }
        let mut sums = self.0.write();
        for (bucket, usage) in new {
            if usage == BucketUsage::default() {
                sums.remove(&bucket)
            } else {
                sums.insert(bucket, usage)
            };
        }
    }
}

fn stage(lsm: &Lsm, batch: &mut Batch, bucket: &str, usage: BucketUsage) {
    if usage == BucketUsage::default() {
        batch.remove(&lsm.usage, bucket)
    } else {
        batch.insert(&lsm.usage, bucket, usage.encode())
    }
}

fn read(view: &View<'_>) -> Result<HashMap<String, BucketUsage>, Error> {
    let sums = view.entries(&view.lsm.usage, Bound::Unbounded, BucketUsage::decode);
    let named = sums.map(|found| {
        let (name, usage) = found?;
        let name = std::str::from_utf8(&name).map_err(|_| Error::corrupt("usage of a bucket"))?;
        Ok((name.to_owned(), usage))
    });
    named.collect()
}

/// Counts everything, and replaces the sums in the tree.
fn count_again(view: &View<'_>, batch: &mut Batch) -> Result<HashMap<String, BucketUsage>, Error> {
    let lsm = view.lsm;
    let mut deltas = BTreeMap::new();
    for (tree, counted) in [
        (&lsm.objects, Counted::Records),
        (&lsm.versions, Counted::Records),
        (&lsm.files, Counted::Files),
    ] {
        let all = view.entries(tree, Bound::Unbounded, |value| Ok(value.to_vec()));
        for found in all {
            let (key, value) = found?;
            // A damaged record counts nothing, and keeps nobody from opening the store.
            if let Ok((bucket, delta)) = counted.weigh(&key, &value) {
                add(&mut deltas, bucket, delta, 1);
            }
        }
    }
    for old in read(view).unwrap_or_default().into_keys() {
        batch.remove(&lsm.usage, old);
    }
    let sums = deltas.into_iter();
    let sums = sums.map(|(bucket, delta)| (bucket, BucketUsage::default().after(delta)));
    let sums: HashMap<_, _> = sums.collect();
    for (bucket, usage) in &sums {
        stage(lsm, batch, bucket, *usage);
    }
    tracing::info!(buckets = sums.len(), "counted the usage of all buckets");
    Ok(sums)
}

/// The changes by a batch, and whether every value that it replaces could be read.
fn deltas(view: &View<'_>, batch: &Batch) -> (BTreeMap<String, Delta>, bool) {
    // The last write of a key counts.
    let mut last = HashMap::new();
    for (tree, key, value) in batch.writes() {
        if let Some(counted) = Counted::of_tree(tree.name()) {
            last.insert((tree.name(), key), (tree, counted, value));
        }
    }
    let mut deltas = BTreeMap::new();
    let mut are_complete = true;
    for ((_, key), (tree, counted, new)) in last {
        let old = view.get(tree, key, |value| Ok(value.to_vec()));
        let old = old.unwrap_or_else(|_| {
            are_complete = false;
            None
        });
        for (value, sign) in [(old.as_deref(), -1), (new, 1)] {
            match value.map(|value| counted.weigh(key, value)) {
                None => {}
                Some(Ok((bucket, delta))) => add(&mut deltas, bucket, delta, sign),
                Some(Err(_)) => are_complete = false,
            }
        }
    }
    (deltas, are_complete)
}

fn add(deltas: &mut BTreeMap<String, Delta>, bucket: Cow<'_, str>, delta: Delta, sign: i64) {
    let sum = match deltas.get_mut(&*bucket) {
        Some(sum) => sum,
        None => deltas.entry(bucket.into_owned()).or_default(),
    };
    sum.bytes = sum.bytes.saturating_add(sign * delta.bytes);
    sum.objects = sum.objects.saturating_add(sign * delta.objects);
}

impl Counted {
    fn of_tree(name: &str) -> Option<Self> {
        match name {
            OBJECTS | VERSIONS => Some(Self::Records),
            FILES => Some(Self::Files),
            _ => None,
        }
    }

    /// The bucket of a value, and what the value counts.
    fn weigh<'v>(self, key: &'v [u8], value: &'v [u8]) -> Result<(Cow<'v, str>, Delta), Error> {
        let bytes = |len: u64| i64::try_from(len).unwrap_or(i64::MAX);
        match self {
            Self::Records => {
                let record = Record::decode_bare(value)?;
                let delta = Delta {
                    bytes: match record.payload {
                        Payload::Inline { .. } => bytes(record.len),
                        // The records of the files have them.
                        Payload::File { .. } | Payload::Parts { .. } | Payload::Marker => 0,
                    },
                    objects: i64::from(record.payload != Payload::Marker),
                };
                Ok((bucket_of(key).into(), delta))
            }
            Self::Files => {
                let (len, object_key) = FileRecord::decode_bare(value)?;
                let delta = Delta {
                    bytes: bytes(len),
                    objects: 0,
                };
                Ok((bucket_of(object_key).into(), delta))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Bucket, Config, ObjectMeta, Proof, Stamp, Store, past::Past};

    fn open(dir: &std::path::Path) -> Store {
        let config = Config {
            reserve_bytes: 0,
            ..Config::default()
        };
        Store::open(dir, config).unwrap()
    }

    fn put(store: &Store, key: &str, len: usize) {
        let mut writer = store.begin_put("bucket", key, None).unwrap();
        writer.write(&vec![7; len]).unwrap();
        writer.commit(ObjectMeta::default()).unwrap();
    }

    #[test]
    fn a_store_counts_again_after_a_process_that_did_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let bucket = Bucket::create(None, Stamp::NONE, 0).unwrap();
        store
            .buckets()
            .accept_record("bucket", &bucket, Proof::TRUSTED)
            .unwrap();
        put(&store, "large", 100_000);
        put(&store, "small", 10);
        let wanted = store.bucket_usage("bucket");
        let (bytes, objects) = (100_010, 2);
        assert_eq!(wanted, BucketUsage { bytes, objects });
        let lsm = &store.storage().lsm;
        let mut batch = Batch::default();
        // As an older release leaves it.
        let wrong = BucketUsage { bytes: 1, objects };
        stage(lsm, &mut batch, "bucket", wrong);
        stage(lsm, &mut batch, "gone", wrong);
        lsm.commit(batch, PersistMode::Buffer).unwrap();
        drop(store);
        let store = open(dir.path());
        assert_eq!(store.bucket_usage("bucket"), wrong, "sums are read");
        Past::next(&store.storage().lsm).unwrap();
        drop(store);
        let store = open(dir.path());
        assert_eq!(store.bucket_usage("bucket"), wanted);
        assert_eq!(store.bucket_usage("gone"), BucketUsage::default());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_replaced_and_all_is_counted_again_later() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let bucket = Bucket::create(None, Stamp::NONE, 0).unwrap();
        store
            .buckets()
            .accept_record("bucket", &bucket, Proof::TRUSTED)
            .unwrap();
        put(&store, "whole", 10);
        let lsm = &store.storage().lsm;
        let mut batch = Batch::default();
        let key = crate::keys::object_key("bucket", "damaged");
        batch.insert(&lsm.objects, key.clone(), [1]);
        lsm.commit(batch, PersistMode::Buffer).unwrap();
        let mut batch = Batch::default();
        batch.remove(&lsm.objects, key);
        assert_eq!(
            store.committer().usage.stage(&lsm.view(), &mut batch),
            vec![]
        );
        lsm.commit(batch, PersistMode::Buffer).unwrap();
        assert_eq!(lsm.number(USAGE_KEY).unwrap(), None);
        drop(store);
        let store = open(dir.path());
        let (bytes, objects) = (10, 1);
        let wanted = BucketUsage { bytes, objects };
        assert_eq!(store.bucket_usage("bucket"), wanted);
        assert!(store.storage().lsm.number(USAGE_KEY).unwrap().is_some());
    }
}
