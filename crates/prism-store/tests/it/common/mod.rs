//! Helpers that the tests of this crate share.

pub(crate) mod usage;
pub(crate) mod workload;

use std::{
    borrow::Borrow,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use prism_store::{
    Body, Bucket, BucketRefusal, Committed, Entry, Error, Object, ObjectMeta, PageRequest, Phase,
    Position, Scope, Stamp, Step, Store, ToDelete, Versioning,
};

/// Operations that only tests need, made of the store's own.
pub(crate) trait StoreExt {
    /// Deletes an object, and says whether there was one.
    fn delete(&self, bucket: &str, key: &str) -> Result<bool, Error>;
    /// At most `max` objects behind the key `after`.
    fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: &str,
        max: usize,
    ) -> Result<Vec<Entry>, Error>;
    /// Compares all bytes of an object with their checksums, and returns their number.
    fn verify(&self, bucket: &str, key: &str) -> Result<Option<u64>, Error>;
    /// Creates a bucket, as the registry does.
    fn create_bucket(&self, bucket: &str, created_ms: u64) -> Result<(), Error>;
    /// Replaces the record of a bucket by the one that `alter` makes of it and of a new stamp.
    fn alter_bucket(
        &self,
        bucket: &str,
        alter: impl Fn(Option<&Bucket>, Stamp) -> Result<Bucket, BucketRefusal>,
    ) -> Result<(), Error>;
    /// Deletes an empty bucket, as the registry does.
    fn delete_bucket(&self, bucket: &str) -> Result<(), Error>;
    /// Gives a bucket a document.
    fn configure_bucket(&self, bucket: &str, name: &str, text: &str) -> Result<(), Error>;
    /// Says whether a bucket keeps versions.
    fn set_versioning(&self, bucket: &str, versioning: Versioning) -> Result<(), Error>;
}

impl StoreExt for Store {
    fn delete(&self, bucket: &str, key: &str) -> Result<bool, Error> {
        let is_there = self.head(bucket, key)?.is_some();
        let version = None;
        self.delete_version(bucket, ToDelete { key, version }, None)?;
        Ok(is_there)
    }

    fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: &str,
        max: usize,
    ) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        self.scan(bucket, prefix, Position::After(after), |entry| {
            if entries.len() == max {
                return Step::End;
            }
            entries.push(entry);
            Step::Entry
        })?;
        Ok(entries)
    }

    fn verify(&self, bucket: &str, key: &str) -> Result<Option<u64>, Error> {
        let Some(object) = self.get(bucket, key)? else {
            return Ok(None);
        };
        match &object.body {
            Body::Inline(_) => {}
            Body::File(file) => file.check_all(0, file.len())?,
            Body::Parts(parts) => {
                for index in 0..parts.count() {
                    let file = parts.open(index)?;
                    file.check_all(0, file.len())?;
                }
            }
        }
        Ok(Some(object.len))
    }

    fn create_bucket(&self, bucket: &str, created_ms: u64) -> Result<(), Error> {
        self.alter_bucket(bucket, |known, stamp| {
            Bucket::create(known, stamp, created_ms)
        })
    }

    fn alter_bucket(
        &self,
        bucket: &str,
        alter: impl Fn(Option<&Bucket>, Stamp) -> Result<Bucket, BucketRefusal>,
    ) -> Result<(), Error> {
        loop {
            let known = self.buckets().record(bucket)?;
            let before = known.as_ref().map(|known| known.stamp);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let above = before.map_or(0, |before| before.time_us + 1);
            let stamp = Stamp {
                epoch: self.epoch(),
                time_us: above.max(now.as_micros().try_into().unwrap()),
                origin: self.identity(),
            };
            let next = alter(known.as_ref(), stamp)?;
            match self.buckets().change_record(bucket, before, &next) {
                Err(Error::BucketChanged) => {}
                changed => return changed,
            }
        }
    }

    fn delete_bucket(&self, bucket: &str) -> Result<(), Error> {
        let buckets = self.buckets();
        self.alter_bucket(bucket, Bucket::begin_deletion)?;
        let empty = buckets.check_deletable(bucket, |_| true);
        self.alter_bucket(bucket, |known, stamp| {
            let known = known.ok_or(BucketRefusal::Missing)?;
            Ok(known.end_deletion(stamp, empty.is_ok()))
        })?;
        empty?;
        self.catch_up().purge(bucket)
    }

    fn configure_bucket(&self, bucket: &str, name: &str, text: &str) -> Result<(), Error> {
        self.alter_bucket(bucket, |known, stamp| {
            Bucket::change(known, stamp, |next| {
                next.documents.insert(name.into(), text.into());
            })
        })
    }

    fn set_versioning(&self, bucket: &str, versioning: Versioning) -> Result<(), Error> {
        self.alter_bucket(bucket, |known, stamp| {
            Bucket::change(known, stamp, |next| next.versions = versioning.enabled())
        })
    }
}

/// A request for a page of a bucket's scopes.
pub(crate) fn request<'a>(
    bucket: &'a str,
    uploads: bool,
    after: Option<&'a Scope>,
) -> PageRequest<'a> {
    PageRequest {
        bucket,
        uploads,
        after,
    }
}

/// A bucket's record for several stores: the same life, as of a time.
pub(crate) fn agreed(time_us: u64, versions: Option<bool>) -> Bucket {
    Bucket {
        stamp: Stamp {
            epoch: 1,
            time_us,
            origin: 1,
        },
        life: Stamp::NONE,
        phase: Phase::Live,
        created_ms: 1,
        versions,
        documents: std::collections::BTreeMap::new(),
    }
}

/// `len` bytes that depend on `seed` only.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}

/// Metadata whose entity tag is a digest of `data`.
pub(crate) fn meta(data: &[u8]) -> ObjectMeta {
    let digest = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    ObjectMeta {
        etag: format!("{digest:016x}"),
        created_ms: data.len() as u64,
        headers: vec![("content-type".into(), "application/octet-stream".into())],
        user: vec![("digest".into(), digest.to_string())],
    }
}

pub(crate) fn put(store: &Store, bucket: &str, key: &str, data: &[u8]) -> Result<Committed, Error> {
    let mut writer = store.begin_put(bucket, key, Some(data.len() as u64))?;
    for chunk in data.chunks(50_000) {
        writer.write(chunk)?;
    }
    writer.commit(meta(data))
}

pub(crate) fn read(object: impl Borrow<Object>) -> Vec<u8> {
    read_body(&object.borrow().body)
}

pub(crate) fn read_body(body: &Body) -> Vec<u8> {
    match body {
        Body::Inline(bytes) => bytes.clone(),
        Body::Parts(parts) => {
            let mut data = Vec::new();
            for segment in parts.segments(0, u64::MAX) {
                let mut part = vec![0; usize::try_from(segment.len).unwrap()];
                let file = parts.open(segment.index).unwrap();
                file.check_all(segment.offset, segment.offset + segment.len)
                    .unwrap();
                file.file()
                    .read_exact_at(&mut part, segment.offset)
                    .unwrap();
                data.extend_from_slice(&part);
            }
            data
        }
        Body::File(file) => {
            file.check_all(0, file.len()).unwrap();
            let mut data = vec![0; usize::try_from(file.len()).unwrap()];
            file.file().read_exact_at(&mut data, 0).unwrap();
            data
        }
    }
}

/// Every file under `files`.
pub(crate) fn object_files(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir.join("files"))
        .unwrap()
        .flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect()
}

/// Copies a directory with all of its files.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}
