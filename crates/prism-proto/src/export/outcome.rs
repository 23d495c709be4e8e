//! The ends of a hand-off at its source.

use crate::control::Status;
use crate::node::Refusal;

/// The outcome of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target has the connection.
    Moved,
    /// The connection is here. Go live if it was rebuilt, and relay the request. `epoch` is the
    /// flow's from now on.
    ///
    /// If `settled` is unset, the switch may still have the flow blocked, or owned by the target.
    /// Repeat `OWN|UNBLOCK` at that epoch until it answers, at most
    /// [`MAX_SETTLE_ROUNDS`](super::MAX_SETTLE_ROUNDS) times
    /// [`SETTLE_DEADLINE_NS`](super::SETTLE_DEADLINE_NS). `STALE` then means that the connection is
    /// lost, with two exceptions. If the switch never confirmed a command for it and the flow is
    /// absent, it is still this frontend's. If a predecessor left the flow to this very owner,
    /// repeat above its epoch.
    Kept {
        /// The flow's epoch.
        epoch: u64,
        /// The reason why it did not move.
        reason: Kept,
        /// The switch has confirmed that packets pass here.
        settled: bool,
    },
    /// The connection is here, live, and the switch has applied no command for it and never will.
    Untouched {
        /// The reason why it did not move.
        reason: Kept,
    },
    /// The flow belongs to neither, because the client opened a new connection on its addresses.
    /// Drop the rest silently.
    Lost,
    /// The connection's owner is unknown: the switch and the target were out of reach, or the flow
    /// is gone. The target may have it, or have had it. Drop the rest silently.
    Unknown,
}

/// The reason why a connection stayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// The switch did not answer.
    SwitchSilent,
    /// The switch refused: table full, not our flow, no service.
    SwitchRefused(Status),
    /// The kernel could not save it.
    SaveFailed,
    /// The target refused.
    TargetRefused(Refusal),
    /// The target was not reached, or gave no verdict.
    TargetSilent,
    /// It has moved [`crate::node::MAX_MOVES`] times since the client last got an answer.
    MovedTooOften,
}
