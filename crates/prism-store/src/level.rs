//! An engine on LevelDB, which the paper used: for comparisons, with the feature
//! `leveldb`. Objects lie in the database whole, so they are bounded, and go
//! through memory on their way in and out. No uploads in parts, versions,
//! quota, replicas or scrub.
//!
//! | key | value |
//! |---|---|
//! | `b`, bucket | creation time (8) |
//! | `o`, key of an object as in `record` | [`Record`] |
//! | `d`, the same | the object's bytes |

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use prism_replica::{BucketStamp, Phase, Stamp};
use prism_sys::leveldb::{LevelBatch, LevelDb, LevelError, LevelOptions};

use crate::{
    blocks::crc32c,
    config::{Config, Durability},
    engine::{Engine, ObjectWriter},
    error::{Error, OpenError},
    layout::FileId,
    record::{Payload, Record, bucket_prefix, object_key, split_object_key},
    scan::LIST_MAX,
    store::BUCKETS_MAX,
    types::{
        Body, BucketInfo, Committed, Derived, Entry, Listing, Object, ObjectInfo, ObjectMeta,
        Verified, check_bucket, check_key,
    },
    versions::Versioning,
};

/// Longest object, in bytes: it is in memory whole, several times.
pub const LEVEL_OBJECT_MAX: u64 = 64 << 20;

/// Locks that keys share.
const STRIPES: usize = 64;
/// How often a reader looks again after an overwrite came in between.
const ATTEMPTS: usize = 64;
const RECORD: u8 = b'o';
const DATA: u8 = b'd';

/// An engine on LevelDB.
#[derive(Clone)]
pub struct LevelStore {
    inner: Arc<Inner>,
}

struct Inner {
    db: LevelDb,
    max_object_len: u64,
    /// Shared by whoever changes objects, exclusive for who changes buckets.
    buckets: RwLock<()>,
    /// Held by whoever changes an object.
    keys: [Mutex<()>; STRIPES],
}

/// An object on its way in.
struct LevelWriter {
    inner: Arc<Inner>,
    bucket: String,
    object_key: Vec<u8>,
    expected: Option<u64>,
    data: Vec<u8>,
}

impl LevelStore {
    /// Opens the database in `dir`, creating it if there is none. Of the
    /// settings, those of memory, durability and length count. Blocks on disk.
    ///
    /// # Errors
    /// As the database says.
    pub fn open(dir: &Path, config: &Config) -> Result<Self, OpenError> {
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let options = LevelOptions {
            cache_bytes: size(config.block_cache_bytes),
            write_buffer_bytes: size(config.write_buffer_bytes),
            sync: config.durability == Durability::Fsync,
        };
        let db = LevelDb::open(dir, options);
        Ok(Self {
            inner: Arc::new(Inner {
                db: db.map_err(|error| OpenError::Metadata(Box::new(error)))?,
                max_object_len: config.max_object_len.min(LEVEL_OBJECT_MAX),
                buckets: RwLock::new(()),
                keys: std::array::from_fn(|_| Mutex::new(())),
            }),
        })
    }
}

impl Engine for LevelStore {
    fn create_bucket(&self, bucket: &str, created_ms: u64) -> Result<(), Error> {
        check_bucket(bucket)?;
        let inner = &self.inner;
        let _alone = inner
            .buckets
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        match inner.bucket(bucket) {
            Ok(_) => return Err(Error::AlreadyExists),
            Err(Error::NoSuchBucket) => {}
            Err(error) => return Err(error),
        }
        if self.list_buckets()?.len() == BUCKETS_MAX {
            return Err(Error::TooManyBuckets);
        }
        let mut batch = batch()?;
        batch.put(&bucket_key(bucket), &created_ms.to_be_bytes());
        Ok(inner.db.write(batch)?)
    }

    fn delete_bucket(&self, bucket: &str) -> Result<(), Error> {
        check_bucket(bucket)?;
        let inner = &self.inner;
        let _alone = inner
            .buckets
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        inner.bucket(bucket)?;
        let first = under(RECORD, &bucket_prefix(bucket));
        if let Some((key, _)) = inner.db.seek(&first).next()?
            && key.starts_with(&first)
        {
            return Err(Error::NotEmpty);
        }
        let mut batch = batch()?;
        batch.remove(&bucket_key(bucket));
        Ok(inner.db.write(batch)?)
    }

