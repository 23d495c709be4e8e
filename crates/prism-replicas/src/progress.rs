//! This node's progress in catching up, as it reports it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The progress of the one task that catches up.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    caught_up: AtomicU64,
    is_running: AtomicBool,
    compared: AtomicU64,
    fetched: AtomicU64,
    fetched_bytes: AtomicU64,
    removed: AtomicU64,
    trimmed: AtomicU64,
    /// The epoch before which no change is open anywhere. Fetches may begin in it.
    settled: AtomicU64,
    hindrance: Mutex<String>,
}

/// The report of a node's progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// The epoch as of which this node has all of its keys; 0 if it never had to fetch any, or
    /// lacks some.
    pub caught_up: u64,
    /// Whether it is catching up now.
    pub is_running: bool,
    /// Objects, uploads and parts that were compared with another node's. This and the other
    /// counts begin with the process.
    pub compared: u64,
    /// Objects, uploads and parts that were fetched.
    pub fetched: u64,
    /// Bytes that were fetched.
    pub fetched_bytes: u64,
    /// Objects, uploads and parts that were removed, because their primary has none.
    pub removed: u64,
    /// Objects, uploads and parts that were removed, because this node no longer has their keys.
    pub trimmed: u64,
    /// The last error; empty if the last try succeeded.
    pub hindrance: String,
}

impl Progress {
    /// Everything is here as of `epoch`.
    pub(crate) fn done(&self, epoch: u64) {
        self.caught_up.store(epoch, Ordering::Release);
        self.set_running(false);
        self.set_hindrance(String::new());
    }

    /// The epoch of the last call of [`Progress::done`].
    pub(crate) fn caught_up(&self) -> u64 {
        self.caught_up.load(Ordering::Acquire)
    }

    pub(crate) fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Relaxed);
    }

    /// No change of an epoch before `epoch` is open anywhere.
    pub(crate) fn all_settled(&self, epoch: u64) {
        self.settled.store(epoch, Ordering::Release);
    }

    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    pub(crate) fn set_hindrance(&self, error: String) {
        let hindrance = self.hindrance.lock();
        *hindrance.unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(crate) fn add_compared(&self, count: usize) {
        self.compared.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_fetched(&self, bytes: u64) {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_removed(&self, count: usize) {
        self.removed.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_trimmed(&self, count: usize) {
        self.trimmed.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> ProgressReport {
        let hindrance = self.hindrance.lock();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ProgressReport {
            caught_up: self.caught_up(),
            is_running: self.is_running.load(Ordering::Relaxed),
            compared: read(&self.compared),
            fetched: read(&self.fetched),
            fetched_bytes: read(&self.fetched_bytes),
            removed: read(&self.removed),
            trimmed: read(&self.trimmed),
            hindrance: hindrance.unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
