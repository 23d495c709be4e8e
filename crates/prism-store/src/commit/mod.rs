//! The commit: the single point at which anything changes. One batch and one flush serve
//! all callers that wait at the time (see `group`). A change is visible to readers only once
//! it is as durable as configured.
//!
//! `op` names the operations. `stage` checks their conditions and collects their writes; the
//! other modules are parts of it by concern.

mod apply;
mod buckets;
mod op;
mod prepare;
mod stage;
mod succession;
mod take_in;
mod taken;
mod versions;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use fjall::PersistMode;
use prism_replica::{Phase, Stamp, StampClock};

pub use op::Condition;
pub(crate) use op::{
    CompleteOp, CreateOp, DeleteOp, DiscardOp, Failure, Freed, Op, OpResult, Outcome, PartOp,
    PrepareOp, PutBytes, PutOp, SetBucketOp, SetBy, SettleOp,
};
pub(crate) use prepare::{PendingRecord, holds};
pub(crate) use stage::{check, is_of_versions, open_bucket, present};
pub(crate) use succession::effective_versioning;
pub(crate) use take_in::own_versions;
pub(crate) use taken::{TakeInOp, TakeVersionsOp, Taken, TakenVersion};
pub(crate) use versions::version_of;

use crate::{
    config::Durability,
    error::Error,
    files::Files,
    group::Group,
    lsm::{Batch, Lsm},
    replica::{Index, Locks},
    versions::Versioning,
};
use op::{Mark, independent};
use stage::Stage;

/// The epochs in which an operation counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// In this epoch only.
    In(u64),
    /// Up to this epoch.
    Until(u64),
}

impl When {
    fn counts(self, epoch: u64) -> bool {
        match self {
            Self::Always => true,
            Self::In(wanted) => wanted == epoch,
            Self::Until(said) => epoch <= said,
        }
    }
}

/// How many commits shared how many flushes, since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitStats {
    /// Operations committed or refused.
    pub operations: u64,
    /// Batches they were committed in; each costs one flush of the log.
    pub batches: u64,
}

/// The stamp that a change has on all replicas, and how all of them treat its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) stamp: Stamp,
    pub(crate) versioning: Versioning,
}

/// An operation in the queue.
struct Queued {
    op: Op,
    given: Option<Given>,
    when: When,
}

/// The queue of operations, and the state that only commits change.
pub(crate) struct Committer {
    lsm: Arc<Lsm>,
    files: Arc<Files>,
    durability: Durability,
    group: Group<Queued, OpResult>,
    pub(crate) index: Index,
    pub(crate) buckets: buckets::Names,
    pub(crate) locks: Locks,
    clock: StampClock,
    /// The store's epoch. The commit that changes it has a batch of its own, so all of a batch
    /// is of one epoch.
    epoch: AtomicU64,
    operations: AtomicU64,
    batches: AtomicU64,
}

