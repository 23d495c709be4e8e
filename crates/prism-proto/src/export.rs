//! The source's half of a two-phase hand-off (design: NSDI'21, section 4.2),
//! as a state machine: block → save and close → send → verdict, and from every
//! step before the commit a way back.
//!
//! The switch decides who owns the flow. The source blocks at epoch *e*; the
//! target's `OWN|UNBLOCK` and the source's rollback both carry *e* + 1, so that
//! exactly one of them wins, whatever is lost, late or repeated between them.
//! Only where the target has refused, and so will never be live, the source
//! reclaims at *e* + 2.
//!
//! Sans-IO: each [`Action`] is for the driver to carry out, which answers with
//! the [`Event`] named there. Deadlines are the driver's to keep, with the
//! constants below.

use crate::control::{Answer, FlowKey, FlowState, Ops, Owner, Status};
use crate::node::Refusal;
use crate::steering::{Command, CommandOutcome};

/// How long the source waits for the switch to block the flow. A switch that is
/// out of reach costs a request this much once; then it is relayed.
pub const BLOCK_DEADLINE_NS: u64 = 250_000_000;
/// How long the source waits for the target's verdict before it asks the switch
/// for the flow back.
pub const VERDICT_DEADLINE_NS: u64 = 2_000_000_000;
/// How long either end asks the switch to settle who owns the flow. Longer
/// than the verdict's, and bounded: then the connection is given up. The switch
/// drops a flow's packets that long (its limit for blocked flows is 10 s).
pub const SETTLE_DEADLINE_NS: u64 = 8_000_000_000;

/// What the driver is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this command to the switch until answered or the deadline; then
    /// [`Event::Steered`]. A driver whose socket has died meanwhile does not
    /// carry out a repeated block, but drops the connection: else it would
    /// outbid the connection that took its place.
    Steer {
        /// What to send.
        command: Command,
        /// From now.
        deadline_ns: u64,
    },
    /// Pause the socket, save it, close it silently; then [`Event::Saved`] or
    /// [`Event::SaveFailed`] (with the socket live again).
    SaveAndClose,
    /// Send the state to the target, which is to own the flow at this epoch, and
    /// wait for its verdict; then [`Event::Verdict`].
    Send {
        /// The epoch of the target's command.
        epoch: u64,
    },
    /// Build the socket again from the saved state, still silent; then
    /// [`Event::Rebuilt`] or [`Event::RebuildFailed`].
    Rebuild,
    /// It is over.
    Finish(Outcome),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command ended.
    Steered(CommandOutcome),
    /// The socket is saved and closed.
    Saved,
    /// The socket could not be saved, and is live.
    SaveFailed,
    /// The target's answer, or none.
    Verdict(Verdict),
    /// The socket exists again, silent.
    Rebuilt,
    /// It could not be built.
    RebuildFailed,
}

/// What the source heard from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The target owns the connection.
    Accepted,
    /// It never will.
    Refused(Refusal),
    /// The state was not sent, the channel broke, or time ran out.
    Unknown,
}

/// How a hand-off ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target has it; nothing is left here.
    Moved,
    /// It is here: go live if it was rebuilt, and relay the request. `epoch` is
    /// the flow's from now on. With `settled` unset the switch may still hold
    /// the flow blocked: repeat `OWN|UNBLOCK` at that epoch until it answers.
    /// `STALE` then means that the connection is lost; but where the switch
    /// never confirmed a command for it and the flow is absent, that it always
    /// was this frontend's, and is settled at the answered epoch (where the
    /// flow is held for this very owner, by a predecessor: repeat above it).
    Kept {
        /// The flow's epoch.
        epoch: u64,
        /// Why it did not move.
        reason: Kept,
        /// The switch has confirmed that packets pass.
        settled: bool,
    },
    /// The flow belongs to neither (the client opened a new connection on its
    /// addresses), or nobody can tell: drop what is left, silently.
    Lost,
}