    fn head_bucket(&self, bucket: &str) -> Result<BucketInfo, Error> {
        check_bucket(bucket)?;
        self.inner.bucket(bucket)
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>, Error> {
        let mut found = Vec::new();
        let mut cursor = self.inner.db.seek(b"b");
        while let Some((key, value)) = cursor.next()? {
            match key.strip_prefix(b"b") {
                Some(name) if found.len() < BUCKETS_MAX => found.push(info(name, &value)?),
                _ => break,
            }
        }
        Ok(found)
    }

    fn begin_put(
        &self,
        bucket: &str,
        key: &str,
        expected: Option<u64>,
    ) -> Result<Box<dyn ObjectWriter>, Error> {
        check_key(key)?;
        self.head_bucket(bucket)?;
        if expected.is_some_and(|len| len > self.inner.max_object_len) {
            return Err(Error::TooLarge);
        }
        Ok(Box::new(LevelWriter {
            inner: Arc::clone(&self.inner),
            bucket: bucket.to_owned(),
            object_key: object_key(bucket, key),
            expected,
            data: Vec::new(),
        }))
    }

    fn get(&self, bucket: &str, key: &str) -> Result<Option<Arc<Object>>, Error> {
        check_bucket(bucket)?;
        check_key(key)?;
        let found = self.inner.read(bucket, &object_key(bucket, key))?;
        let object = |(record, data): (Record, Vec<u8>)| Object {
            stamp: record.stamp,
            version: None,
            meta: record.meta,
            len: record.len,
            body: Body::Inline(data),
            derived: Derived::default(),
        };
        Ok(found.map(object).map(Arc::new))
    }

    fn head(&self, bucket: &str, key: &str) -> Result<Option<ObjectInfo>, Error> {
        check_bucket(bucket)?;
        check_key(key)?;
        let found = self.inner.record(bucket, &object_key(bucket, key))?;
        Ok(found.map(|record| ObjectInfo {
            stamp: record.stamp,
            version: None,
            meta: record.meta,
            len: record.len,
        }))
    }

    fn delete(&self, bucket: &str, key: &str) -> Result<bool, Error> {
        check_bucket(bucket)?;
        check_key(key)?;
        let (inner, object_key) = (&self.inner, object_key(bucket, key));
        let _shared = inner.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let _held = inner.lock(&object_key);
        if inner.record(bucket, &object_key)?.is_none() {
            return Ok(false);
        }
        let mut batch = batch()?;
        batch.remove(&under(RECORD, &object_key));
        batch.remove(&under(DATA, &object_key));
        inner.db.write(batch)?;
        Ok(true)
    }

    fn list(
        &self,
        bucket: &str,
        prefix: &str,
        start_after: &str,
        max: usize,
    ) -> Result<Listing, Error> {
        self.head_bucket(bucket)?;
        let (max, mut listing) = (max.min(LIST_MAX), Listing::default());
        let all = under(RECORD, &object_key(bucket, prefix));
        let after = under(RECORD, &object_key(bucket, start_after));
        let mut cursor = self.inner.db.seek((&all).max(&after));
        while let Some((key, value)) = cursor.next()? {
            if !key.starts_with(&all) {
                break;
            }
            if !start_after.is_empty() && key == after {
                continue;
            }
            if listing.entries.len() == max {
                listing.truncated = max > 0;
                break;
            }
            let record = Record::decode(&value)?;
            let name = key.get(1..).and_then(split_object_key);
            let (_, name) = name.ok_or_else(|| Error::corrupt("object key"))?;
            listing.entries.push(Entry {
                key: name.to_owned(),
                len: record.len,
                etag: record.meta.etag,
                created_ms: record.meta.created_ms,
            });
        }
        Ok(listing)
    }

    fn verify(&self, bucket: &str, key: &str) -> Result<Option<Verified>, Error> {
        let found = self.get(bucket, key)?;
        Ok(found.map(|object| Verified { bytes: object.len }))
    }
}

impl ObjectWriter for LevelWriter {
    fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        let written = (self.data.len() + data.len()) as u64;
        if let Some(expected) = self.expected.filter(|expected| written > *expected) {
            return Err(Error::LengthMismatch { expected, written });
        }
        if written > self.inner.max_object_len {
            return Err(Error::TooLarge);
        }
        self.data.extend_from_slice(data);
        Ok(())
    }

