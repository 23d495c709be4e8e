//! The decisions of a replica about a change that it is asked to prepare, and about an open
//! change: one that it has prepared and whose outcome it does not know.

use serde::{Deserialize, Serialize};

use super::stamp::Stamp;

/// A change that a primary asks a replica to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The primary's epoch.
    pub epoch: u64,
    /// The stamp of the change.
    pub stamp: Stamp,
    /// The stamp of the key at the primary; for a deleted key that of its deletion.
    pub before: Option<Stamp>,
    /// Whether the change is possible only on the state that the primary has.
    pub builds_on_before: bool,
}

/// A change that was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The epoch of the primary that asked. It may commit the change in that epoch and in no
    /// later one.
    pub epoch: u64,
    /// The stamp of the change.
    pub stamp: Stamp,
    /// Whether the key has no state afterwards.
    pub removes: bool,
}

/// The decision about a change that a primary asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// Keep the change durably and acknowledge it. The older open change is ended first.
    Prepare {
        /// The end of the older open change, if there is one.
        older: Option<Settlement>,
    },
    /// The change was prepared or applied before: acknowledge it.
    Known,
    /// Refuse the change.
    Refuse(Refusal),
}

/// Why a replica does not prepare a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The replica is in this epoch, and the primary is not. A replica that is behind adopts
    /// the primary's epoch and can be asked again. A primary that is behind gives up.
    #[error("the replica is in epoch {0}")]
    Epoch(u64),
    /// The replica has a greater stamp, because the primary's clock was set back. The
    /// primary's next stamp has to be above this one.
    #[error("the replica has {0}, which is newer")]
    Newer(Stamp),
    /// The change builds on a state that the replica does not have.
    #[error("the replica lacks what is to be changed")]
    Lacking,
}

/// Decides whether a replica in `epoch` prepares a change. Its key has the stamp `holds` and
/// the open change `pending`.
#[must_use]
pub fn receive(
    asked: &Asked,
    epoch: u64,
    holds: Option<Stamp>,
    pending: Option<Pending>,
) -> Receipt {
    if asked.epoch != epoch {
        return Receipt::Refuse(Refusal::Epoch(epoch));
    }
    let known = pending.map(|pending| pending.stamp);
    if known == Some(asked.stamp) || holds == Some(asked.stamp) {
        return Receipt::Known;
    }
    if let Some(newer) = known.max(holds).filter(|newer| *newer > asked.stamp) {
        return Receipt::Refuse(Refusal::Newer(newer));
    }
    // The primary begins a change after the one before is over. So its present stamp tells
    // the outcome of the one before.
    let older = pending.map(|pending| settle(pending, asked.before.into()));
    let base = match (older, pending) {
        (Some(Settlement::Apply), Some(pending)) => Some(pending.stamp),
        _ => holds,
    };
    if asked.builds_on_before && base != asked.before {
        return Receipt::Refuse(Refusal::Lacking);
    }
    Receipt::Prepare { older }
}

/// The answer of a primary to a question about a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// The change is not committed yet: the state before it counts.
    UnderWay,
    /// The change is over, and the key has this stamp. A deleted key has that of its
    /// deletion, as long as that is remembered.
    Holds(Stamp),
    /// The change is over, and the key has no state.
    Nothing,
}

impl From<Option<Stamp>> for Standing {
    fn from(holds: Option<Stamp>) -> Self {
        holds.map_or(Self::Nothing, Self::Holds)
    }
}

/// The end of a prepared change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The change was committed.
    Apply,
    /// The change was not committed, and never will be.
    Drop,
    /// The outcome is not known yet: when the primary was asked, it had not committed.
    Keep,
}

/// The end of a prepared change by its primary's answer.
#[must_use]
pub fn settle(pending: Pending, standing: Standing) -> Settlement {
    match standing {
        Standing::UnderWay => Settlement::Keep,
        Standing::Holds(stamp) if stamp == pending.stamp => Settlement::Apply,
        // The stamp is older: this replica would have prepared a newer change.
        Standing::Holds(_) => Settlement::Drop,
        // A deletion is forgotten only after all replicas have applied it.
        Standing::Nothing if pending.removes => Settlement::Apply,
        Standing::Nothing => Settlement::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(time_us: u64) -> Stamp {
        Stamp {
            epoch: 1,
            time_us,
            origin: 1,
        }
    }

    fn asked(time_us: u64, before: Option<u64>) -> Asked {
        Asked {
            epoch: 1,
            stamp: stamp(time_us),
            before: before.map(stamp),
            builds_on_before: false,
        }
    }

    fn pending(time_us: u64) -> Option<Pending> {
        Some(Pending {
            epoch: 1,
            stamp: stamp(time_us),
            removes: false,
        })
    }

    #[test]
    fn a_repeated_question_is_acknowledged_and_an_old_one_refused() {
        let again = asked(5, Some(3));
        assert_eq!(receive(&again, 1, None, pending(5)), Receipt::Known);
        assert_eq!(receive(&again, 1, Some(stamp(5)), None), Receipt::Known);
        let newer = Receipt::Refuse(Refusal::Newer(stamp(6)));
        assert_eq!(receive(&again, 1, None, pending(6)), newer);
        assert_eq!(receive(&again, 1, Some(stamp(6)), None), newer);
    }

    #[test]
    fn a_primary_and_a_replica_have_to_be_in_the_same_epoch() {
        let change = asked(5, Some(3));
        for epoch in [0, 2] {
            let refused = Receipt::Refuse(Refusal::Epoch(epoch));
            assert_eq!(receive(&change, epoch, None, None), refused);
            // Also where it was kept before: the primary may not count on it.
            assert_eq!(receive(&change, epoch, None, pending(5)), refused);
        }
    }

    #[test]
    fn the_next_change_tells_what_became_of_the_one_before() {
        let prepare = |older| Receipt::Prepare { older };
        let done = receive(&asked(5, Some(4)), 1, Some(stamp(3)), pending(4));
        assert_eq!(done, prepare(Some(Settlement::Apply)));
        let undone = receive(&asked(5, Some(3)), 1, Some(stamp(3)), pending(4));
        assert_eq!(undone, prepare(Some(Settlement::Drop)));
        assert_eq!(receive(&asked(5, None), 1, None, None), prepare(None));
    }

    #[test]
    fn a_change_of_what_the_replica_does_not_have_is_refused() {
        let mut change = asked(5, Some(4));
        change.builds_on_before = true;
        let lacking = Receipt::Refuse(Refusal::Lacking);
        assert_eq!(receive(&change, 1, Some(stamp(3)), None), lacking);
        assert_ne!(receive(&change, 1, Some(stamp(4)), None), lacking);
        assert_ne!(receive(&change, 1, Some(stamp(3)), pending(4)), lacking);
    }

    #[test]
    fn what_the_primary_does_not_know_has_not_happened_unless_nothing_is_left() {
        let put = Pending {
            epoch: 1,
            stamp: stamp(4),
            removes: false,
        };
        let removal = Pending {
            removes: true,
            ..put
        };
        assert_eq!(settle(put, Standing::Holds(stamp(4))), Settlement::Apply);
        assert_eq!(settle(put, Standing::Holds(stamp(3))), Settlement::Drop);
        assert_eq!(settle(put, Standing::Nothing), Settlement::Drop);
        assert_eq!(settle(removal, Standing::Nothing), Settlement::Apply);
        assert_eq!(settle(put, Standing::UnderWay), Settlement::Keep);
    }
}