/// Why a connection stayed.
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Blocking { retries_left: u8 },
    Saving,
    AwaitingVerdict,
    Rebuilding { reason: Kept },
    Reclaiming { reason: Kept },
    Unblocking { reason: Kept },
    Done,
}

/// One hand-off, seen from the source.
#[derive(Debug)]
pub struct Export {
    flow: FlowKey,
    here: Owner,
    /// Epoch of the block; what follows it is at `block_epoch + 1`.
    block_epoch: u64,
    /// The target has said that it never will own the flow, so our command may
    /// outrank whatever it sent before.
    refused: bool,
    /// The switch has not yet confirmed any command for this connection.
    never_steered: bool,
    phase: Phase,
}

/// How often a first block may outbid what is left of the connections before
/// it on the same addresses: a tombstone, then the last commands of a
/// predecessor that died here in the midst of a hand-off (block, unblock,
/// release).
const MAX_BLOCK_RETRIES: u8 = 4;

impl Export {
    /// Starts a hand-off of `flow`, owned by `here` at `epoch` (for a flow the
    /// switch has never heard of: the estimate of its clock).
    pub fn start(flow: FlowKey, here: Owner, epoch: u64, never_steered: bool) -> (Self, Action) {
        let retries_left = if never_steered { MAX_BLOCK_RETRIES } else { 0 };
        let phase = Phase::Blocking { retries_left };
        let export = Self {
            flow,
            here,
            block_epoch: epoch.saturating_add(1),
            refused: false,
            never_steered,
            phase,
        };
        let action = export.block();
        (export, action)
    }

    /// Takes what happened, and says what is next. An event that does not belong
    /// to the phase is a driver's bug, answered by giving the connection up.
    pub fn handle(&mut self, event: Event) -> Action {
        match (self.phase, event) {
            (Phase::Blocking { retries_left }, Event::Steered(outcome)) => {
                self.on_block(outcome, retries_left)
            }
            (Phase::Saving, Event::Saved) => {
                self.phase = Phase::AwaitingVerdict;
                Action::Send {
                    epoch: self.next_epoch(),
                }
            }
            (Phase::Saving, Event::SaveFailed) => {
                self.unblock(Kept::SaveFailed, SETTLE_DEADLINE_NS)
            }
            (Phase::AwaitingVerdict, Event::Verdict(verdict)) => self.on_verdict(verdict),
            (Phase::Rebuilding { reason }, Event::Rebuilt) => {
                self.phase = Phase::Reclaiming { reason };
                self.own_here(SETTLE_DEADLINE_NS)
            }
            (Phase::Reclaiming { reason }, Event::Steered(outcome)) => {
                self.on_reclaim(outcome, reason)
            }
            (Phase::Unblocking { reason }, Event::Steered(outcome)) => {
                self.on_unblock(outcome, reason)
            }
            _ => self.finish(Outcome::Lost),
        }
    }

    fn on_block(&mut self, outcome: CommandOutcome, retries_left: u8) -> Action {
        let CommandOutcome::Answered(answer) = outcome else {
            // The block may have been applied and its answer lost.
            return self.unblock(Kept::SwitchSilent, BLOCK_DEADLINE_NS);
        };
        match answer.status {
            Status::Ok => {
                self.phase = Phase::Saving;
                Action::SaveAndClose
            }
            // What is left of a predecessor is ahead of our clock estimate.
            Status::Stale if retries_left > 0 && self.is_a_predecessors(&answer) => {
                let retries_left = retries_left - 1;
                self.phase = Phase::Blocking { retries_left };
                self.block_epoch = answer.epoch.saturating_add(1);
                self.block()
            }
            Status::Stale => self.finish(Outcome::Lost),
            Status::Full => self.fence(Kept::SwitchRefused(Status::Full)),
            status => {
                let epoch = self.block_epoch.saturating_sub(1);
                let reason = Kept::SwitchRefused(status);
                self.finish(Outcome::Kept {
                    epoch,
                    reason,
                    settled: true,
                })
            }
        }
    }

