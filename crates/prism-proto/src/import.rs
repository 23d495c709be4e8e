//! The target's half of a hand-off, as a state machine: restore → own →
//! live and accepted, or gone and refused.
//!
//! Sans-IO, like [`crate::export`], whose deadlines it shares.

use crate::control::{Answer, FlowKey, Ops, Owner, Status};
use crate::export::SETTLE_DEADLINE_NS;
use crate::node::Refusal;
use crate::steering::{Command, CommandOutcome};

/// What the driver is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Build the socket, silent; then [`Event::Restored`] or
    /// [`Event::RestoreFailed`].
    Restore,
    /// Send this command until answered or the deadline; then [`Event::Steered`].
    Steer {
        /// What to send.
        command: Command,
        /// From now.
        deadline_ns: u64,
    },
    /// Make the socket live, tell the source "accepted", serve. The flow's epoch
    /// is the hand-off's.
    GoLive,
    /// Close the socket silently, if there is one, and tell the source.
    Refuse(Refusal),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The socket exists, silent, bound so that this is its owner record.
    Restored(Owner),
    /// It could not be built.
    RestoreFailed,
    /// The command ended.
    Steered(CommandOutcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Restoring,
    Owning,
    Done,
}

/// One hand-off, seen from the target.
#[derive(Debug)]
pub struct Import {
    flow: FlowKey,
    epoch: u64,
    phase: Phase,
}

impl Import {
    /// A connection has arrived that this node is to own at `epoch`.
    pub fn start(flow: FlowKey, epoch: u64) -> (Self, Action) {
        let import = Self {
            flow,
            epoch,
            phase: Phase::Restoring,
        };
        (import, Action::Restore)
    }

    /// Takes what happened, and says what is next.
    pub fn handle(&mut self, event: Event) -> Action {
        match (self.phase, event) {
            (Phase::Restoring, Event::Restored(owner)) => {
                self.phase = Phase::Owning;
                let ops = Ops::OWN.and(Ops::UNBLOCK);
                let Self { flow, epoch, .. } = *self;
                let command = Command {
                    ops,
                    epoch,
                    flow,
                    owner,
                };
                Action::Steer {
                    command,
                    deadline_ns: SETTLE_DEADLINE_NS,
                }
            }
            (Phase::Restoring, Event::RestoreFailed) => self.refuse(Refusal::RestoreFailed),
            (Phase::Owning, Event::Steered(outcome)) => self.on_owned(outcome),
            _ => self.refuse(Refusal::Malformed),
        }
    }

    fn on_owned(&mut self, outcome: CommandOutcome) -> Action {
        match outcome {
            CommandOutcome::Answered(Answer {
                status: Status::Ok, ..
            }) => {
                self.phase = Phase::Done;
                Action::GoLive
            }
            CommandOutcome::Answered(Answer {
                status: Status::Stale,
                ..
            }) => self.refuse(Refusal::Stale),
            _ => self.refuse(Refusal::SwitchFailed),
        }
    }

    fn refuse(&mut self, why: Refusal) -> Action {
        self.phase = Phase::Done;
        Action::Refuse(why)
    }
}