    fn written(&self) -> u64 {
        self.data.len() as u64
    }

    fn commit(self: Box<Self>, meta: ObjectMeta) -> Result<Committed, Error> {
        let len = self.written();
        if let Some(expected) = self.expected.filter(|expected| *expected != len) {
            return Err(Error::LengthMismatch {
                expected,
                written: len,
            });
        }
        let record = Record {
            stamp: Stamp::NONE,
            version: None,
            payload: Payload::Inline {
                id: FileId::from_bytes([0; 8]),
                crc: crc32c(&self.data),
            },
            len,
            meta,
        };
        let mut batch = batch()?;
        batch.put(&under(RECORD, &self.object_key), &record.encode()?);
        batch.put(&under(DATA, &self.object_key), &self.data);
        let inner = &self.inner;
        let _shared = inner.buckets.read().unwrap_or_else(PoisonError::into_inner);
        let _held = inner.lock(&self.object_key);
        inner.bucket(&self.bucket)?;
        let replaced = inner.db.get(&under(RECORD, &self.object_key))?.is_some();
        inner.db.write(batch)?;
        Ok(Committed {
            len,
            replaced,
            stamp: record.stamp,
            version: None,
        })
    }
}

impl Inner {
    fn lock(&self, object_key: &[u8]) -> Option<std::sync::MutexGuard<'_, ()>> {
        let mut hasher = DefaultHasher::new();
        object_key.hash(&mut hasher);
        let stripe = usize::try_from(hasher.finish() % STRIPES as u64).unwrap_or(0);
        let lock = self.keys.get(stripe)?;
        Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn bucket(&self, name: &str) -> Result<BucketInfo, Error> {
        let value = self.db.get(&bucket_key(name))?;
        info(name.as_bytes(), &value.ok_or(Error::NoSuchBucket)?)
    }

    fn record(&self, bucket: &str, object_key: &[u8]) -> Result<Option<Record>, Error> {
        match self.db.get(&under(RECORD, object_key))? {
            Some(value) => Record::decode(&value).map(Some),
            None => self.bucket(bucket).map(|_| None),
        }
    }

    /// Record and bytes of one version: both carry the same checksum.
    fn read(&self, bucket: &str, object_key: &[u8]) -> Result<Option<(Record, Vec<u8>)>, Error> {
        for _ in 0..ATTEMPTS {
            let Some(record) = self.record(bucket, object_key)? else {
                return Ok(None);
            };
            let data = self.db.get(&under(DATA, object_key))?.unwrap_or_default();
            let crc = crc32c(&data);
            let is_whole =
                matches!(record.payload, Payload::Inline { crc: kept, .. } if kept == crc);
            if is_whole && data.len() as u64 == record.len {
                return Ok(Some((record, data)));
            }
        }
        Err(Error::corrupt("checksum of the object's bytes differs"))
    }
}

impl fmt::Debug for LevelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelStore").finish_non_exhaustive()
    }
}

impl From<LevelError> for Error {
    fn from(error: LevelError) -> Self {
        Self::Metadata(Arc::new(error))
    }
}

fn batch() -> Result<LevelBatch, Error> {
    LevelBatch::new().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory).into())
}

fn bucket_key(name: &str) -> Vec<u8> {
    under(b'b', name.as_bytes())
}

fn under(kind: u8, key: &[u8]) -> Vec<u8> {
    [&[kind], key].concat()
}

fn info(name: &[u8], value: &[u8]) -> Result<BucketInfo, Error> {
    let name = std::str::from_utf8(name).map_err(|_| Error::corrupt("bucket name"))?;
    let created = <[u8; 8]>::try_from(value).map_err(|_| Error::corrupt("bucket record"))?;
    Ok(BucketInfo {
        name: name.to_owned(),
        created_ms: u64::from_be_bytes(created),
        versioning: Versioning::Never,
        which: BucketStamp {
            stamp: Stamp::NONE,
            life: Stamp::NONE,
            phase: Phase::Live,
        },
    })
}