    /// The table was full for one copy of the block; another may yet find room
    /// and blackhole the flow. A tombstone above it needs no room.
    fn fence(&mut self, reason: Kept) -> Action {
        self.phase = Phase::Unblocking { reason };
        Action::Steer {
            command: Command {
                ops: Ops::RELEASE,
                epoch: self.next_epoch(),
                flow: self.flow,
                owner: Owner::NONE,
            },
            deadline_ns: BLOCK_DEADLINE_NS,
        }
    }

    /// Of one host, only one connection on these addresses can be alive, and it
    /// is this one.
    fn is_a_predecessors(&self, answer: &Answer) -> bool {
        answer.state == FlowState::Absent || answer.owner == self.here
    }

    fn on_verdict(&mut self, verdict: Verdict) -> Action {
        let reason = match verdict {
            Verdict::Accepted => return self.finish(Outcome::Moved),
            Verdict::Refused(why) => {
                self.refused = true;
                Kept::TargetRefused(why)
            }
            Verdict::Unknown => Kept::TargetSilent,
        };
        self.phase = Phase::Rebuilding { reason };
        Action::Rebuild
    }

    /// The socket is rebuilt but silent: only a certain answer makes it live.
    fn on_reclaim(&mut self, outcome: CommandOutcome, reason: Kept) -> Action {
        match outcome {
            CommandOutcome::Answered(Answer {
                status: Status::Ok, ..
            }) => self.kept(reason, true),
            CommandOutcome::Answered(answer) if self.is_elsewhere(&answer) => {
                self.finish(Outcome::Moved)
            }
            _ => self.finish(Outcome::Lost),
        }
    }

    /// The socket never left: it is live whatever the switch says, except where
    /// the flow has become another's.
    fn on_unblock(&mut self, outcome: CommandOutcome, reason: Kept) -> Action {
        let CommandOutcome::Answered(answer) = outcome else {
            return self.kept(reason, false);
        };
        if answer.status != Status::Stale {
            return self.kept(reason, true);
        }
        // Nothing of ours was ever applied: a predecessor's tombstone is ahead,
        // under which the flow's packets come here as they always did.
        let unconfirmed = matches!(reason, Kept::SwitchSilent | Kept::SwitchRefused(_));
        if self.never_steered && unconfirmed && answer.state == FlowState::Absent {
            return self.finish(Outcome::Kept {
                epoch: answer.epoch,
                reason,
                settled: true,
            });
        }
        self.finish(Outcome::Lost)
    }

    /// The flow is another's at the very epoch we gave to the target.
    fn is_elsewhere(&self, answer: &Answer) -> bool {
        answer.status == Status::Stale
            && answer.epoch == self.next_epoch()
            && answer.state != FlowState::Absent
    }

    fn block(&self) -> Action {
        self.steer(
            Ops::OWN.and(Ops::BLOCK),
            self.block_epoch,
            BLOCK_DEADLINE_NS,
        )
    }

    fn unblock(&mut self, reason: Kept, deadline_ns: u64) -> Action {
        self.phase = Phase::Unblocking { reason };
        self.own_here(deadline_ns)
    }

    fn own_here(&self, deadline_ns: u64) -> Action {
        self.steer(Ops::OWN.and(Ops::UNBLOCK), self.next_epoch(), deadline_ns)
    }

    fn steer(&self, ops: Ops, epoch: u64, deadline_ns: u64) -> Action {
        let Self {
            flow, here: owner, ..
        } = *self;
        Action::Steer {
            command: Command {
                ops,
                epoch,
                flow,
                owner,
            },
            deadline_ns,
        }
    }

    fn next_epoch(&self) -> u64 {
        self.block_epoch.saturating_add(1 + u64::from(self.refused))
    }

    fn kept(&mut self, reason: Kept, settled: bool) -> Action {
        let epoch = self.next_epoch();
        self.finish(Outcome::Kept {
            epoch,
            reason,
            settled,
        })
    }

    fn finish(&mut self, outcome: Outcome) -> Action {
        self.phase = Phase::Done;
        Action::Finish(outcome)
    }
}