impl Committer {
    /// A committer whose stamps have this `origin`, for a store in `epoch`.
    pub(crate) fn new(
        lsm: Arc<Lsm>,
        files: Arc<Files>,
        durability: Durability,
        origin: u64,
        epoch: u64,
    ) -> Self {
        Self {
            lsm,
            files,
            durability,
            group: Group::new(),
            index: Index::default(),
            buckets: buckets::Names::default(),
            locks: Locks::default(),
            clock: StampClock::new(origin),
            epoch: AtomicU64::new(epoch),
            operations: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    pub(crate) fn stats(&self) -> CommitStats {
        CommitStats {
            operations: self.operations.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
        }
    }

    /// The epoch by which this store acts.
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

    /// Reads the open changes and the names of the buckets.
    pub(crate) fn load(&self) -> Result<(), Error> {
        for bucket in self.lsm.view().buckets(usize::MAX)? {
            let is_live = bucket.which.phase == Phase::Live;
            self.buckets.set(&bucket.name, is_live);
        }
        self.buckets.begin(now_us().wrapping_mul(1 << 20));
        for record in self.lsm.view().all_pending() {
            let record = record?;
            let (scope, pending) = (record.scope.clone(), record.pending());
            self.index.insert(scope.tree_key(), scope, pending);
        }
        Ok(())
    }

    /// Commits `op` together with the others that wait, if it counts in the epoch of the
    /// commit. Blocks on disk.
    pub(crate) fn submit_when(&self, op: Op, given: Option<Given>, when: When) -> OpResult {
        let queued = Queued { op, given, when };
        let committed = self.group.submit(queued, how_many, |ops| self.commit(ops));
        committed.unwrap_or_else(lost)
    }

    /// Commits several operations that no other replica makes. Blocks on disk.
    pub(crate) fn submit_all(&self, ops: Vec<Op>) -> Vec<OpResult> {
        let queued = ops.into_iter().map(|op| Queued {
            op,
            given: None,
            when: When::Always,
        });
        let commit = |ops| self.commit(ops);
        let committed = self.group.submit_all(queued.collect(), how_many, commit);
        let results = committed.into_iter();
        results.map(|result| result.unwrap_or_else(lost)).collect()
    }

    /// One result per operation, in order.
    fn commit(&self, ops: Vec<Queued>) -> Vec<OpResult> {
        self.operations
            .fetch_add(ops.len() as u64, Ordering::Relaxed);
        let mut shards = BTreeSet::new();
        let mut batch = self.lsm.batch();
        let view = self.lsm.view();
        let mut results: Vec<OpResult> = ops
            .into_iter()
            .map(|Queued { op, given, when }| {
                if !when.counts(self.epoch()) {
                    return Err(Error::OtherEpoch.into());
                }
                let own = op.shards();
                let outcome = Stage::run(self, &view, &mut batch, op, given)?;
                shards.extend(own);
                self.files.usage.apply(outcome.bytes);
                Ok(outcome)
            })
            .collect();
        if let Err(failure) = self.write(&shards, batch) {
            for result in &mut results {
                if let Ok(outcome) = result {
                    self.files.usage.revert(outcome.bytes);
                    *result = Err(failure.clone());
                }
            }
        }
        results
            .iter()
            .flatten()
            .flat_map(|outcome| &outcome.marks)
            .for_each(|mark| self.mark(mark));
        results
    }

    fn mark(&self, mark: &Mark) {
        match mark {
            Mark::Pending(tree_key, scope, pending) => {
                self.index.insert(tree_key.clone(), scope.clone(), *pending);
            }
            Mark::Over(tree_key) => self.index.remove(tree_key),
            Mark::Bucket(name, is_there) => self.buckets.set(name, *is_there),
            Mark::Adopted(epoch) => {
                self.epoch.fetch_max(*epoch, Ordering::AcqRel);
            }
        }
    }

    fn write(&self, shards: &BTreeSet<u16>, batch: Batch) -> Result<(), Failure> {
        if batch.is_empty() {
            return Ok(());
        }
        let mode = match self.durability {
            Durability::Fsync => {
                for shard in shards {
                    self.files.sync_shard(*shard)?;
                }
                PersistMode::SyncData
            }
            Durability::None => PersistMode::Buffer,
        };
        self.files.check_room_for_tree()?;
        self.lsm.wait_for_room()?;
        self.batches.fetch_add(1, Ordering::Relaxed);
        // The tree flushes its log before its memory changes, so that no reader sees a write that
        // a loss of power could take back.
        self.lsm.commit(batch, mode).map_err(|error| Failure {
            error: error.into(),
            in_doubt: true,
        })
    }
}

/// The number of operations at the head of the queue that share a batch.
fn how_many(queued: &mut dyn Iterator<Item = &Queued>) -> usize {
    independent(&mut queued.map(|queued| &queued.op))
}

/// The result of an operation whose leader panicked.
fn lost() -> OpResult {
    Err(Failure {
        error: Error::WritesDisabled,
        in_doubt: true,
    })
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
