//! The end of a change that an earlier primary left open.
//!
//! The primary that began a change commits it in that epoch, after every replica of the
//! epoch has prepared it. A later primary does not know whether it did. It asks the other
//! replicas that got every change of that epoch. It asks in its own epoch, in which none of
//! them prepares a change of an earlier one. If all have the change, it may have been
//! answered, so it counts. If one lacks it, it was not committed and never counts.

use std::collections::BTreeSet;

use crate::{pending::Pending, stamp::Stamp};

/// The outcome of a change that was left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Answers are missing.
    Wait,
    /// The change counts.
    Apply,
    /// The change never counts.
    Drop,
}

/// The answers about one change. Dropping this decides nothing.
#[derive(Debug, Clone)]
#[must_use]
pub struct Resolve<N> {
    waiting: BTreeSet<N>,
    is_missing: bool,
}

impl<N: Ord> Resolve<N> {
    /// Waits for answers of these: every other replica in sync, and the lagging ones that got
    /// every change already when this one was made.
    pub fn new(others: impl IntoIterator<Item = N>) -> Self {
        Self {
            waiting: others.into_iter().collect(),
            is_missing: false,
        }
    }

    /// The outcome as far as it is known.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (self.is_missing, self.waiting.is_empty()) {
            (true, _) => Verdict::Drop,
            (false, true) => Verdict::Apply,
            (false, false) => Verdict::Wait,
        }
    }

    /// Takes the answer of a `node` in the asker's epoch: whether it has the change.
    #[must_use]
    pub fn heard(&mut self, node: &N, has: bool) -> Verdict {
        if self.waiting.remove(node) && !has {
            self.is_missing = true;
        }
        self.verdict()
    }
}

/// Whether a node has prepared or applied a change that is `open` at another one.
#[must_use]
pub fn has(open: Pending, holds: Option<Stamp>, pending: Option<Pending>) -> bool {
    let is_applied = match holds {
        Some(stamp) => stamp == open.stamp,
        // A deletion is forgotten only after all replicas have applied it.
        None => open.removes,
    };
    is_applied || pending.is_some_and(|pending| pending.stamp == open.stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(time_us: u64, removes: bool) -> Pending {
        let stamp = Stamp {
            time_us,
            ..Stamp::NONE
        };
        Pending {
            epoch: 1,
            stamp,
            removes,
        }
    }

    #[test]
    fn it_has_happened_if_all_have_it_and_not_if_one_has_not() {
        let mut resolve = Resolve::new(["b", "c"]);
        assert_eq!(resolve.verdict(), Verdict::Wait);
        assert_eq!(resolve.heard(&"b", true), Verdict::Wait);
        assert_eq!(resolve.heard(&"b", false), Verdict::Wait);
        assert_eq!(resolve.heard(&"c", true), Verdict::Apply);
        let mut resolve = Resolve::new(["b", "c"]);
        assert_eq!(resolve.heard(&"c", false), Verdict::Drop);
        assert_eq!(resolve.heard(&"b", true), Verdict::Drop);
        assert_eq!(Resolve::<u8>::new([]).verdict(), Verdict::Apply);
    }

    #[test]
    fn a_change_is_had_when_it_is_kept_or_held_or_a_deletion_that_all_forgot() {
        let (put, removal) = (change(5, false), change(5, true));
        assert!(has(put, Some(put.stamp), None));
        assert!(has(put, None, Some(put)));
        assert!(!has(put, None, None));
        assert!(!has(put, Some(change(4, false).stamp), None));
        assert!(has(removal, None, None));
        assert!(!has(removal, Some(change(4, false).stamp), None));
    }
}
