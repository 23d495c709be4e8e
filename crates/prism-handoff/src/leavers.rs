//! The peers that leave, as all workers of a process know them.
//!
//! A peer counts as leaving until the channel on which it has said so ends. No rule depends on
//! that: a leaving node refuses connections whether its peers know or not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::supervise::locked;

/// The peers of this process that leave.
#[derive(Debug, Default)]
pub(crate) struct Leavers {
    /// Almost always 0, which spares the lock.
    count: AtomicUsize,
    /// The number of channels that say so, by peer.
    names: Mutex<HashMap<String, usize>>,
}

impl Leavers {
    pub(crate) fn add(self: &Arc<Self>, name: &str) -> Leaver {
        *locked(&self.names).entry(name.to_owned()).or_default() += 1;
        self.count.fetch_add(1, Ordering::Release);
        Leaver {
            leavers: self.clone(),
            name: name.to_owned(),
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.count.load(Ordering::Acquire) > 0 && locked(&self.names).contains_key(name)
    }
}

/// A peer that leaves, by the word of one channel; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Leaver {
    leavers: Arc<Leavers>,
    name: String,
}

impl Drop for Leaver {
    fn drop(&mut self) {
        self.leavers.count.fetch_sub(1, Ordering::Release);
        let mut names = locked(&self.leavers.names);
        if let Some(count) = names.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                names.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_leaves_as_long_as_a_channel_says_so() {
        let leavers = Arc::new(Leavers::default());
        assert!(!leavers.contains("a"));
        let first = leavers.add("a");
        let second = leavers.add("a");
        let other = leavers.add("b");
        drop(first);
        assert!(leavers.contains("a") && leavers.contains("b") && !leavers.contains("c"));
        drop(second);
        assert!(!leavers.contains("a") && leavers.contains("b"));
        drop(other);
        assert_eq!(leavers.count.load(Ordering::Relaxed), 0);
        assert!(locked(&leavers.names).is_empty());
    }
}
