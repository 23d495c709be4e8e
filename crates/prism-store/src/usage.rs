//! The quota, and the bytes of objects and parts that count for it.
//!
//! The lengths of objects and parts count, whatever they take on the disk. Keys, metadata and
//! the tree do not. `files` checks the room on the file system.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

/// The bytes used, and their limit. Only commits change them, one at a time.
#[derive(Debug)]
pub(crate) struct Usage {
    quota: Option<u64>,
    used: AtomicU64,
}

/// The bytes that a change takes and gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Change {
    pub(crate) taken: u64,
    pub(crate) given: u64,
}

impl Usage {
    pub(crate) fn new(quota: Option<u64>) -> Self {
        Self {
            quota,
            used: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.quota.is_some()
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// [`Error::NoSpace`] if a change grows the store beyond the quota.
    pub(crate) fn check(&self, taken: u64, given: u64) -> Result<(), Error> {
        let Some(quota) = self.quota else {
            return Ok(());
        };
        let after = self.used().saturating_sub(given);
        match taken > given && after.saturating_add(taken) > quota {
            true => Err(Error::NoSpace),
            false => Ok(()),
        }
    }

    pub(crate) fn apply(&self, change: Change) {
        let after = self.used().saturating_add(change.taken);
        self.used
            .store(after.saturating_sub(change.given), Ordering::Relaxed);
    }

    /// Takes back a change whose commit failed.
    pub(crate) fn revert(&self, change: Change) {
        self.apply(Change {
            taken: change.given,
            given: change.taken,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(taken: u64, given: u64) -> Change {
        Change { taken, given }
    }

    #[test]
    fn what_grows_beyond_the_quota_is_refused_and_what_shrinks_is_not() {
        let usage = Usage::new(Some(100));
        assert!(usage.check(100, 0).is_ok());
        assert!(usage.check(101, 0).is_err());
        usage.apply(change(100, 0));
        assert!(usage.check(1, 0).is_err());
        assert!(usage.check(0, 0).is_ok());
        assert!(usage.check(50, 60).is_ok());
        assert!(usage.check(60, 50).is_err());
        usage.revert(change(100, 0));
        assert_eq!(usage.used(), 0);
        // A store that was given a smaller quota than it holds.
        usage.apply(change(200, 0));
        assert!(usage.check(99, 100).is_ok());
        assert!(usage.check(1, 0).is_err());
        assert!(Usage::new(None).check(u64::MAX, 0).is_ok());
    }
}
