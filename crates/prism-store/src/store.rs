//! The store itself: its operations, and how they read. How they commit is in
//! `commit`, how an object comes in, in `put`.

use std::{fmt, io, ops::Bound, path::Path, sync::Arc};

use crate::{
    blocks,
    commit::{CommitStats, Committer, Op},
    config::Config,
    error::{Error, OpenError},
    files::Files,
    layout::{FileId, Layout},
    lsm::{Lsm, View},
    put::PutWriter,
    record::{Payload, Record, object_key, split_object_key},
    recovery::{RecoveryReport, recover},
    types::{
        Body, BucketInfo, Entry, KEY_MAX, Listing, Object, ObjectInfo, Verified, check_bucket,
        check_key,
    },
};

/// Most buckets of one store: bounds the answer to a bucket listing.
pub const BUCKETS_MAX: usize = 10_000;
/// Most entries of one page of a listing: below 1.3 MiB with the longest keys.
pub const LIST_MAX: usize = 1000;

/// Longest prefix and `start_after`, in bytes: a key and something beyond it.
const LIST_ARGUMENT_MAX: usize = 2 * KEY_MAX;

/// How often a reader looks again after losing its file to an overwrite. Each
/// time another commit must have happened between two of its system calls.
const OPEN_ATTEMPTS: usize = 64;

/// Buckets and objects in one directory, open in one process at a time.
///
/// Share it as `Arc<Store>`. The directory is unlocked when the store and every
/// [`PutWriter`] of it have been dropped.
pub struct Store {
    inner: Arc<Inner>,
}

/// What the store shares with its writers.
pub(crate) struct Inner {
    pub(crate) committer: Committer,
    lsm: Arc<Lsm>,
    /// After the tree, so that its lock on the directory is given up last.
    pub(crate) files: Arc<Files>,
    pub(crate) config: Config,
    recovery: RecoveryReport,
}

impl Store {
    /// Opens the store in `dir`, creating it if there is none, and puts it in
    /// order after a crash. Blocks on disk, for a time proportional to the
    /// number of object files.
    pub fn open(dir: impl AsRef<Path>, config: Config) -> Result<Self, OpenError> {
        config.check()?;
        let layout = Layout::open(dir.as_ref())?;
        let lsm = Arc::new(Lsm::open(&layout, &config)?);
        let generation = lsm.next_generation()?;
        let files = Arc::new(Files::open(layout, generation, &config)?);
        let recovery = recover(&lsm, &files)?;
        let committer = Committer::new(Arc::clone(&lsm), Arc::clone(&files), config.durability);
        let inner = Inner {
            committer,
            lsm,
            files,
            config,
            recovery,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// What was found at opening. Does not block.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.recovery
    }

    /// How commits were grouped so far. Does not block.
    #[must_use]
    pub fn commit_stats(&self) -> CommitStats {
        self.inner.committer.stats()
    }

    /// Creates a bucket; [`Error::AlreadyExists`] if there is one of that name.
    /// Blocks on disk.
    pub fn create_bucket(&self, bucket: &str, created_ms: u64) -> Result<(), Error> {
        check_bucket(bucket)?;
        self.inner.files.check_room(0)?;
        let name = bucket.to_owned();
        self.submit(Op::CreateBucket { name, created_ms })?;
        Ok(())
    }

    /// Deletes an empty bucket. Blocks on disk.
    pub fn delete_bucket(&self, bucket: &str) -> Result<(), Error> {
        check_bucket(bucket)?;
        let name = bucket.to_owned();
        self.submit(Op::DeleteBucket { name })?;
        Ok(())
    }

    /// Looks a bucket up; [`Error::NoSuchBucket`] if there is none. May block
    /// on disk.
    pub fn head_bucket(&self, bucket: &str) -> Result<BucketInfo, Error> {
        check_bucket(bucket)?;
        self.view().bucket(bucket)?.ok_or(Error::NoSuchBucket)
    }

    /// All buckets, by name, at most [`BUCKETS_MAX`]. May block on disk.
    pub fn list_buckets(&self) -> Result<Vec<BucketInfo>, Error> {
        self.view().buckets(BUCKETS_MAX)
    }

    /// Begins to write an object of `expected_len` bytes, or of as many as will
    /// come. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`] or [`Error::TooLarge`] at once if the announced
    /// length cannot be taken, [`Error::NoSuchBucket`].
    pub fn begin_put(
        &self,
        bucket: &str,
        key: &str,
        expected_len: Option<u64>,
    ) -> Result<PutWriter, Error> {
        check_key(key)?;
        self.head_bucket(bucket)?;
        let object_key = object_key(bucket, key);
        PutWriter::begin(Arc::clone(&self.inner), bucket, object_key, expected_len)
    }

    /// Opens an object; `None` if there is none of that key. May block on disk.
    pub fn get(&self, bucket: &str, key: &str) -> Result<Option<Object>, Error> {
        let opened = self.read(bucket, key, |view, record| match record.payload {
            Payload::Inline { id, crc } => {
                inline_body(view, &record, id, crc).map(|body| Some((record, body)))
            }
            Payload::File { id } => self
                .open_body(&record, id)
                .map(|body| body.map(|body| (record, body))),
        })?;
        Ok(opened.map(|(record, body)| Object {
            meta: record.meta,
            len: record.len,
            body,
        }))
    }

    /// Looks an object up; `None` if there is none of that key. May block on
    /// disk.
    pub fn head(&self, bucket: &str, key: &str) -> Result<Option<ObjectInfo>, Error> {
        let found = self.lookup(&self.view(), bucket, key)?;
        Ok(found.map(|record| ObjectInfo {
            meta: record.meta,
            len: record.len,
        }))
    }

    /// Deletes an object, and says whether there was one. Works on a full disk.
    /// Blocks on disk.
    pub fn delete(&self, bucket: &str, key: &str) -> Result<bool, Error> {
        // Deleting what is not there is common and need not wait for the disk.
        if self.lookup(&self.view(), bucket, key)?.is_none() {
            return Ok(false);
        }
        self.submit(Op::Delete {
            bucket: bucket.to_owned(),
            object_key: object_key(bucket, key),
        })
    }

    /// At most `max` (and [`LIST_MAX`]) objects whose keys begin with `prefix`
    /// and are greater than `start_after`, in the order of their bytes. May
    /// block on disk.
    pub fn list(
        &self,
        bucket: &str,
        prefix: &str,
        start_after: &str,
        max: usize,
    ) -> Result<Listing, Error> {
        self.head_bucket(bucket)?;
        if prefix.len().max(start_after.len()) > LIST_ARGUMENT_MAX {
            return Err(Error::InvalidName("prefix or start_after too long"));
        }
        if max == 0 {
            return Ok(Listing::default());
        }
        let max = max.min(LIST_MAX);
        let first = object_key(bucket, prefix);
        let after = object_key(bucket, start_after);
        let begin = match start_after.is_empty() || after < first {
            true => Bound::Included(first.clone()),
            false => Bound::Excluded(after),
        };
        let mut listing = Listing::default();
        let view = self.view();
        for found in view.objects((begin, Bound::Unbounded)) {
            let (object_key, record) = found?;
            if !object_key.starts_with(&first) {
                break;
            }
            if listing.entries.len() == max {
                listing.truncated = true;
                break;
            }
            listing.entries.push(entry(&object_key, record)?);
        }
        Ok(listing)
    }

    /// Reads an object in full and compares its checksums; `None` if there is
    /// none of that key, [`Error::Corrupt`] if it is not what was written.
    /// Blocks on disk, for as long as reading takes.
    pub fn verify(&self, bucket: &str, key: &str) -> Result<Option<Verified>, Error> {
        self.read(bucket, key, |view, record| {
            match record.payload {
                Payload::Inline { id, crc } => drop(inline_body(view, &record, id, crc)?),
                Payload::File { id } => {
                    let Some(Body::File { file, len }) = self.open_body(&record, id)? else {
                        return Ok(None);
                    };
                    let recorded = view.file(id)?;
                    let recorded = recorded.ok_or_else(|| Error::corrupt("no checksums"))?;
                    blocks::verify(&file, len, &recorded.crcs)?;
                }
            }
            Ok(Some(Verified { bytes: record.len }))
        })
    }

    fn view(&self) -> View<'_> {
        self.inner.lsm.view()
    }

