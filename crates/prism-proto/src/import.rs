//! The target's half of a hand-off as a state machine: restore → own → live and accepted, or gone
//! and refused.
//!
//! A target without an answer of the switch gives the connection up, so that its source goes on.
//! The switch may still have applied the command, and send it the client's packets. The socket
//! therefore stays, deaf and mute, so that they draw no reset ([`DEAF_NS`]). A target that may have
//! acknowledged bytes to the client cannot give up, because the source does not have them.
//!
//! In host mode ([`crate::fence`]) the socket is mute until it is live, so its target can always
//! give up. No refusal of the client's next SYN ends its flow there, if the arbiter has it as this
//! host's and the source does not take it back. So the target releases it when the socket is closed
//! ([`Remains`]).
//!
//! Sans-IO, like [`crate::export`], whose deadlines it shares.

use crate::claim;
use crate::control::{Answer, FlowKey, FlowState, Ops, Owner, Status};
use crate::export::{CLAIM_DEADLINE_NS, MAX_SETTLE_ROUNDS, SETTLE_DEADLINE_NS};
use crate::fence::Fence;
use crate::node::Refusal;
use crate::steering::{Command, CommandOutcome};

/// The time that the socket of a given-up connection stays: longer than its source asks for the
/// flow.
pub const DEAF_NS: u64 = (MAX_SETTLE_ROUNDS + 1) * SETTLE_DEADLINE_NS;

/// The next step of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Build the socket, with no data to send; then [`Event::Restored`] or
    /// [`Event::RestoreFailed`].
    Restore {
        /// The socket sends nothing at all until [`Action::GoLive`], not even acknowledgements.
        is_mute: bool,
    },
    /// Send this command until it is answered or the deadline passes; then [`Event::Steered`].
    /// Unless the answer comes at once, silence the socket meanwhile, and see
    /// [`Import::must_insist`].
    Steer {
        /// The command.
        command: Command,
        /// The deadline, from now.
        deadline_ns: u64,
    },
    /// Make the socket live, tell the source "accepted", serve. The flow's epoch
    /// is the hand-off's.
    GoLive,
    /// Close the socket silently, if there is one, and tell the source.
    Refuse(Refusal),
    /// Tell the source, and keep the socket for [`DEAF_NS`], deaf and mute.
    GiveUp(Refusal),
}

/// An event for the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The socket exists, silent; this is its owner record.
    Restored(Owner),
    /// It could not be built.
    RestoreFailed,
    /// The command ended.
    Steered(CommandOutcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Restoring,
    Owning { is_last: bool },
    Done,
}

/// One hand-off, seen from the target.
#[derive(Debug)]
pub struct Import {
    fence: Fence,
    flow: FlowKey,
    epoch: u64,
    owner: Owner,
    insists: bool,
    phase: Phase,
}

impl Import {
    /// Starts the import of a connection that this node is to own at `epoch`.
    pub fn start(fence: Fence, flow: FlowKey, epoch: u64) -> (Self, Action) {
        let import = Self {
            fence,
            flow,
            epoch,
            owner: Owner::NONE,
            insists: false,
            phase: Phase::Restoring,
        };
        let is_mute = fence == Fence::Host;
        (import, Action::Restore { is_mute })
    }

    /// Notes that the socket took bytes before it was silenced, or cannot be silenced: the client
    /// may have got acknowledgements. A mute socket has sent none.
    pub fn must_insist(&mut self) {
        self.insists = self.fence == Fence::Switch;
    }

    /// Handles an event, and returns the next action.
    pub fn handle(&mut self, event: Event) -> Action {
        match (self.phase, event) {
            (Phase::Restoring, Event::Restored(owner)) => {
                self.phase = Phase::Owning { is_last: false };
                self.owner = owner;
                self.claim(CLAIM_DEADLINE_NS)
            }
            (Phase::Restoring, Event::RestoreFailed) => self.refuse(Refusal::RestoreFailed),
            (Phase::Owning { is_last }, Event::Steered(outcome)) => self.on_owned(outcome, is_last),
            _ => self.refuse(Refusal::Malformed),
        }
    }

