//! The changes under way, in memory: those prepared for other primaries, and those that this
//! node makes as primary.

use std::{
    collections::HashMap,
    iter,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock};
use prism_cluster::replica::{Pending, Stamp};

use crate::{error::Error, scope::Scope};

/// The longest that a change waits for others of the same key.
const LOCK_LIMIT: Duration = Duration::from_secs(15);
/// Most changes that are under way or wait for a lock. Each blocks a thread, and threads have
/// to be left for the changes of other primaries.
const CALLERS_MAX: usize = 256;

/// A prepared change, without its contents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub(crate) pending: Pending,
    /// When it was prepared, or the store opened.
    pub(crate) since: Instant,
}

/// A mirror of the tree `pending`.
#[derive(Debug, Default)]
pub(crate) struct Index {
    open: RwLock<HashMap<Scope, Open>>,
}

impl Index {
    pub(crate) fn get(&self, scope: &Scope) -> Option<Pending> {
        self.open.read().get(scope).map(|open| open.pending)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.read().is_empty()
    }

    pub(crate) fn insert(&self, scope: Scope, pending: Pending) {
        let since = Instant::now();
        self.open.write().insert(scope, Open { pending, since });
    }

    pub(crate) fn remove(&self, scope: &Scope) {
        self.open.write().remove(scope);
    }

    /// The changes that are `wanted`.
    pub(crate) fn select(&self, wanted: impl Fn(&Scope, &Open) -> bool) -> Vec<(Scope, Pending)> {
        let open = self.open.read();
        let found = open.iter().filter(|(scope, open)| wanted(scope, open));
        found
            .map(|(scope, open)| (scope.clone(), open.pending))
            .collect()
    }

    /// Whether any change of a bucket is open.
    pub(crate) fn has_any_of(&self, bucket: &str) -> bool {
        self.open.read().keys().any(|scope| scope.bucket == bucket)
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
    /// The locked scopes, with the stamps of those changes that have one yet.
    locked: HashMap<Scope, Option<Stamp>>,
    callers: usize,
}

/// Locked scopes, freed when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Locked<'a> {
    locks: &'a Locks,
    scopes: Vec<Scope>,
}

impl Locks {
    /// Waits until all scopes are free, at most [`LOCK_LIMIT`].
    ///
    /// # Errors
    /// [`Error::Stalled`].
    pub(crate) fn lock(&self, scopes: &[Scope]) -> Result<Locked<'_>, Error> {
        let until = Instant::now() + LOCK_LIMIT;
        let mut state = self.state.lock();
        if state.callers >= CALLERS_MAX {
            return Err(Error::Stalled);
        }
        state.callers += 1;
        // All at once, so that two changes never wait for each other.
        while scopes.iter().any(|scope| state.locked.contains_key(scope)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.callers -= 1;
                return Err(Error::Stalled);
            }
            self.free.wait_for(&mut state, left);
        }
        let scopes = scopes.to_vec();
        state
            .locked
            .extend(scopes.iter().cloned().zip(iter::repeat(None)));
        Ok(Locked {
            locks: self,
            scopes,
        })
    }

    /// Whether the change with this stamp is under way.
    pub(crate) fn is_under_way(&self, scope: &Scope, stamp: Stamp) -> bool {
        self.state.lock().locked.get(scope) == Some(&Some(stamp))
    }

    /// Whether anything of a bucket is under way.
    pub(crate) fn is_busy(&self, bucket: &str) -> bool {
        let state = self.state.lock();
        state.locked.keys().any(|scope| scope.bucket == bucket)
    }
}

impl Locked<'_> {
    /// Marks the change as under way.
    pub(crate) fn begin(&self, stamp: Stamp) {
        let mut state = self.locks.state.lock();
        for scope in &self.scopes {
            if let Some(change) = state.locked.get_mut(scope) {
                *change = Some(stamp);
            }
        }
    }

    /// Leaves the scopes locked until the process ends, because the change may or may not be on
    /// the disk.
    pub(crate) fn leak(mut self) {
        self.scopes.clear();
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        state.callers -= 1;
        for scope in &self.scopes {
            state.locked.remove(scope);
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
        assert_eq!(count.into_inner(), 400);
        assert!(!locks.is_busy("b"));
    }

    #[test]
    fn a_change_in_doubt_stays_under_way() {
        let locks = Locks::default();
        let scope = Scope::object("b", "k");
        let locked = locks.lock(std::slice::from_ref(&scope)).unwrap();
        assert!(!locks.is_under_way(&scope, Stamp::NONE));
        locked.begin(Stamp::NONE);
        locked.leak();
        assert!(locks.is_under_way(&scope, Stamp::NONE));
        assert!(locks.is_busy("b"));
    }
}
