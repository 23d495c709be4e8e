//! The queue of operations, and the state that only commits change.

use std::{
    collections::HashSet,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use prism_cluster::replica::{Stamp, StampClock};

use super::op::{OpResult, Queued};
use crate::{
    group::Group,
    replica::{Index, Locks},
};

/// The queue of operations, and the state that only commits change.
pub(crate) struct Committer {
    pub(super) group: Group<Queued, OpResult>,
    pub(crate) index: Index,
    pub(crate) buckets: Names,
    pub(crate) locks: Locks,
    clock: StampClock,
    /// The store's epoch. The commit that changes it has a batch of its own, so all of a batch
    /// is of one epoch.
    pub(super) epoch: AtomicU64,
    pub(super) batches: AtomicU64,
}

impl Committer {
    pub(crate) fn new(origin: u64, epoch: u64) -> Self {
        Self {
            group: Group::new(),
            index: Index::default(),
            buckets: Names::default(),
            locks: Locks::default(),
            clock: StampClock::new(origin),
            epoch: AtomicU64::new(epoch),
            batches: AtomicU64::new(0),
        }
    }

    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
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
#[derive(Debug, Default)]
pub(crate) struct Names {
    live: RwLock<HashSet<String>>,
    /// Changes with every record.
    version: AtomicU64,
}

impl Names {
    pub(crate) fn has(&self, name: &str) -> bool {
        let names = self.live.read().unwrap_or_else(PoisonError::into_inner);
        names.contains(name)
    }

    /// Begins at a number that no other process has for long.
    pub(crate) fn begin(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, name: &str, is_there: bool) {
        let mut names = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if is_there {
            names.insert(name.to_owned())
        } else {
            names.remove(name)
        };
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

pub(super) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}
