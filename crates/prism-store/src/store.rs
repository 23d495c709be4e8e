//! The store itself: its operations on buckets and objects, and how they read.
//! How they commit is in `commit`, how an object comes in, in `put`; deletions and
//! other changes are in `change`, buckets in `buckets`, listings in `scan` and
//! `history`, uploads in parts in `multipart`.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    blocks,
    buckets::Buckets,
    checked::{CheckedFile, Known, wrong_length},
    commit::{CommitStats, Committer, Freed, Op, Outcome, When, version_of},
    config::{Config, Durability},
    error::{Error, OpenError},
    files::Files,
    layout::{FileId, Layout},
    lsm::Lsm,
    multipart::Uploads,
    parts::Parts,
    pins::Pins,
    put::PutWriter,
    record::{Payload, Record, object_key},
    recovery::{RecoveryReport, recover},
    replica::{CatchUp, OpenChanges, Replicas},
    scrub::{Corruption, Integrity},
    types::{Body, Derived, Object, ObjectInfo, check_bucket, check_key},
    upgrade::note_changes,
    uploads::Garbage,
    versions::VersionId,
    view::View,
};

/// Most buckets of one store: bounds the answer to a bucket listing.
pub const BUCKETS_MAX: usize = 10_000;
/// Most names of which something is known: buckets, and those that are gone.
pub const BUCKET_RECORDS_MAX: usize = 10 * BUCKETS_MAX;
/// Longest document of a bucket, in bytes.
pub const CONFIG_MAX: usize = 64 * 1024;
/// Garbage looked for at a time.
const GARBAGE_PAGE: usize = 100;

/// How often a reader looks again after losing its file to an overwrite. Each
/// time another commit must have happened between two of its system calls.
const OPEN_ATTEMPTS: usize = 64;

/// Buckets and objects in one directory, open in one process at a time.
///
/// Share it as `Arc<Store>`. The directory is unlocked when the store and every
/// [`PutWriter`] of it have been dropped.
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

/// What the store shares with its writers.
pub(crate) struct Inner {
    pub(crate) committer: Committer,
    pub(crate) lsm: Arc<Lsm>,
    /// Of other nodes; none where there is one replica.
    pub(crate) replicas: OnceLock<Arc<dyn Replicas>>,
    pub(crate) pins: Pins,
    pub(crate) known: Known,
    pub(crate) corruption: Corruption,
    /// Batches committed when the log was last sealed.
    sealed_batches: AtomicU64,
    /// After the tree, so that its lock on the directory is given up last.
    pub(crate) files: Arc<Files>,
    pub(crate) config: Config,
    recovery: RecoveryReport,
    identity: u64,
}

impl Store {
    /// Opens the store in `dir`, creating it if there is none, and puts it in
    /// order after a crash. Blocks on disk, for a time proportional to the
    /// number of object files.
    pub fn open(dir: impl AsRef<Path>, config: Config) -> Result<Self, OpenError> {
        config.check()?;
        let layout = Layout::open(dir.as_ref())?;
        let lsm = Arc::new(Lsm::open(&layout, &config)?);
        note_changes(&lsm)?;
        let generation = lsm.next_generation()?;
        let identity = lsm.identity()?.unwrap_or_default();
        let files = Arc::new(Files::open(layout, generation, &config)?);
        let recovery = recover(&lsm, &files)?;
        let origin = prism_replica::origin(&config.node, generation);
        let committer = Committer::new(
            Arc::clone(&lsm),
            Arc::clone(&files),
            config.durability,
            (origin, lsm.epoch()?),
        );
        committer.load().map_err(OpenError::from_store)?;
        let inner = Inner {
            committer,
            lsm,
            replicas: OnceLock::new(),
            pins: Pins::default(),
            known: Known::new(config.recheck),
            corruption: Corruption::default(),
            sealed_batches: AtomicU64::new(0),
            files,
            config,
            recovery,
            identity,
        };
        inner.collect_all().map_err(OpenError::from_store)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The buckets.
    #[must_use]
    pub fn buckets(&self) -> Buckets<'_> {
        Buckets { store: self }
    }

