//! How far this node has come in getting hold of what it missed, for whoever asks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Counted by the one task that catches up.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    caught_up: AtomicU64,
    is_running: AtomicBool,
    compared: AtomicU64,
    fetched: AtomicU64,
    fetched_bytes: AtomicU64,
    removed: AtomicU64,
    trimmed: AtomicU64,
    /// The epoch of which everything that is open before is settled everywhere, so that
    /// something may be taken in.
    settled: AtomicU64,
    hindrance: Mutex<String>,
}

/// What is said of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// The epoch as of which this node has everything that it is to have; 0: it never
    /// had to fetch anything, or has not got all.
    pub caught_up: u64,
    /// It is fetching.
    pub is_running: bool,
    /// Objects, uploads and parts that were compared with another node's, in this life
    /// of the process, as are the others.
    pub compared: u64,
    /// Those that were fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Those that were removed, because others do not have them any more.
    pub removed: u64,
    /// Those that were thrown away, because they have no place here.
    pub trimmed: u64,
    /// What was in the way last; empty if nothing is.
    pub hindrance: String,
}

impl Progress {
    /// Everything is here, as of this epoch.
    pub(crate) fn done(&self, epoch: u64) {
        self.caught_up.store(epoch, Ordering::Release);
        self.running(false);
        self.hindered(String::new());
    }

    /// The epoch of which [`Progress::done`] was said last.
    pub(crate) fn caught_up(&self) -> u64 {
        self.caught_up.load(Ordering::Acquire)
    }

    pub(crate) fn running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Relaxed);
    }

    /// Nothing of before this epoch is open anywhere.
    pub(crate) fn all_settled(&self, epoch: u64) {
        self.settled.store(epoch, Ordering::Release);
    }

    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    pub(crate) fn hindered(&self, by: String) {
        let hindrance = self.hindrance.lock();
        *hindrance.unwrap_or_else(PoisonError::into_inner) = by;
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
