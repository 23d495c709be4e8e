//! The queue of operations, and the state that only commits change.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::RwLock;
use prism_cluster::replica::{Phase, Stamp, StampClock, origin};
use prism_common::group::Group;

use super::op::{OpResult, Queued};
use crate::{
    bucket_usage::UsageOfBuckets,
    config::{Config, Durability},
    error::{Error, OpenError},
    hot::Hot,
    object::Object,
    past::Past,
    storage::Storage,
    under_way::Index,
};

/// Bytes of recently read small objects that stay in memory.
const HOT_BYTES: u64 = 8 * 1024 * 1024;

/// The record of the tree `system` with the store's epoch, and the one with the cluster's state
/// in that epoch, as it was saved.
pub(super) const EPOCH_KEY: &str = "epoch";
pub(super) const CLUSTER_KEY: &str = "cluster";

/// The queue of operations, and the state that only commits change.
pub(crate) struct Committer {
    pub(super) storage: Arc<Storage>,
    pub(super) group: Group<Queued, OpResult>,
    pub(crate) index: Index,
    pub(crate) buckets: Names,
    pub(crate) usage: UsageOfBuckets,
    pub(crate) hot: Hot<Object>,
    clock: StampClock,
    /// The store's epoch. The commit that changes it has a batch of its own, so all of a batch
    /// is of one epoch.
    pub(super) epoch: AtomicU64,
    /// The identity and the openings.
    past: RwLock<Arc<Past>>,
    /// The number of commits when the log was last sealed, the sealing included.
    sealed_commits: AtomicU64,
}

impl Committer {
    /// Reads the state of the store. Blocks on disk.
    pub(crate) fn open(
        storage: Arc<Storage>,
        past: Past,
        config: &Config,
    ) -> Result<Self, OpenError> {
        let index = Index::default();
        for record in storage.lsm.view().all_pending() {
            let record = record?;
            let pending = record.pending();
            index.insert(record.scope, pending);
        }
        Ok(Self {
            group: Group::new(),
            index,
            buckets: Names::read(&storage)?,
            usage: UsageOfBuckets::open(&storage.lsm, past.generation)?,
            hot: Hot::new(HOT_BYTES, config.hot_files),
            clock: StampClock::new(origin(&config.node, past.generation)),
            // The first epoch, if the store never adopted another.
            epoch: AtomicU64::new(storage.lsm.number(EPOCH_KEY)?.unwrap_or(1)),
            past: RwLock::new(Arc::new(past)),
            sealed_commits: AtomicU64::new(storage.lsm.commits()),
            storage,
        })
    }

    /// Seals the log, if there was a commit since it was last sealed.
    pub(crate) fn seal_log(&self) -> Result<(), Error> {
        let commits = self.storage.lsm.commits();
        let sealed = self.sealed_commits.load(Ordering::Relaxed);
        if sealed == commits || self.storage.files.durability == Durability::None {
            return Ok(());
        }
        self.storage.files.check_room_for_tree()?;
        self.storage.lsm.seal_log()?;
        self.sealed_commits.store(commits + 1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The cluster's state that was saved with the epoch, if any was.
    pub(crate) fn saved_state(&self) -> Result<Option<Vec<u8>>, Error> {
        let state = self.storage.lsm.system.get(CLUSTER_KEY)?;
        Ok(state.map(|state| state.to_vec()))
    }

    pub(crate) fn past(&self) -> Arc<Past> {
        let past = self.past.read();
        Arc::clone(&past)
    }

    /// Takes the place of the past in memory, once it is on the disk.
    pub(super) fn set_past(&self, past: Arc<Past>) {
        *self.past.write() = past;
    }

    /// A stamp above `above`, the present one of the key.
    pub(crate) fn stamp(&self, epoch: u64, above: Option<Stamp>) -> Stamp {
        self.clock
            .next(epoch, now_us(), above.unwrap_or(Stamp::NONE))
    }

    /// Makes every later stamp greater than this one.
    pub(crate) fn observe(&self, stamp: Stamp) {
        self.clock.observe(stamp);
    }
}

/// The names of the buckets that exist and are not being deleted. They are in memory because
/// every request asks for one.
#[derive(Debug)]
pub(crate) struct Names {
    live: RwLock<HashSet<String>>,
    /// Changes with every record.
    version: AtomicU64,
}

impl Names {
    /// The version begins at a number that no other process has for long.
    fn read(storage: &Storage) -> Result<Self, Error> {
        let buckets = storage.lsm.view().buckets(usize::MAX)?.into_iter();
        let live = buckets.filter(|bucket| bucket.which.phase == Phase::Live);
        Ok(Self {
            live: RwLock::new(live.map(|bucket| bucket.name).collect()),
            version: AtomicU64::new(now_us().wrapping_mul(1 << 20)),
        })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        let names = self.live.read();
        names.contains(name)
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, name: &str, is_there: bool) {
        let mut names = self.live.write();
        if is_there {
            names.insert(name.to_owned())
        } else {
            names.remove(name)
        };
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}
