//! The end of a change that an earlier primary left open.
//!
//! The primary that began a change commits it in that epoch, after every replica of the
//! epoch has prepared it. A later primary does not know whether it did. It asks the other
//! replicas that got every change of that epoch. It asks in its own epoch, in which none of
//! them prepares a change of an earlier one. If all have the change, it may have been
//! answered, so it counts. If one lacks it, it was not committed and never counts.

use super::{pending::Pending, stamp::Stamp};

/// Whether the change counts; `None` while answers are missing that decide it. There is one
/// answer, or its absence, for every other replica in sync, and for each lagging one that got
/// every change already when this one was made: whether it has the change, in the asker's epoch.
#[must_use]
pub fn happened(answers: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut happened = Some(true);
    for answer in answers {
        match answer {
            Some(true) => {}
            Some(false) => return answer,
            None => happened = None,
        }
    }
    happened
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
        assert_eq!(happened([None, None]), None);
        assert_eq!(happened([Some(true), None]), None);
        assert_eq!(happened([Some(true), Some(true)]), Some(true));
        assert_eq!(happened([None, Some(false)]), Some(false));
        assert_eq!(happened([Some(true), Some(false), None]), Some(false));
        assert_eq!(happened([]), Some(true));
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
