//! Buckets that are about to be deleted.
//!
//! A bucket lies on several nodes. It may go only where it is empty on all, and
//! must then take in nothing between one node's look and another's deletion: so
//! it is sealed everywhere first. A seal is in memory and ends by itself, for
//! whoever set it may die; a deletion needs a seal that still holds.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::error::Error;

/// How long a seal holds: above what all nodes together take to be asked, and
/// short for those who wait to write.
pub const SEAL_LIFETIME: Duration = Duration::from_secs(10);

/// The sealed buckets of a store. There are at most as many as buckets.
#[derive(Debug, Default)]
pub(super) struct Seals {
    by_bucket: Mutex<HashMap<String, Seal>>,
}

#[derive(Debug, Clone, Copy)]
struct Seal {
    token: u64,
    until: Instant,
}

impl Seals {
    /// [`Error::Busy`] where another has sealed it.
    pub(super) fn seal(&self, bucket: &str, token: u64, now: Instant) -> Result<(), Error> {
        let mut seals = self.locked();
        seals.retain(|_, seal| now < seal.until);
        match seals.get(bucket) {
            Some(seal) if seal.token != token => Err(Error::Busy),
            _ => {
                let until = now + SEAL_LIFETIME;
                seals.insert(bucket.to_owned(), Seal { token, until });
                Ok(())
            }
        }
    }

    /// Ends a seal; that of another stays.
    pub(super) fn unseal(&self, bucket: &str, token: u64) {
        let mut seals = self.locked();
        if seals.get(bucket).is_some_and(|seal| seal.token == token) {
            seals.remove(bucket);
        }
    }

    /// [`Error::Busy`] if the bucket takes nothing in at `now`.
    pub(super) fn check_open(&self, bucket: &str, now: Instant) -> Result<(), Error> {
        match self.locked().get(bucket) {
            Some(seal) if now < seal.until => Err(Error::Busy),
            _ => Ok(()),
        }
    }

    /// [`Error::Busy`] unless this seal holds at `now`.
    pub(super) fn check_sealed(&self, bucket: &str, token: u64, now: Instant) -> Result<(), Error> {
        match self.locked().get(bucket) {
            Some(seal) if seal.token == token && now < seal.until => Ok(()),
            _ => Err(Error::Busy),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Seal>> {
        self.by_bucket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_seal_keeps_others_out_until_it_is_taken_off_or_too_old() {
        let (seals, now) = (Seals::default(), Instant::now());
        seals.seal("b", 1, now).unwrap();
        seals.seal("b", 1, now).unwrap();
        assert!(seals.seal("b", 2, now).is_err());
        assert!(seals.check_open("b", now).is_err());
        assert!(seals.check_open("c", now).is_ok());
        assert!(seals.check_sealed("b", 1, now).is_ok());
        assert!(seals.check_sealed("b", 2, now).is_err());
        seals.unseal("b", 2);
        assert!(seals.check_open("b", now).is_err());
        let later = now + SEAL_LIFETIME;
        assert!(seals.check_open("b", later).is_ok());
        assert!(seals.check_sealed("b", 1, later).is_err());
        seals.seal("b", 2, later).unwrap();
        seals.unseal("b", 2);
        assert!(seals.check_open("b", later).is_ok());
    }
}
