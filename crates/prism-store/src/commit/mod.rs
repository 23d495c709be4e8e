//! The commit: the single point at which anything changes. One batch and one flush serve
//! all callers that wait at the time (see `group`). A change is visible to readers only once
//! it is as durable as configured.
//!
//! `op` names the operations. `run` checks their conditions and collects their writes in a
//! `stage`; the other modules are parts of it by concern.

mod buckets;
mod committer;
mod op;
mod prepare;
mod run;
mod stage;
mod take_in;
mod versions;

use std::{collections::BTreeSet, sync::atomic::Ordering};

use fjall::PersistMode;

pub(crate) use committer::Committer;
pub(crate) use op::{
    CompleteOp, DeleteOp, DiscardOp, Failure, Fetched, Given, Op, OpResult, Outcome, PutOp, SetBy,
    TakeInOp, Taken, When,
};
pub use op::{Condition, QuotaCheck};
pub(crate) use stage::{
    check, check_quota, effective_versioning, open_bucket, present, replaced_bytes,
};
pub(crate) use take_in::own_versions;
pub(crate) use versions::{check_version, version_of};

use crate::{
    config::Durability,
    error::Error,
    lsm::{Batch, OBJECTS},
    uploads::Garbage,
};
use op::{Mark, Queued, independent};
use stage::Stage;

/// Most garbage read at a time.
const GARBAGE_PAGE: usize = 100;

impl Committer {
    /// Commits an operation that no other replica makes, if it counts in the epoch of the
    /// commit, and removes what was replaced. Blocks on disk.
    pub(crate) fn commit(&self, op: Op, when: When) -> Result<Outcome, Error> {
        self.finish(self.submit(op, None, when))
    }

    /// Commits `op` together with the others that wait, if it counts in the epoch of the
    /// commit. Blocks on disk.
    pub(crate) fn submit(&self, op: Op, given: Option<Given>, when: When) -> OpResult {
        let results = self.submit_queued(vec![Queued { op, given, when }]);
        results.into_iter().next().unwrap_or_else(lost)
    }

    /// Commits several operations that no other replica makes. Blocks on disk.
    pub(crate) fn submit_all(&self, ops: Vec<Op>) -> Vec<OpResult> {
        let queued = ops.into_iter().map(|op| Queued {
            op,
            given: None,
            when: When::Always,
        });
        self.submit_queued(queued.collect())
    }

    fn submit_queued(&self, queued: Vec<Queued>) -> Vec<OpResult> {
        let how_many = |queued: &mut dyn Iterator<Item = &Queued>| {
            independent(&mut queued.map(|queued| &queued.op))
        };
        let work = |ops| self.commit_group(ops);
        let results = self.group.submit_all(queued, how_many, work);
        let results = results.into_iter();
        results.map(|result| result.unwrap_or_else(lost)).collect()
    }

    /// One result per operation, in order.
    fn commit_group(&self, ops: Vec<Queued>) -> Vec<OpResult> {
        let mut shards = BTreeSet::new();
        let mut batch = Batch::default();
        let view = self.storage.lsm.view();
        let mut results: Vec<OpResult> = ops
            .into_iter()
            .map(|Queued { op, given, when }| {
                if !when.counts(self.epoch()) {
                    return Err(Error::OtherEpoch.into());
                }
                let own = op.shards();
                let outcome = Stage::run(self, &view, &mut batch, op, given)?;
                shards.extend(own);
                self.storage.files.usage.apply(outcome.bytes);
                Ok(outcome)
            })
            .collect();
        let usage = self.usage.stage(&view, &mut batch);
        if let Err(failure) = self.write(&shards, batch) {
            for result in &mut results {
                if let Ok(outcome) = result {
                    self.storage.files.usage.revert(outcome.bytes);
                    *result = Err(failure.clone());
                }
            }
        } else {
            self.usage.apply(usage);
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
            Mark::Pending(scope, pending) => {
                self.index.insert(scope.clone(), *pending);
            }
            Mark::Over(scope) => self.index.remove(scope),
            Mark::Bucket(name, is_there) => self.buckets.set(name, *is_there),
            Mark::Adopted(epoch) => {
                self.epoch.fetch_max(*epoch, Ordering::AcqRel);
            }
            Mark::Renewed(past) => self.set_past(past.clone()),
        }
    }

    fn write(&self, shards: &BTreeSet<u16>, batch: Batch) -> Result<(), Failure> {
        if batch.is_empty() {
            return Ok(());
        }
        let mode = match self.storage.files.durability {
            Durability::Fsync => {
                for shard in shards {
                    self.storage.files.sync_shard(*shard)?;
                }
                PersistMode::SyncData
            }
            Durability::None => PersistMode::Buffer,
        };
        self.storage.files.check_room_for_tree()?;
        self.storage.lsm.wait_for_room()?;
        // The tree flushes its log before its memory changes, so that no reader sees a write that
        // a loss of power could take back.
        let _hidden = self.hot.hide(&batch.keys_of(OBJECTS));
        self.storage
            .lsm
            .commit(batch, mode)
            .map_err(|error| Failure {
                error: error.into(),
                in_doubt: true,
            })
    }

    /// The outcome of a commit, after [`Committer::release`]. Blocks on disk.
    pub(crate) fn finish(&self, result: OpResult) -> Result<Outcome, Error> {
        let outcome = result.map_err(|failure| failure.error)?;
        self.release(&outcome);
        Ok(outcome)
    }

    /// Removes the files and the garbage that a commit left. Readers that have a file open go on
    /// reading it. Blocks on disk.
    pub(crate) fn release(&self, outcome: &Outcome) {
        for id in &outcome.freed {
            self.storage.files.remove(*id);
        }
        for garbage in &outcome.garbage {
            match garbage {
                Garbage::Manifest(id) if !self.storage.pins.doom(*id) => {}
                garbage => self.collect(*garbage),
            }
        }
    }

    /// Removes garbage and its files. A failure leaves it for the next opening. Blocks on disk.
    pub(crate) fn collect(&self, garbage: Garbage) {
        if let Err(error) = self.commit(Op::Collect(garbage), When::Always) {
            tracing::warn!(?garbage, %error, "garbage stays until the store is opened again");
        }
    }

    /// Removes the garbage of earlier processes.
    pub(crate) fn collect_all(&self) -> Result<(), Error> {
        loop {
            let found = self.storage.lsm.view().garbage(GARBAGE_PAGE)?;
            if found.is_empty() {
                return Ok(());
            }
            for garbage in found {
                self.commit(Op::Collect(garbage), When::Always)?;
            }
        }
    }
}

/// The result of an operation whose leader panicked.
fn lost() -> OpResult {
    Err(Failure {
        error: Error::WritesDisabled,
        in_doubt: true,
    })
}

#[cfg(test)]
mod commit_tests;