    /// The uploads in parts that have not ended.
    #[must_use]
    pub fn uploads(&self) -> Uploads<'_> {
        Uploads { store: self }
    }

    /// The prepared changes of other primaries.
    #[must_use]
    pub fn open_changes(&self) -> OpenChanges<'_> {
        OpenChanges { store: self }
    }

    /// The exchange of copies with other replicas.
    #[must_use]
    pub fn catch_up(&self) -> CatchUp<'_> {
        CatchUp { store: self }
    }

    /// The search for damage, and its repair.
    #[must_use]
    pub fn integrity(&self) -> Integrity<'_> {
        Integrity { store: self }
    }

    /// What was found at opening. Does not block.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.recovery
    }

    /// Tells this store from every other one that was ever created: one that was
    /// lost and begun anew has another. Not 0. A copy of a store has the same. Does
    /// not block.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.inner.identity
    }

    /// Bytes of objects and parts; without a quota only of those in files. Does
    /// not block.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        self.inner.files.usage.used()
    }

    /// Puts an empty write behind the last one, if there was any since the last
    /// call: damage of the log's very end cannot be told from a write that was
    /// interrupted. Closing the store does the same. Without `fsync` it does
    /// nothing. Blocks on disk.
    ///
    /// # Errors
    /// Where the tree takes no writes.
    pub fn seal_log(&self) -> Result<(), Error> {
        let batches = self.inner.committer.stats().batches;
        let sealed = self.inner.sealed_batches.swap(batches, Ordering::Relaxed);
        if sealed == batches || self.inner.config.durability == Durability::None {
            return Ok(());
        }
        self.inner.files.check_room_for_tree()?;
        self.inner.lsm.seal_log()
    }

    /// How commits were grouped so far. Does not block.
    #[must_use]
    pub fn commit_stats(&self) -> CommitStats {
        self.inner.committer.stats()
    }

    /// Whether all of an object of this length is kept in the tree, and no file is made
    /// for it.
    #[must_use]
    pub fn fits_in_tree(&self, len: u64) -> bool {
        len <= self.inner.config.inline_max as u64
    }

    /// Begins to write an object of `expected_len` bytes, or of as many as will
    /// come. Only looks into the tree, as [`Store::head`] does: a file is made with the
    /// first bytes that need one.
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
        self.buckets().get(bucket)?;
        let object_key = object_key(bucket, key);
        PutWriter::begin(Arc::clone(&self.inner), bucket, object_key, expected_len)
    }

    /// Opens an object; `None` if there is none of that key. A small one that was read
    /// a moment ago, and not changed since, comes from memory. May block on disk.
    pub fn get(&self, bucket: &str, key: &str) -> Result<Option<Arc<Object>>, Error> {
        let (object_key, hot) = (object_key(bucket, key), &self.inner.lsm.hot);
        let (found, leave) = hot.get(&object_key);
        if let Some(object) = found
            && match &object.body {
                Body::File(file) => file.is_still_good(&self.inner.known),
                Body::Inline(_) | Body::Parts(_) => true,
            }
        {
            return Ok(Some(object));
        }
        let found = self.get_version(bucket, key, None)?.map(Arc::new);
        if let Some(object) = &found {
            hot.keep(object_key, leave, object);
        }
        Ok(found)
    }

    /// Opens one version of an object, or without one the object.
    ///
    /// # Errors
    /// [`Error::NoSuchVersion`], [`Error::IsDeleteMarker`].
    pub fn get_version(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Result<Option<Object>, Error> {
        let note = |error: &Error| {
            if version.is_none() && error.is_damage() {
                let object_key = object_key(bucket, key);
                self.inner.corruption.note_object(&object_key, error);
            }
        };
        let opened = self.read(bucket, key, version, |view, record| match record.payload {
            Payload::Inline { id, crc } => inline_body(view, &record, id, crc)
                .inspect_err(note)
                .map(|body| Some((record, body))),
            Payload::File { id } => self
                .open_body(view, &record, id)
                .map(|body| body.map(|body| (record, body))),
            Payload::Parts { id } => self
                .open_parts(bucket, key, version, id)
                .inspect_err(note)
                .map(|parts| parts.map(|parts| (record, Body::Parts(parts)))),
            Payload::Marker => Err(Error::IsDeleteMarker),
        })?;
        Ok(opened.map(|(record, body)| Object {
            stamp: record.stamp,
            version: record.version,
            meta: record.meta,
            len: record.len,
            body,
            derived: Derived::default(),
        }))
    }

    /// Looks an object up; `None` if there is none of that key. May block on
    /// disk.
    pub fn head(&self, bucket: &str, key: &str) -> Result<Option<ObjectInfo>, Error> {
        self.head_version(bucket, key, None)
    }

    /// Looks one version of an object up, or without one the object.
    ///
    /// # Errors
    /// As for [`Store::get_version`].
    pub fn head_version(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Result<Option<ObjectInfo>, Error> {
        let found = self.lookup(&self.view(), bucket, key, version)?;
        Ok(found.map(|record| ObjectInfo {
            stamp: record.stamp,
            version: record.version,
            meta: record.meta,
            len: record.len,
        }))
    }

    pub(crate) fn view(&self) -> View<'_> {
        self.inner.lsm.view()
    }

    pub(crate) fn lookup(
        &self,
        view: &View<'_>,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Result<Option<Record>, Error> {
        check_bucket(bucket)?;
        check_key(key)?;
        let object_key = object_key(bucket, key);
        if let Some(id) = version {
            let (record, _) = version_of(view, bucket, &object_key, id)?;
            return match record.payload {
                Payload::Marker => Err(Error::IsDeleteMarker),
                _ => Ok(Some(record)),
            };
        }
        let found = view.object(&object_key)?;
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
        version: Option<VersionId>,
        open: impl Fn(&View<'_>, Record) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut missing = None;
        for _ in 0..OPEN_ATTEMPTS {
            let view = self.view();
            let Some(record) = self.lookup(&view, bucket, key, version)? else {
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
    fn open_body(
        &self,
        view: &View<'_>,
        record: &Record,
        id: FileId,
    ) -> Result<Option<Body>, Error> {
        match CheckedFile::open(&self.inner, id, || view.file(id))? {
            Some(file) if file.len() == record.len => Ok(Some(Body::File(file))),
            Some(file) => Err(wrong_length(file.len(), record.len)),
            None => Ok(None),
        }
    }

    /// `None` if the object is no longer this one.
    fn open_parts(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
        id: FileId,
    ) -> Result<Option<Parts>, Error> {
        // Pinned first, then looked at: whoever replaces the object from here on
        // sees the pin.
        let pin = Pinned {
            store: &self.inner,
            id,
        };
        self.inner.pins.pin(id);
        let view = self.view();
        let record = self.lookup(&view, bucket, key, version)?;
        if record.is_none_or(|record| record.payload != Payload::Parts { id }) {
            return Ok(None);
        }
        let manifest = view.manifest(id)?;
        let manifest = manifest.ok_or_else(|| Error::corrupt("manifest missing"))?;
        std::mem::forget(pin);
        Ok(Some(Parts::new(Arc::clone(&self.inner), id, manifest)))
    }

    /// Commits here alone, if it still counts then.
    pub(crate) fn submit_when(&self, op: Op, when: When) -> Result<Outcome, Error> {
        let outcome = self.inner.committer.submit_when(op, None, when);
        let outcome = outcome.map_err(|failure| failure.error)?;
        self.inner.release(&outcome);
        Ok(outcome)
    }

    /// Commits, and sees to what has been replaced.
    pub(crate) fn submit(&self, op: Op) -> Result<Outcome, Error> {
        let outcome = self.inner.submit(op, None).map_err(|f| f.error)?;
        self.inner.release(&outcome);
        Ok(outcome)
    }
}

/// A pin that is not a reader's yet.
struct Pinned<'a> {
    store: &'a Inner,
    id: FileId,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if self.store.pins.unpin(self.id) {
            self.store.collect(Garbage::Manifest(self.id));
        }
    }
}

impl Inner {
    /// Bytes that a new object in place of this one gives back to the quota, or
    /// 0 without one. The commit asks again.
    pub(crate) fn replaceable(&self, object_key: &[u8]) -> Result<u64, Error> {
        if !self.files.usage.is_limited() {
            return Ok(0);
        }
        let current = self.lsm.view().object(object_key)?;
        Ok(current.map_or(0, |record| record.len))
    }

    /// Removes what nothing refers to any more. Readers that have a file open
    /// go on reading it. Blocks on disk.
    pub(crate) fn release(&self, outcome: &Outcome) {
        for freed in &outcome.freed {
            match freed {
                Freed::File(id) => self.files.remove(*id),
                Freed::Garbage(Garbage::Manifest(id)) if !self.pins.doom(*id) => {}
                Freed::Garbage(garbage) => self.collect(*garbage),
            }
        }
    }

    /// Takes garbage apart. What fails is left for the next opening. Blocks on
    /// disk.
    pub(crate) fn collect(&self, garbage: Garbage) {
        if let Err(error) = self.try_collect(garbage) {
            tracing::warn!(?garbage, %error, "not collected");
        }
    }

    fn try_collect(&self, garbage: Garbage) -> Result<(), Error> {
        let outcome = self.committer.submit(Op::Collect(garbage), None);
        for freed in outcome.map_err(|failure| failure.error)?.freed {
            if let Freed::File(id) = freed {
                self.files.remove(id);
            }
        }
        Ok(())
    }

    /// What an earlier process has left.
    fn collect_all(&self) -> Result<(), Error> {
        loop {
            let found = self.lsm.view().garbage(GARBAGE_PAGE)?;
            if found.is_empty() {
                return Ok(());
            }
            for garbage in found {
                self.try_collect(garbage)?;
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.lsm.seal_log() {
            tracing::warn!(%error, "the store was not closed in order");
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

pub(crate) fn inline_body(
    view: &View<'_>,
    record: &Record,
    id: FileId,
    crc: u32,
) -> Result<Body, Error> {
    let bytes = view
        .inline(id)?
        .ok_or_else(|| Error::corrupt("inline bytes missing"))?;
    if bytes.len() as u64 != record.len || blocks::crc32c(&bytes) != crc {
        return Err(Error::corrupt("checksum of inline bytes differs"));
    }
    Ok(Body::Inline(bytes))
}