    fn lookup(&self, view: &View<'_>, bucket: &str, key: &str) -> Result<Option<Record>, Error> {
        check_bucket(bucket)?;
        check_key(key)?;
        let found = view.object(&object_key(bucket, key))?;
        if found.is_none() && view.bucket(bucket)?.is_none() {
            return Err(Error::NoSuchBucket);
        }
        Ok(found)
    }

    /// Looks up and opens, again if the file was replaced in between, which
    /// `open` reports by `None`.
    fn read<T>(
        &self,
        bucket: &str,
        key: &str,
        open: impl Fn(&View<'_>, Record) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut missing = None;
        for _ in 0..OPEN_ATTEMPTS {
            let view = self.view();
            let Some(record) = self.lookup(&view, bucket, key)? else {
                return Ok(None);
            };
            if missing == Some(record.payload) {
                break;
            }
            missing = Some(record.payload);
            if let Some(opened) = open(&view, record)? {
                return Ok(Some(opened));
            }
        }
        Err(Error::corrupt("object file missing"))
    }

    /// `None` if there is no such file.
    fn open_body(&self, record: &Record, id: FileId) -> Result<Option<Body>, Error> {
        match self.inner.files.open_file(id) {
            Ok((file, len)) if len == record.len => Ok(Some(Body::File { file, len })),
            Ok((_, len)) => Err(Error::corrupt(format!(
                "file of {len} bytes instead of {}",
                record.len
            ))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Commits and removes the replaced file; says whether there was an object.
    fn submit(&self, op: Op) -> Result<bool, Error> {
        let outcome = self.inner.committer.submit(op).map_err(|f| f.error)?;
        self.inner.remove_replaced(outcome.replaced);
        Ok(outcome.replaced.is_some())
    }
}

impl Inner {
    /// Readers that have the file open go on reading it.
    pub(crate) fn remove_replaced(&self, replaced: Option<Payload>) {
        if let Some(Payload::File { id }) = replaced {
            self.files.remove(id);
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("dir", &self.inner.files.layout().root())
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

fn inline_body(view: &View<'_>, record: &Record, id: FileId, crc: u32) -> Result<Body, Error> {
    let bytes = view
        .inline(id)?
        .ok_or_else(|| Error::corrupt("inline bytes missing"))?;
    if bytes.len() as u64 != record.len || crc32c::crc32c(&bytes) != crc {
        return Err(Error::corrupt("checksum of inline bytes differs"));
    }
    Ok(Body::Inline(bytes))
}

fn entry(object_key: &[u8], record: Record) -> Result<Entry, Error> {
    let (_, key) = split_object_key(object_key).ok_or_else(|| Error::corrupt("object key"))?;
    Ok(Entry {
        key: key.to_owned(),
        len: record.len,
        etag: record.meta.etag,
        created_ms: record.meta.created_ms,
    })
}
