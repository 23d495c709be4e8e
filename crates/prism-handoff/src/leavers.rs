//! The peers that leave, as all workers of a process know them. A peer counts as leaving until the
//! channel on which it has said so ends. No rule depends on that: a leaving node refuses
//! connections whether its peers know or not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The peers of this process that leave.
#[derive(Debug, Default)]
pub(crate) struct Leavers {
    /// Almost always false, which spares the lock.
    are_some: AtomicBool,
    /// A peer's name for each channel that says so.
    names: Mutex<Vec<Weak<str>>>,
}

impl Leavers {
    /// Adds a peer that leaves, by the word of one channel, until the result is dropped.
    pub(crate) fn add(&self, name: &str) -> Arc<str> {
        let leaver = Arc::from(name);
        let mut names = self.names.lock();
        names.push(Arc::downgrade(&leaver));
        self.are_some.store(true, Ordering::Release);
        leaver
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        if !self.are_some.load(Ordering::Acquire) {
            return false;
        }
        let mut names = self.names.lock();
        names.retain(|leaver| leaver.strong_count() > 0);
        self.are_some.store(!names.is_empty(), Ordering::Release);
        let mut names = names.iter().filter_map(Weak::upgrade);
        names.any(|leaver| *leaver == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_leaves_as_long_as_a_channel_says_so() {
        let leavers = Leavers::default();
        assert!(!leavers.contains("a"));
        let first = leavers.add("a");
        let second = leavers.add("a");
        let other = leavers.add("b");
        drop(first);
        assert!(leavers.contains("a") && leavers.contains("b") && !leavers.contains("c"));
        drop(second);
        assert!(!leavers.contains("a") && leavers.contains("b"));
        drop(other);
        assert!(!leavers.contains("b"));
        assert!(!leavers.are_some.load(Ordering::Relaxed));
        assert!(leavers.names.lock().is_empty());
    }
}
