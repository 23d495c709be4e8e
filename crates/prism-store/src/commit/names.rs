//! The names of the buckets that exist.

use std::{
    collections::HashSet,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

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
        match is_there {
            true => names.insert(name.to_owned()),
            false => names.remove(name),
        };
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}
