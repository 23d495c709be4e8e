//! The comparison by which a replica gets the changes that it has missed.
//!
//! It is made as of an epoch that every backend but those out has adopted, and before which
//! none of them has an open change. From that epoch on the replica gets every change itself,
//! and all replicas in sync agree on the earlier ones. It is not enough that the copy's
//! source has no open change: another backend may have one open that the source has dropped,
//! and resolve it when the source is gone.

use super::{pending::Pending, stamp::Stamp};

/// The decision about a key, or about anything else with a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// Keep the state here: both have the same, or this one is newer.
    Nothing,
    /// Replace the state here by the other's.
    Take,
    /// Remove the state here: the other has none.
    Remove,
}

/// Compares the stamps of a key here and at a replica in sync. The comparison was made after
/// all had adopted the epoch `since`. Compare again when the copy is taken in, because
/// changes may have come meanwhile.
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

/// Whether an open change is over once the state of a replica in sync was taken in. It is if
/// it was begun before `since`, or if the stamp that was taken in is not older.
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
