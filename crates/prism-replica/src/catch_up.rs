//! What a replica does with what another one has, to get hold of what it missed.
//!
//! It does so as of an epoch that every backend has adopted that is not out, and of
//! before which none of them has anything open: from then on it gets every change
//! itself, and what changes there were before is the same at all that are in sync.
//! It would not do to ask only the one that it fetches from: that one may have
//! dropped a change that another has open still, and be gone when that is resolved.

use crate::{pending::Pending, stamp::Stamp};

/// What is to be done about a key, or another thing that has stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// Nothing: both have the same, or what is here came meanwhile.
    Nothing,
    /// Take what the other has in place of what is here.
    Take,
    /// The other has nothing, and so has this node to have.
    Remove,
}

/// Compares what this replica holds with what one has that is in sync, as of a
/// moment after all had adopted the epoch `since`. To be asked again when what the
/// other has is taken in: it may have been superseded meanwhile.
#[must_use]
pub fn missed(since: u64, mine: Option<Stamp>, theirs: Option<Stamp>) -> Missed {
    let is_from_before = mine.is_none_or(|stamp| stamp.epoch < since);
    match theirs {
        theirs if theirs == mine => Missed::Nothing,
        Some(_) if is_from_before || theirs > mine => Missed::Take,
        None if is_from_before => Missed::Remove,
        _ => Missed::Nothing,
    }
}

/// Whether a change that is open here is over once what another has was taken in:
/// one of before `since`, of which that tells what became, or one that what was
/// taken in is not older than.
#[must_use]
pub fn is_over(since: u64, pending: Pending, taken: Option<Stamp>) -> bool {
    pending.epoch < since || taken.is_some_and(|taken| taken >= pending.stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: u64, time_us: u64) -> Option<Stamp> {
        let origin = 1;
        Some(Stamp {
            epoch,
            time_us,
            origin,
        })
    }

    #[test]
    fn what_differs_and_is_from_before_is_replaced_whichever_is_the_greater() {
        assert_eq!(missed(3, stamp(2, 9), stamp(2, 9)), Missed::Nothing);
        assert_eq!(missed(3, None, None), Missed::Nothing);
        assert_eq!(missed(3, None, stamp(2, 9)), Missed::Take);
        assert_eq!(missed(3, stamp(2, 8), stamp(2, 9)), Missed::Take);
        // A clock was set back after the deletion between them was forgotten.
        assert_eq!(missed(3, stamp(2, 9), stamp(2, 8)), Missed::Take);
        assert_eq!(missed(3, stamp(2, 9), None), Missed::Remove);
    }

    #[test]
    fn what_came_meanwhile_stays_unless_the_other_has_something_newer() {
        assert_eq!(missed(3, stamp(3, 5), None), Missed::Nothing);
        assert_eq!(missed(3, stamp(3, 5), stamp(2, 9)), Missed::Nothing);
        assert_eq!(missed(3, stamp(3, 5), stamp(3, 4)), Missed::Nothing);
        assert_eq!(missed(3, stamp(3, 5), stamp(3, 6)), Missed::Take);
    }

    #[test]
    fn what_is_open_ends_if_it_is_from_before_or_not_newer() {
        let open = |epoch, time_us| Pending {
            epoch,
            stamp: stamp(epoch, time_us).unwrap_or_default(),
            removes: false,
        };
        assert!(is_over(3, open(2, 9), None));
        assert!(is_over(3, open(2, 9), stamp(2, 8)));
        assert!(!is_over(3, open(3, 9), stamp(2, 8)));
        assert!(!is_over(3, open(3, 9), None));
        assert!(is_over(3, open(3, 9), stamp(3, 9)));
    }
}