    /// The flow that may be left after [`Action::GiveUp`].
    pub fn remains(&self) -> Option<Remains> {
        let remains = Remains {
            flow: self.flow,
            owner: self.owner,
            epoch: self.epoch,
        };
        (self.fence == Fence::Host).then_some(remains)
    }

    fn claim(&self, deadline_ns: u64) -> Action {
        Action::Steer {
            command: claim::command(self.flow, self.owner, self.epoch),
            deadline_ns,
        }
    }

    fn on_owned(&mut self, outcome: CommandOutcome, is_last: bool) -> Action {
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
            CommandOutcome::Unanswered if self.insists && !is_last => {
                self.phase = Phase::Owning { is_last: true };
                self.claim(SETTLE_DEADLINE_NS)
            }
            // The switch has judged the command itself, and no copy of it will be applied. A socket
            // that stayed deaf would be in the way of the connection that a false hand-off names.
            CommandOutcome::Answered(Answer {
                status: Status::Denied | Status::NoService | Status::BadRequest | Status::Ahead,
                ..
            }) => self.refuse(Refusal::SwitchFailed),
            // Another copy of the command may be applied.
            _ => {
                self.phase = Phase::Done;
                Action::GiveUp(Refusal::SwitchFailed)
            }
        }
    }

    fn refuse(&mut self, why: Refusal) -> Action {
        self.phase = Phase::Done;
        Action::Refuse(why)
    }
}

/// A flow that a target has given up in host mode. After [`DEAF_NS`] the driver closes the socket
/// and sends [`Self::query`]. If the answer says that the flow is left, the driver releases it as
/// that of any connection, at the next epoch. A release without the question could end the
/// connection of a source that has taken the flow back at this very epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains {
    /// The flow.
    pub flow: FlowKey,
    /// The owner record of the given-up socket.
    pub owner: Owner,
    /// The epoch at which this host was to own the flow.
    pub epoch: u64,
}

impl Remains {
    /// Asks for the flow's state.
    pub fn query(&self) -> Command {
        Command {
            ops: Ops::QUERY,
            epoch: 0,
            flow: self.flow,
            owner: Owner::NONE,
        }
    }

    /// Whether the arbiter has the flow as this host's since the hand-off.
    pub fn is_left(&self, answer: &Answer) -> bool {
        let is_present = answer.state != FlowState::Absent;
        is_present && (answer.owner, answer.epoch) == (self.owner, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::control::{Request, RunId};

    #[test]
    fn what_the_switch_refuses_for_good_leaves_no_deaf_socket() {
        let client = "192.0.2.1:1000".parse().unwrap();
        let vip = "198.51.100.1:80".parse().unwrap();
        let flow = FlowKey { client, vip };
        let owner = Owner {
            addr: vip,
            via: vip.ip(),
        };
        let refused = Action::Refuse(Refusal::SwitchFailed);
        let given_up = Action::GiveUp(Refusal::SwitchFailed);
        for (status, ends) in [
            (Status::Denied, &refused),
            (Status::NoService, &refused),
            (Status::BadRequest, &refused),
            (Status::Ahead, &refused),
            (Status::Full, &given_up),
            (Status::Young, &given_up),
            (Status::OldTerm, &given_up),
        ] {
            for fence in [Fence::Switch, Fence::Host] {
                let (mut import, _) = Import::start(fence, flow, 5);
                import.handle(Event::Restored(owner));
                let request = Request {
                    key_id: 1,
                    request_id: 1,
                    time_ns: 1,
                    ops: Ops::OWN.and(Ops::UNBLOCK),
                    epoch: 5,
                    flow,
                    owner,
                    run: RunId::NONE,
                };
                let answer = request.answer(status, FlowState::Absent, 0, Owner::NONE, 1);
                let outcome = CommandOutcome::Answered(answer);
                assert_eq!(&import.handle(Event::Steered(outcome)), ends, "{status:?}");
            }
        }
    }
}
