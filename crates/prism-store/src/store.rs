//! The store: how it is opened, and what its parts share.
//!
//! Reads of objects are in `read`, writes in `put`, deletions and changes of metadata in
//! `change`, listings in `scan`. `past` tells a store from its copies, `notes` has small documents
//! of the caller. Buckets, uploads, replication and repair have types of their own. `commit` makes
//! all changes, on the state in `inner`.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, OnceLock, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    bucket_usage::UsageOfBuckets,
    commit::{Committer, Op, Outcome, When},
    config::{Config, Durability, OBJECT_LEN_LIMIT},
    damage::Corruption,
    error::{Error, OpenError},
    files::Files,
    hot::Hot,
    inner::Inner,
    known::Known,
    layout::Layout,
    lsm::Lsm,
    object::Pins,
    recovery::{RecoveryReport, recover},
    view::View,
};

/// Bytes of recently read small objects that stay in memory.
const HOT_BYTES: u64 = 8 * 1024 * 1024;

/// Buckets and objects in one directory, open in one process at a time.
///
/// Share it as `Arc<Store>`. The directory is unlocked when the store and every
/// [`PutWriter`](crate::PutWriter) of it have been dropped.
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

impl Store {
    /// Opens the store in `dir`, or creates it, and cleans up after a crash. Blocks on disk, for
    /// a time proportional to the number of object files.
    pub fn open(dir: impl AsRef<Path>, config: Config) -> Result<Self, OpenError> {
        Self::open_in(dir.as_ref(), config).map_err(OpenError::or_no_space)
    }

    fn open_in(dir: &Path, mut config: Config) -> Result<Self, OpenError> {
        config.max_object_len = config.max_object_len.min(OBJECT_LEN_LIMIT);
        let layout = Layout::open(dir)?;
        let (lsm, past) = Lsm::open(&layout, &config)?;
        let generation = past.generation;
        let files = Files::open(layout, generation, &config)?;
        let recovery = recover(&lsm, &files)?;
        let origin = prism_cluster::replica::origin(&config.node, generation);
        let committer = Committer::new(origin, lsm.epoch()?);
        let inner = Inner {
            committer,
            usage: UsageOfBuckets::open(&lsm, generation)?,
            lsm,
            replicas: OnceLock::new(),
            hot: Hot::new(HOT_BYTES, config.hot_files),
            pins: Pins::default(),
            known: Known::new(config.recheck),
            corruption: Corruption::default(),
            sealed_batches: AtomicU64::new(0),
            files,
            config,
            recovery,
            past: RwLock::new(Arc::new(past)),
        };
        inner.load()?;
        inner.collect_all()?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The report of what was found at opening. Does not block.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.recovery
    }

    /// The bytes of objects and parts; without a quota only of those in files. Does not block.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        self.inner.files.usage.used()
    }

    /// Changes the reserve, the quota and the time between two comparisons of a block, from the
    /// next operation on. A store that was opened without a quota has not counted objects outside
    /// of files, so a later quota does not count them either. Does not block.
    pub fn set_bounds(
        &self,
        reserve_bytes: u64,
        quota_bytes: Option<u64>,
        recheck: std::time::Duration,
    ) {
        self.inner.files.set_room(reserve_bytes, quota_bytes);
        self.inner.known.set_recheck(recheck);
    }

    /// Appends an empty write to the log, if there was a write since the last call. Damage at
    /// the very end of a log looks like an interrupted write. Closing the store does the same.
    /// Without `fsync` it has no effect. Blocks on disk.
    pub fn seal_log(&self) -> Result<(), Error> {
        let batches = self.inner.committer.batches();
        let sealed = self.inner.sealed_batches.swap(batches, Ordering::Relaxed);
        if sealed == batches || self.inner.config.durability == Durability::None {
            return Ok(());
        }
        self.inner.files.check_room_for_tree()?;
        self.inner.lsm.seal_log()
    }

    /// The number of batches committed so far, each of which costs one flush of the log. Does
    /// not block.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.inner.committer.batches()
    }

    pub(crate) fn view(&self) -> View<'_> {
        self.inner.lsm.view()
    }

    /// Commits on this store alone, if the operation counts in the epoch of the commit. Removes
    /// what was replaced.
    pub(crate) fn submit_when(&self, op: Op, when: When) -> Result<Outcome, Error> {
        self.inner.finish(self.inner.submit_when(op, None, when))
    }

    /// Commits on all replicas, and removes what was replaced.
    pub(crate) fn submit(&self, op: Op) -> Result<Outcome, Error> {
        self.inner.finish(self.inner.submit(op, None))
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
