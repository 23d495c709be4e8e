//! What a replica does with a change that it is to prepare, and with one that it
//! has prepared and of which it does not know what became.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stamp::Stamp;

/// A change that a primary asks a replica to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The epoch in which the primary is one.
    pub epoch: u64,
    /// Of the change.
    pub stamp: Stamp,
    /// What the key holds at the primary; a deleted key holds its deletion.
    pub before: Option<Stamp>,
    /// It changes what is there: without that it means nothing.
    pub builds_on_before: bool,
}

/// A change that was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// In which it was asked for: whoever was the primary then may commit it in
    /// that epoch and in no later one.
    pub epoch: u64,
    /// Of the change.
    pub stamp: Stamp,
    /// The key holds nothing afterwards.
    pub removes: bool,
}

/// What is to be done with a change that is to be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// Keep it durably, in place of an older one with which this is done first;
    /// then acknowledge.
    Prepare {
        /// What becomes of the older one.
        older: Option<Settlement>,
    },
    /// It has been kept, or applied, before: acknowledge.
    Known,
    /// Say so.
    Refuse(Refusal),
}

/// Why a replica does not prepare a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The replica is in this epoch, and the primary is not. A replica that is
    /// behind adopts the primary's, and can then be asked again; a primary that
    /// is behind gives the change up.
    Epoch(u64),
    /// The replica has something with a greater stamp. The primary's clock was
    /// set back: its next stamp has to be above this.
    Newer(Stamp),
    /// The change builds on something that the replica does not have.
    Lacking,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoch(epoch) => write!(f, "the replica is in epoch {epoch}"),
            Self::Newer(stamp) => write!(f, "the replica has {stamp}, which is newer"),
            Self::Lacking => write!(f, "the replica lacks what is to be changed"),
        }
    }
}

/// Decides about a change that is to be prepared, by a replica in `epoch` whose
/// key `holds` this and has this `pending`.
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
    // The primary begins one change after the other is over: what it holds now
    // tells what became of the one before.
    let older = pending.map(|pending| settle(pending, asked.before.into()));
    let held = match (older, pending) {
        (Some(Settlement::Apply), Some(pending)) => Some(pending.stamp),
        _ => holds,
    };
    if asked.builds_on_before && held != asked.before {
        return Receipt::Refuse(Refusal::Lacking);
    }
    Receipt::Prepare { older }
}

/// What a primary answers who asks what became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It is not committed yet: what was there before counts.
    UnderWay,
    /// The change is over, and the key holds this; a deleted key its deletion,
    /// as long as that is remembered.
    Holds(Stamp),
    /// The change is over, and the key holds nothing.
    Nothing,
}

impl From<Option<Stamp>> for Standing {
    fn from(holds: Option<Stamp>) -> Self {
        holds.map_or(Self::Nothing, Self::Holds)
    }
}

impl Standing {
    /// What counts of this, said by a node in epoch `said` to one in epoch `heard`:
    /// nothing that is of an earlier epoch, in which another was the primary. A
    /// change of which nothing is known is kept.
    #[must_use]
    pub fn across(self, said: u64, heard: u64) -> Self {
        match said < heard {
            true => Self::UnderWay,
            false => self,
        }
    }
}

/// What becomes of a change that was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// It has happened.
    Apply,
    /// It has not, and never will.
    Drop,
    /// Nobody knows yet; it has not happened when the primary was asked.
    Keep,
}

/// Decides about a prepared change by its primary's answer.
#[must_use]
pub fn settle(pending: Pending, standing: Standing) -> Settlement {
    match standing {
        Standing::UnderWay => Settlement::Keep,
        Standing::Holds(stamp) if stamp == pending.stamp => Settlement::Apply,
        // Nothing newer can be there: this replica would have prepared it.
        Standing::Holds(_) => Settlement::Drop,
        // A deletion is forgotten only when all have applied it.
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
    fn what_was_said_in_an_earlier_epoch_decides_nothing() {
        let said = Standing::Nothing.across(1, 2);
        let change = pending(5).map(|change| settle(change, said));
        assert_eq!(change, Some(Settlement::Keep));
        assert_eq!(Standing::Nothing.across(2, 2), Standing::Nothing);
        assert_eq!(Standing::Nothing.across(3, 2), Standing::Nothing);
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
