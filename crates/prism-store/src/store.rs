//! The store: how it is opened, and the facts about the whole of it.
//!
//! Reads of objects are in `read`, writes in `put`, deletions and changes of metadata in
//! `change`, listings in `scan`. `notes` has small documents of the caller. Buckets, uploads,
//! replication and repair have types of their own. `primary` makes all changes.

use std::{
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use prism_cluster::{StoreLife, StoreMark};

use crate::{
    bucket_usage::BucketUsage,
    commit::{Committer, Op, Outcome, When},
    config::{Config, OBJECT_LEN_LIMIT},
    error::{Error, OpenError},
    files::Files,
    primary::Primary,
    recovery::RecoveryReport,
    storage::Storage,
    types::{BucketInfo, check_bucket},
    under_way::Locks,
    view::View,
};

/// Buckets and objects in one directory, open in one process at a time.
///
/// Share it as `Arc<Store>`. The directory is unlocked when the store and every
/// [`PutWriter`](crate::PutWriter) of it have been dropped.
pub struct Store {
    pub(crate) primary: Arc<Primary>,
}

impl Store {
    /// Opens the store in `dir`, or creates it, and cleans up after a crash. Blocks on disk, for
    /// a time proportional to the number of object files.
    pub fn open(dir: impl AsRef<Path>, config: Config) -> Result<Self, OpenError> {
        Self::open_in(dir.as_ref(), config).map_err(OpenError::or_no_space)
    }

    fn open_in(dir: &Path, mut config: Config) -> Result<Self, OpenError> {
        config.max_object_len = config.max_object_len.min(OBJECT_LEN_LIMIT);
        let (storage, past) = Storage::open(dir, &config)?;
        let committer = Committer::open(Arc::clone(&storage), past, &config)?;
        committer.collect_all()?;
        Ok(Self {
            primary: Arc::new(Primary {
                committer,
                storage,
                replicas: OnceLock::new(),
                locks: Locks::default(),
                config,
            }),
        })
    }

    /// The report of what was found at opening. Does not block.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.storage().recovery
    }

    /// The bytes of objects and parts; without a quota only of those in files. Does not block.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        self.files().usage.used()
    }

    /// The usage of a bucket in this store. Does not block.
    #[must_use]
    pub fn bucket_usage(&self, bucket: &str) -> BucketUsage {
        self.committer().usage.get(bucket)
    }

    /// Changes the reserve, the quota and the time between two comparisons of a block, from the
    /// next operation on. A store that was opened without a quota has not counted objects outside
    /// of files, so a later quota does not count them either. Does not block.
    pub fn set_bounds(&self, reserve_bytes: u64, quota_bytes: Option<u64>, recheck: Duration) {
        self.files().set_room(reserve_bytes, quota_bytes);
        self.storage().known.set_recheck(recheck);
    }

    /// Appends an empty write to the log, if there was a write since the last call. Damage at
    /// the very end of a log looks like an interrupted write. Closing the store does the same.
    /// Without `fsync` it has no effect. Blocks on disk.
    pub fn seal_log(&self) -> Result<(), Error> {
        self.committer().seal_log()
    }

    /// A number other than 0 that every created store has for itself. A copy of a store has the
    /// same, until [`Store::renew_identity`]. Does not block.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.committer().past().identity
    }

    /// The openings of this store, up to the present one. Does not block.
    #[must_use]
    pub fn life(&self) -> StoreLife {
        self.committer().past().life.clone()
    }

    /// The mark of this store at this moment. It counts the commits that are as durable as
    /// configured, and so every answered write. Does not block.
    ///
    /// Without `fsync` a loss of power takes back commits that a mark may count. The store has
    /// not lived such a mark.
    #[must_use]
    pub fn mark(&self) -> StoreMark {
        self.committer().past().mark(self.storage().lsm.commits())
    }

    /// Whether this store reported the mark, or goes on from the one that did: see
    /// [`StoreLife::has_lived`]. A mark of another identity is one of another store. For marks of
    /// earlier openings the commits of this one do not count, so the answer is the same at any
    /// time. Does not block.
    ///
    /// A copy that was not made at one moment, file by file from an open store, may count commits
    /// of which it lacks a part.
    #[must_use]
    pub fn has_lived(&self, mark: &StoreMark) -> bool {
        let past = self.committer().past();
        let commits = self.storage().lsm.commits();
        mark.store == past.identity && past.life.has_lived(mark, commits)
    }

    /// Gives the store another identity, and a life that begins with this opening. The cluster
    /// then takes it for another store. Returns the identity. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Stalled`]. The store then has one of both identities at the
    /// next opening, and its former one until then.
    pub fn renew_identity(&self) -> Result<u64, Error> {
        let past = self.committer().past();
        let past = Arc::new(past.renewed(self.storage().lsm.commits())?);
        let renewal = Op::Renew(Arc::clone(&past));
        self.committer().commit(renewal, When::Always)?;
        Ok(past.identity)
    }

    pub(crate) fn committer(&self) -> &Committer {
        &self.primary.committer
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.primary.storage
    }

    pub(crate) fn files(&self) -> &Files {
        &self.primary.storage.files
    }

    pub(crate) fn view(&self) -> View<'_> {
        self.primary.storage.lsm.view()
    }

    pub(crate) fn existing_bucket(&self, bucket: &str) -> Result<BucketInfo, Error> {
        check_bucket(bucket)?;
        self.view().existing_bucket(bucket)
    }

    /// Commits on all replicas, and removes what was replaced.
    pub(crate) fn submit(&self, op: Op) -> Result<Outcome, Error> {
        self.primary.commit(op, None)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("dir", &self.files().layout().root())
            .field("config", &self.primary.config)
            .finish_non_exhaustive()
    }
}
