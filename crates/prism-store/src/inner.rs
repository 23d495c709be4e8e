//! The state of an open store, and the removal of what commits leave.

use std::sync::{Arc, OnceLock, RwLock, atomic::AtomicU64};

use crate::{
    bucket_usage::UsageOfBuckets,
    commit::{Committer, Op, OpResult, Outcome, When},
    config::Config,
    damage::Corruption,
    error::Error,
    files::Files,
    hot::Hot,
    known::Known,
    lsm::Lsm,
    object::{Object, Pins},
    past::Past,
    recovery::RecoveryReport,
    replica::Replicas,
    uploads::Garbage,
};

/// Most garbage read at a time.
const GARBAGE_PAGE: usize = 100;

/// The state that a store shares with its writers and readers.
pub(crate) struct Inner {
    pub(crate) committer: Committer,
    pub(crate) lsm: Lsm,
    /// The other nodes; unset where each key has one replica.
    pub(crate) replicas: OnceLock<Arc<dyn Replicas>>,
    pub(crate) usage: UsageOfBuckets,
    pub(crate) hot: Hot<Object>,
    pub(crate) pins: Pins,
    pub(crate) known: Known,
    pub(crate) corruption: Corruption,
    /// The number of batches at the time when the log was last sealed.
    pub(crate) sealed_batches: AtomicU64,
    /// Dropped after the tree, because it has the lock of the directory.
    pub(crate) files: Files,
    pub(crate) config: Config,
    pub(crate) recovery: RecoveryReport,
    /// The identity and the openings. A commit replaces them.
    pub(crate) past: RwLock<Arc<Past>>,
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

    /// The outcome of a commit, after [`Inner::release`]. Blocks on disk.
    pub(crate) fn finish(&self, result: OpResult) -> Result<Outcome, Error> {
        let outcome = result.map_err(|failure| failure.error)?;
        self.release(&outcome);
        Ok(outcome)
    }

    /// Removes the files and the garbage that a commit left. Readers that have a file open go on
    /// reading it. Blocks on disk.
    pub(crate) fn release(&self, outcome: &Outcome) {
        for id in &outcome.freed {
            self.files.remove(*id);
        }
        for garbage in &outcome.garbage {
            match garbage {
                Garbage::Manifest(id) if !self.pins.doom(*id) => {}
                garbage => self.collect(*garbage),
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
        let collected = self.submit_when(Op::Collect(garbage), None, When::Always);
        self.finish(collected).map(drop)
    }

    /// Removes the garbage of earlier processes.
    pub(crate) fn collect_all(&self) -> Result<(), Error> {
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
