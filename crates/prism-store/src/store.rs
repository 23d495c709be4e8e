//! The store: how it is opened, and what its parts share.
//!
//! Reads of objects are in `read`, writes in `put`, deletions and changes of metadata in `change`, listings in `scan` and
//! `history`. Buckets, uploads, replication and repair have types of their own. `commit` makes
//! all changes.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    buckets::Buckets,
    checked::Known,
    commit::{CommitStats, Committer, Freed, Op, Outcome, When},
    config::{Config, Durability},
    error::{Error, OpenError},
    files::Files,
    layout::Layout,
    lsm::Lsm,
    multipart::Uploads,
    pins::Pins,
    put::PutWriter,
    record::object_key,
    recovery::{RecoveryReport, recover},
    replica::{CatchUp, OpenChanges, Replicas},
    scrub::{Corruption, Integrity},
    types::check_key,
    uploads::Garbage,
    view::View,
};

/// Most buckets of one store: bounds the answer to a bucket listing.
pub const BUCKETS_MAX: usize = 10_000;
/// Most records of buckets, those of buckets that are gone included.
pub const BUCKET_RECORDS_MAX: usize = 10 * BUCKETS_MAX;
/// Longest document of a bucket, in bytes.
pub const CONFIG_MAX: usize = 64 * 1024;
/// Most garbage read at a time.
const GARBAGE_PAGE: usize = 100;

/// Buckets and objects in one directory, open in one process at a time.
///
/// Share it as `Arc<Store>`. The directory is unlocked when the store and every
/// [`PutWriter`] of it have been dropped.
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

/// The state that a store shares with its writers and readers.
pub(crate) struct Inner {
    pub(crate) committer: Committer,
    pub(crate) lsm: Arc<Lsm>,
    /// The other nodes; unset where each key has one replica.
    pub(crate) replicas: OnceLock<Arc<dyn Replicas>>,
    pub(crate) pins: Pins,
    pub(crate) known: Known,
    pub(crate) corruption: Corruption,
    /// The number of batches at the time when the log was last sealed.
    sealed_batches: AtomicU64,
    /// Dropped after the tree, because it has the lock of the directory.
    pub(crate) files: Arc<Files>,
    pub(crate) config: Config,
    recovery: RecoveryReport,
    identity: u64,
}

impl Store {
    /// Opens the store in `dir`, or creates it, and cleans up after a crash. Blocks on disk, for
    /// a time proportional to the number of object files.
    pub fn open(dir: impl AsRef<Path>, config: Config) -> Result<Self, OpenError> {
        config.check()?;
        let layout = Layout::open(dir.as_ref())?;
        let lsm = Arc::new(Lsm::open(&layout, &config)?);
        let generation = lsm.next_generation()?;
        let identity = lsm.identity()?.unwrap_or_default();
        let files = Arc::new(Files::open(layout, generation, &config)?);
        let recovery = recover(&lsm, &files)?;
        let origin = prism_replica::origin(&config.node, generation);
        let committer = Committer::new(
            Arc::clone(&lsm),
            Arc::clone(&files),
            config.durability,
            origin,
            lsm.epoch()?,
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

    /// The report of what was found at opening. Does not block.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.recovery
    }

    /// A number other than 0 that every created store has for itself. A copy of a store has the
    /// same. Does not block.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.inner.identity
    }

    /// The bytes of objects and parts; without a quota only of those in files. Does not block.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        self.inner.files.usage.used()
    }

    /// Appends an empty write to the log, if there was a write since the last call. Damage at
    /// the very end of a log looks like an interrupted write. Closing the store does the same.
    /// Without `fsync` it has no effect. Blocks on disk.
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

    /// The number of commits and of their batches so far. Does not block.
    #[must_use]
    pub fn commit_stats(&self) -> CommitStats {
        self.inner.committer.stats()
    }

    /// Whether an object of this length is kept in the tree, without a file of its own.
    #[must_use]
    pub fn fits_in_tree(&self, len: u64) -> bool {
        len <= self.inner.config.inline_max as u64
    }

    /// Begins to write an object of `expected_len` bytes, or of any length if that is `None`.
    /// Reads the tree, as [`Store::head`] does. The first bytes that need a file make it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] or [`Error::TooLarge`] if the announced length does not fit;
    /// [`Error::NoSuchBucket`].
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

    pub(crate) fn view(&self) -> View<'_> {
        self.inner.lsm.view()
    }

    /// Commits on this store alone, if the operation counts in the epoch of the commit. Removes
    /// what was replaced.
    pub(crate) fn submit_when(&self, op: Op, when: When) -> Result<Outcome, Error> {
        let outcome = self.inner.committer.submit_when(op, None, when);
        let outcome = outcome.map_err(|failure| failure.error)?;
        self.inner.release(&outcome);
        Ok(outcome)
    }

    /// Commits on all replicas, and removes what was replaced.
    pub(crate) fn submit(&self, op: Op) -> Result<Outcome, Error> {
        let outcome = self.inner.submit(op, None).map_err(|f| f.error)?;
        self.inner.release(&outcome);
        Ok(outcome)
    }
}

impl Inner {
    /// The bytes that the replacement of an object gives back to the quota; 0 without a quota.
    /// The commit asks again.
    pub(crate) fn replaceable(&self, object_key: &[u8]) -> Result<u64, Error> {
        if !self.files.usage.is_limited() {
            return Ok(0);
        }
        let current = self.lsm.view().object(object_key)?;
        Ok(current.map_or(0, |record| record.len))
    }

    /// Removes the files and the garbage that a commit left. Readers that have a file open go on
    /// reading it. Blocks on disk.
    pub(crate) fn release(&self, outcome: &Outcome) {
        for freed in &outcome.freed {
            match freed {
                Freed::File(id) => self.files.remove(*id),
                Freed::Garbage(Garbage::Manifest(id)) if !self.pins.doom(*id) => {}
                Freed::Garbage(garbage) => self.collect(*garbage),
            }
        }
    }

    /// Removes garbage and its files. A failure leaves it for the next opening. Blocks on disk.
    pub(crate) fn collect(&self, garbage: Garbage) {
        if let Err(error) = self.try_collect(garbage) {
            tracing::warn!(?garbage, %error, "garbage stays until the store is opened again");
        }
    }

    fn try_collect(&self, garbage: Garbage) -> Result<(), Error> {
        let op = Op::Collect(garbage);
        let outcome = self.committer.submit_when(op, None, When::Always);
        for freed in outcome.map_err(|failure| failure.error)?.freed {
            if let Freed::File(id) = freed {
                self.files.remove(id);
            }
        }
        Ok(())
    }

    /// Removes the garbage of earlier processes.
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
            tracing::warn!(%error, "the store was closed without sealing its log; a torn end is cut off at the next start");
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
