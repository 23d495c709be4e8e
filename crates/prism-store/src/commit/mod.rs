//! The single point at which anything changes: conditions checked, one batch
//! written, one flush, for as many callers as happen to wait.
//!
//! Eight callers at once do not pay eight flushes (see `group`). Nothing is
//! visible to readers before it is as durable as configured.

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
pub(crate) use stage::{check, is_of_versions, present};
pub(crate) use succession::mode;
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

/// In which epochs an operation counts: whoever asked for it knew the cluster as of
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// In this one only.
    In(u64),
    /// Not beyond this one.
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
    /// Batches they were committed in; each costs one flush of the journal.
    pub batches: u64,
}

/// What was agreed with other replicas of a change before it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) stamp: Stamp,
    /// Of the bucket, when the change was judged.
    pub(crate) versioning: Versioning,
}

/// An operation, and what was given it by the rules of replication.
struct Queued {
    op: Op,
    given: Option<Given>,
    when: When,
}

/// The queue of operations.
pub(crate) struct Committer {
    lsm: Arc<Lsm>,
    files: Arc<Files>,
    durability: Durability,
    group: Group<Queued, OpResult>,
    pub(crate) index: Index,
    pub(crate) buckets: buckets::Names,
    pub(crate) locks: Locks,
    clock: StampClock,
    /// Changes with a commit that nothing shares: what is in one batch is of one.
    epoch: AtomicU64,
    operations: AtomicU64,
    batches: AtomicU64,
}

impl Committer {
    /// `origin` names this opening of this store in stamps; `epoch` is the one that it
    /// was in.
    pub(crate) fn new(
        lsm: Arc<Lsm>,
        files: Arc<Files>,
        durability: Durability,
        (origin, epoch): (u64, u64),
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

    /// A stamp above `above`, which is what the key has.
    pub(crate) fn stamp(&self, epoch: u64, above: Option<Stamp>) -> Stamp {
        self.clock
            .next(epoch, now_us(), above.unwrap_or(Stamp::NONE))
    }

    /// Stamps are above this one from here on.
    pub(crate) fn observe(&self, stamp: Stamp) {
        self.clock.observe(stamp);
    }

    /// Takes up what an earlier process has prepared, and the buckets that there are.
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

    /// Commits `op`, together with whatever else is waiting. One that other
    /// replicas make as well has its stamp already. Blocks on disk.
    pub(crate) fn submit(&self, op: Op, given: Option<Given>) -> OpResult {
        self.submit_when(op, given, When::Always)
    }

    /// The same, if it still counts when it is committed.
    pub(crate) fn submit_when(&self, op: Op, given: Option<Given>, when: When) -> OpResult {
        let queued = Queued { op, given, when };
        let committed = self.group.submit(queued, how_many, |ops| self.commit(ops));
        committed.unwrap_or_else(lost)
    }

    /// The same of several operations that no other replica makes.
    pub(crate) fn submit_all(&self, ops: Vec<Op>) -> Vec<OpResult> {
        let queued = ops.into_iter().map(|op| Queued {
            op,
            given: None,
            when: When::Always,
        });
        let committed = self
            .group
            .submit_all(queued.collect(), how_many, |ops| self.commit(ops));
        let committed = committed.into_iter();
        committed
            .map(|result| result.unwrap_or_else(lost))
            .collect()
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
                let outcome = self.stage(&view, &mut batch, op, given)?;
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
        // The tree's journal is flushed before its memory changes, so that no
        // reader sees what a power cut could take back.
        self.lsm.commit(batch, mode).map_err(|error| Failure {
            error: error.into(),
            in_doubt: true,
        })
    }
}

/// Which of the operations go together.
fn how_many(queued: &mut dyn Iterator<Item = &Queued>) -> usize {
    independent(&mut queued.map(|queued| &queued.op))
}

/// Of an operation whose leader panicked.
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
