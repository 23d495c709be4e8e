//! The changes under way, in memory: those prepared for other primaries, and those that this
//! node makes as primary.

use std::{
    collections::HashMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use prism_replica::{Pending, Stamp};

use super::Scope;
use crate::error::Error;

/// The longest that a change waits for others of the same key.
const LOCK_LIMIT: Duration = Duration::from_secs(15);
/// Most changes that are under way or wait for a lock. Each blocks a thread, and threads have
/// to be left for the changes of other primaries.
const CALLERS_MAX: usize = 256;

/// A prepared change, without its contents.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) scope: Scope,
    pub(crate) pending: Pending,
    /// When it was prepared, or the store opened.
    pub(crate) since: Instant,
}

/// A mirror of the tree `pending`: prepared changes by their key there.
#[derive(Debug, Default)]
pub(crate) struct Index {
    entries: RwLock<HashMap<Vec<u8>, Entry>>,
}

impl Index {
    pub(crate) fn get(&self, tree_key: &[u8]) -> Option<Entry> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        match entries.is_empty() {
            true => None,
            false => entries.get(tree_key).cloned(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.is_empty()
    }

    pub(crate) fn insert(&self, tree_key: Vec<u8>, scope: Scope, pending: Pending) {
        let since = Instant::now();
        let entry = Entry {
            scope,
            pending,
            since,
        };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(tree_key, entry);
    }

    pub(crate) fn remove(&self, tree_key: &[u8]) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.remove(tree_key);
    }

    /// The entries that are `wanted`.
    pub(crate) fn select(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<(Scope, Pending)> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let found = entries.values().filter(|entry| wanted(entry));
        found
            .map(|entry| (entry.scope.clone(), entry.pending))
            .collect()
    }

    /// Whether any change of a bucket is open.
    pub(crate) fn has_any_of(&self, bucket: &str) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.values().any(|entry| entry.scope.bucket == bucket)
    }
}

/// The scopes that this node changes as primary. Each is locked from before it is read until
/// its change is over.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    locked: HashMap<Vec<u8>, Lock>,
    callers: usize,
}

#[derive(Debug)]
struct Lock {
    bucket: String,
    /// The stamp of the change, once it has one.
    stamp: Option<Stamp>,
}

/// Locked scopes, freed when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Locked<'a> {
    locks: &'a Locks,
    keys: Vec<Vec<u8>>,
}

impl Locks {
    /// Waits until all scopes are free, at most [`LOCK_LIMIT`].
    ///
    /// # Errors
    /// [`Error::Stalled`].
    pub(crate) fn lock(&self, scopes: &[Scope]) -> Result<Locked<'_>, Error> {
        let keys: Vec<_> = scopes.iter().map(Scope::tree_key).collect();
        let until = Instant::now() + LOCK_LIMIT;
        let mut state = self.locked();
        if state.callers >= CALLERS_MAX {
            return Err(Error::Stalled);
        }
        state.callers += 1;
        // All at once, so that two changes never wait for each other.
        while keys.iter().any(|key| state.locked.contains_key(key)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.callers -= 1;
                return Err(Error::Stalled);
            }
            let waited = self.free.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        for (key, scope) in keys.iter().zip(scopes) {
            let bucket = scope.bucket.clone();
            let stamp = None;
            state.locked.insert(key.clone(), Lock { bucket, stamp });
        }
        Ok(Locked { locks: self, keys })
    }

    /// Whether the change with this stamp is under way.
    pub(crate) fn is_under_way(&self, tree_key: &[u8], stamp: Stamp) -> bool {
        let state = self.locked();
        let lock = state.locked.get(tree_key);
        lock.is_some_and(|lock| lock.stamp == Some(stamp))
    }

    /// Whether anything of a bucket is under way.
    pub(crate) fn is_busy(&self, bucket: &str) -> bool {
        let state = self.locked();
        state.locked.values().any(|lock| lock.bucket == bucket)
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locked<'_> {
    /// Marks the change as under way.
    pub(crate) fn begin(&self, stamp: Stamp) {
        let mut state = self.locks.locked();
        for key in &self.keys {
            if let Some(lock) = state.locked.get_mut(key) {
                lock.stamp = Some(stamp);
            }
        }
    }

    /// Leaves the scopes locked until the process ends, because the change may or may not be on
    /// the disk.
    pub(crate) fn leak(mut self) {
        self.keys.clear();
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.locked();
        state.callers -= 1;
        for key in &self.keys {
            state.locked.remove(key);
        }
        self.locks.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::thread;

    use super::*;

    #[test]
    fn a_scope_is_locked_by_one_at_a_time_and_several_at_once() {
        let locks = Locks::default();
        let scopes = [Scope::object("b", "1"), Scope::object("b", "2")];
        let count = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..100 {
                        let wanted = scopes.get(n % 2..).unwrap();
                        let _locked = locks.lock(wanted).unwrap();
                        let mut count = count.try_lock().unwrap();
                        *count += 1;
                    }
                });
            }
        });
        assert_eq!(count.into_inner().unwrap(), 400);
        assert!(!locks.is_busy("b"));
    }

    #[test]
    fn a_change_in_doubt_stays_under_way() {
        let locks = Locks::default();
        let scope = Scope::object("b", "k");
        let locked = locks.lock(std::slice::from_ref(&scope)).unwrap();
        assert!(!locks.is_under_way(&scope.tree_key(), Stamp::NONE));
        locked.begin(Stamp::NONE);
        locked.leak();
        assert!(locks.is_under_way(&scope.tree_key(), Stamp::NONE));
        assert!(locks.is_busy("b"));
    }
}
