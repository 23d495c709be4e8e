//! The source's half of a hand-off as a state machine: stop the packets → save → send → verdict.
//! Every step before the commit has a way back. One of two [`Method`]s stops the packets.
//!
//! The switch decides who owns the flow. The source blocks at epoch *e*, or in a freeze holds the
//! flow at epoch *e*. The target's `OWN|UNBLOCK` and the source's rollback both carry *e* + 1, so
//! exactly one of them wins, whatever is lost, late or repeated.
//!
//! A target that has refused will never be live. The source then reclaims at *e* + 2, and need not
//! wait for the switch to confirm: no other host sends on the flow, and at worst the switch drops
//! what this host sends. A refusal may be lost. A source that learns from the switch that the flow
//! is the target's therefore asks the target.
//!
//! Sans-IO: the driver carries out each [`Action`], and answers with the [`Event`] that the action
//! names. The driver keeps the deadlines, which are the constants below.

use crate::control::{Answer, FIRST_COMMAND_NS, FlowKey, FlowState, Ops, Owner, Status};
use crate::fence::{self, Fence};
use crate::node::Refusal;
use crate::steering::{Command, CommandOutcome};

pub use outcome::{Kept, Outcome};

mod outcome;

/// The time for the switch to block the flow. A switch out of reach costs a request this much once;
/// then it is relayed.
pub const BLOCK_DEADLINE_NS: u64 = 250_000_000;
/// The time for the target's verdict, after which the source asks the switch for the flow.
pub const VERDICT_DEADLINE_NS: u64 = 2_000_000_000;
/// The time for which either end asks the switch to settle who owns the flow. Then the connection
/// is given up. The switch drops a flow's packets that long ([`BLOCKED_NS`]).
pub const SETTLE_DEADLINE_NS: u64 = 8_000_000_000;
/// The time that the switch keeps a flow blocked, while either end may still settle whose it is.
pub const BLOCKED_NS: u64 = VERDICT_DEADLINE_NS + SETTLE_DEADLINE_NS;
/// The time for which the target asks the switch for the flow before it gives up. The source then
/// asks for as long before it goes on unconfirmed. An outage of the switch costs a request this
/// much.
pub const CLAIM_DEADLINE_NS: u64 = 250_000_000;
/// The time for which the source asks the flow's owner whether it has given the connection up, if
/// no verdict has come.
pub const ASK_DEADLINE_NS: u64 = 2_000_000_000;
/// The interval of these questions.
pub const ASK_INTERVAL_NS: u64 = 100_000_000;
/// A source asks for the flow of a connection that it kept unconfirmed ([`Outcome::Kept`]) for this
/// many times [`SETTLE_DEADLINE_NS`].
pub const MAX_SETTLE_ROUNDS: u64 = 4;

// A connection's first epoch is still new to the switch when its first command ends.
const _: () = assert!(2 * BLOCK_DEADLINE_NS <= FIRST_COMMAND_NS);

/// The means by which the source stops the packets of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The switch drops them (NSDI'21, section 4.2): one more round trip to it.
    TwoPhase,
    /// The source silences its own socket until the verdict.
    Freeze,
}

/// The next step of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this command to the switch until it is answered or the deadline passes; then
    /// [`Event::Steered`]. If the socket has died meanwhile, the driver drops the connection
    /// instead of repeating a block: the block would outbid the connection that took its place.
    Steer {
        /// The command.
        command: Command,
        /// The deadline, from now.
        deadline_ns: u64,
    },
    /// Pause the socket and save it; then [`Event::Saved`] or [`Event::SaveFailed`] (with the
    /// socket live again).
    Save {
        /// Silence the socket first, because the switch does not stop its packets.
        freezes: bool,
    },
    /// Send the state to the target, and wait for its verdict; then [`Event::Verdict`]. A socket
    /// that is not frozen is closed silently meanwhile; a frozen one is kept.
    Send {
        /// The epoch at which the target is to own the flow.
        epoch: u64,
    },
    /// Build the socket again from the saved state, still silent; a frozen one is still there. Then
    /// [`Event::Rebuilt`], [`Event::Returned`] or [`Event::RebuildFailed`].
    Rebuild,
    /// Ask the node of this owner record whether it has given the connection up, or without one the
    /// node that the state was sent to. Ask each [`ASK_INTERVAL_NS`], on a channel of its own,
    /// until the answer or the deadline; then [`Event::Told`].
    Ask {
        /// The flow's owner, if the switch has named it.
        owner: Option<Owner>,
        /// The deadline, from now.
        deadline_ns: u64,
    },
    /// The hand-off is over.
    Finish(Outcome),
}

/// An event for the machine.
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
    /// The connection has come back as another hand-off: the target took it, and its verdict is
    /// late. Or it is over, and the client's next one is here.
    Returned,
    /// The owner's answer, or [`Verdict::Unknown`] without one.
    Told(Verdict),
}

/// The target's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The target owns the connection.
    Accepted,
    /// It never will.
    Refused(Refusal),
    /// The state was not sent, the channel broke, or time ran out.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Blocking { retries_left: u8 },
    Saving { is_blocked: bool },
    AwaitingVerdict,
    Rebuilding { reason: Kept },
    Reclaiming { reason: Kept },
    Asking { reason: Kept, otherwise: Outcome },
    Unblocking { reason: Kept },
    Done,
}

/// One hand-off, seen from the source.
#[derive(Debug)]
pub struct Export {
    fence: Fence,
    flow: FlowKey,
    here: Owner,
    /// The flow's epoch while its packets are stopped here.
    stopped_epoch: u64,
    /// The target will never own the flow, so our command may outrank its earlier ones.
    refused: bool,
    /// The switch has not confirmed any command for this connection.
    never_steered: bool,
    phase: Phase,
}

/// The largest lead of a flow that the target has taken: a few commands within the time that a
/// source waits. Two connections lie more nanoseconds apart.
const MAX_GONE_ON: u64 = 4096;

/// The number of times that a first block may outbid earlier connections on the same addresses: a
/// tombstone, then the last commands of a predecessor that died here within a hand-off (block,
/// unblock, release).
const MAX_BLOCK_RETRIES: u8 = 4;

impl Export {
    /// Starts a hand-off of `flow`, which `here` owns at `epoch`. For a flow that the switch has
    /// never heard of, `epoch` is the estimate of its clock.
    ///
    /// The first hand-off of a connection is always two-phase. The block finds out what earlier
    /// connections on the same addresses have left at the switch. Without it, that could not be
    /// told from a verdict that never came.
    pub fn start(
        fence: Fence,
        method: Method,
        flow: FlowKey,
        here: Owner,
        epoch: u64,
        never_steered: bool,
    ) -> (Self, Action) {
        let retries_left = if never_steered { MAX_BLOCK_RETRIES } else { 0 };
        let (phase, stopped_epoch) = match method {
            Method::Freeze if !never_steered => (Phase::Saving { is_blocked: false }, epoch),
            _ => (Phase::Blocking { retries_left }, epoch.saturating_add(1)),
        };
        let export = Self {
            fence,
            flow,
            here,
            stopped_epoch,
            refused: false,
            never_steered,
            phase,
        };
        let action = match phase {
            Phase::Saving { .. } => Action::Save { freezes: true },
            _ => export.block(),
        };
        (export, action)
    }

    /// Handles an event, and returns the next action. An event that does not belong to the phase is
    /// a fault of the driver; the connection is then given up.
    pub fn handle(&mut self, event: Event) -> Action {
        match (self.phase, event) {
            (Phase::Blocking { retries_left }, Event::Steered(outcome)) => {
                self.on_block(outcome, retries_left)
            }
            (Phase::Saving { .. }, Event::Saved) => {
                self.phase = Phase::AwaitingVerdict;
                Action::Send {
                    epoch: self.next_epoch(),
                }
            }
            (Phase::Saving { is_blocked: true }, Event::SaveFailed) => {
                self.unblock(Kept::SaveFailed, SETTLE_DEADLINE_NS)
            }
            (Phase::Saving { is_blocked: false }, Event::SaveFailed) => {
                self.untouched(Kept::SaveFailed)
            }
            (Phase::AwaitingVerdict, Event::Verdict(verdict)) => self.on_verdict(verdict),
            (Phase::Rebuilding { reason }, Event::Rebuilt) => self.reclaim(reason),
            (Phase::Rebuilding { .. }, Event::Returned) => self.finish(Outcome::Moved),
            (Phase::Reclaiming { reason }, Event::Steered(outcome)) => {
                self.on_reclaim(outcome, reason)
            }
            (Phase::Asking { reason, otherwise }, Event::Told(verdict)) => {
                self.on_told(verdict, reason, otherwise)
            }
            (Phase::Unblocking { reason }, Event::Steered(outcome)) => {
                self.on_unblock(outcome, reason)
            }
            _ => self.finish(Outcome::Lost),
        }
    }

    /// Whether the next command is valid only in the term in which the state was sent
    /// ([`crate::steering::Steering::bind`]): the target may own the flow, and not have announced
    /// it.
    pub fn is_bound_to_term(&self) -> bool {
        let reclaims = matches!(self.phase, Phase::Reclaiming { .. });
        self.fence == Fence::Host && reclaims && !self.refused
    }

    fn on_block(&mut self, outcome: CommandOutcome, retries_left: u8) -> Action {
        let CommandOutcome::Answered(answer) = outcome else {
            // The switch may have applied the block, and its answer is lost.
            return self.unblock(Kept::SwitchSilent, BLOCK_DEADLINE_NS);
        };
        match answer.status {
            Status::Ok => {
                self.phase = Phase::Saving { is_blocked: true };
                let freezes = self.fence == Fence::Host;
                Action::Save { freezes }
            }
            // A predecessor's entry is ahead of our clock estimate, or that is of a former switch.
            Status::Stale | Status::Ahead
                if retries_left > 0 && self.is_a_predecessors(&answer) =>
            {
                let retries_left = retries_left - 1;
                self.phase = Phase::Blocking { retries_left };
                let is_absent = answer.state == FlowState::Absent;
                let least = if is_absent { answer.time_ns } else { 0 };
                self.stopped_epoch = answer.epoch.max(least).saturating_add(1);
                self.block()
            }
            Status::Stale => self.finish(Outcome::Lost),
            Status::Full => self.fence(Kept::SwitchRefused(Status::Full)),
            status => self.untouched(Kept::SwitchRefused(status)),
        }
    }

    fn untouched(&mut self, reason: Kept) -> Action {
        self.finish(Outcome::Untouched { reason })
    }

    /// The table was full for one copy of the block. Another copy may still find room, and drop the
    /// flow's packets for ever. A tombstone above it needs no room.
    fn fence(&mut self, reason: Kept) -> Action {
        self.phase = Phase::Unblocking { reason };
        self.steer(Ops::RELEASE, self.next_epoch(), BLOCK_DEADLINE_NS)
    }

    /// Whether the entry is a predecessor's. A host can have only one living connection on these
    /// addresses, which is this one.
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

    fn reclaim(&mut self, reason: Kept) -> Action {
        self.phase = Phase::Reclaiming { reason };
        self.own_here(match (self.refused, self.fence) {
            (false, _) => SETTLE_DEADLINE_NS,
            (true, Fence::Switch) => CLAIM_DEADLINE_NS,
            (true, Fence::Host) => fence::MUTE_DEADLINE_NS,
        })
    }

    /// The socket is silent. Only an answer of the switch or the target makes it live.
    fn on_reclaim(&mut self, outcome: CommandOutcome, reason: Kept) -> Action {
        match outcome {
            CommandOutcome::Answered(Answer {
                status: Status::Ok, ..
            }) => self.kept(reason, true),
            CommandOutcome::Unanswered if self.refused => match self.fence {
                Fence::Switch => self.kept(reason, false),
                Fence::Host => self.finish(Outcome::Unknown),
            },
            CommandOutcome::Unanswered => self.ask(None, reason, Outcome::Unknown),
            CommandOutcome::Answered(answer) if self.is_elsewhere(&answer) => {
                self.ask(Some(answer.owner), reason, Outcome::Moved)
            }
            CommandOutcome::Answered(answer) if self.is_of_later_term(&answer) => {
                self.ask(None, reason, Outcome::Unknown)
            }
            CommandOutcome::Answered(answer) if self.has_gone_on(&answer) => {
                self.finish(Outcome::Moved)
            }
            CommandOutcome::Answered(answer) if self.is_forgotten(&answer) => {
                self.finish(Outcome::Unknown)
            }
            CommandOutcome::Answered(_) => self.finish(Outcome::Lost),
        }
    }

    fn ask(&mut self, owner: Option<Owner>, reason: Kept, otherwise: Outcome) -> Action {
        self.phase = Phase::Asking { reason, otherwise };
        Action::Ask {
            owner,
            deadline_ns: ASK_DEADLINE_NS,
        }
    }

    fn on_told(&mut self, verdict: Verdict, reason: Kept, otherwise: Outcome) -> Action {
        match verdict {
            Verdict::Refused(_) => {
                self.refused = true;
                self.reclaim(reason)
            }
            Verdict::Accepted => self.finish(Outcome::Moved),
            Verdict::Unknown => self.finish(otherwise),
        }
    }

    /// The socket never left. It is live whatever the switch answers, unless the flow has become
    /// another's.
    fn on_unblock(&mut self, outcome: CommandOutcome, reason: Kept) -> Action {
        let CommandOutcome::Answered(answer) = outcome else {
            return self.kept(reason, false);
        };
        // Our commands have left no entry and will leave none. The flow's packets come here as
        // before, past a predecessor's tombstone or our fence.
        let unconfirmed = matches!(reason, Kept::SwitchSilent | Kept::SwitchRefused(_));
        let is_fence = matches!(reason, Kept::SwitchRefused(_));
        let is_absent = answer.state == FlowState::Absent;
        match answer.status {
            Status::Ok if !is_fence => self.kept(reason, true),
            Status::Stale if !is_absent && answer.owner != self.here => self.finish(Outcome::Lost),
            _ if self.never_steered && unconfirmed => self.untouched(reason),
            Status::Stale => self.finish(Outcome::Lost),
            _ => self.kept(reason, true),
        }
    }

    /// Whether the flow is another's at the epoch that we gave to the target.
    fn is_elsewhere(&self, answer: &Answer) -> bool {
        is_outdone(answer) && answer.epoch == self.next_epoch() && answer.state != FlowState::Absent
    }

    /// Whether an arbiter that never knew of the hand-off has answered. Only the target can tell.
    fn is_of_later_term(&self, answer: &Answer) -> bool {
        self.fence == Fence::Host && answer.status == Status::OldTerm && !self.refused
    }

    /// Whether the target has taken the flow at the epoch that we gave it, and has moved or
    /// released it since. No other host could go on from there. (A SYN goes on from the switch's
    /// clock.)
    fn has_gone_on(&self, answer: &Answer) -> bool {
        let further = answer.epoch.checked_sub(self.next_epoch());
        let is_near = further.is_some_and(|n| (1..MAX_GONE_ON).contains(&n));
        is_outdone(answer) && is_near && !self.refused
    }

    /// Whether the connection is over at the target, or the client has opened another.
    fn is_forgotten(&self, answer: &Answer) -> bool {
        let is_gone = answer.state == FlowState::Absent;
        is_outdone(answer) && is_gone && !self.refused
    }

    fn block(&self) -> Action {
        let ops = Ops::OWN.and(Ops::BLOCK);
        self.steer(ops, self.stopped_epoch, BLOCK_DEADLINE_NS)
    }

    fn unblock(&mut self, reason: Kept, deadline_ns: u64) -> Action {
        self.phase = Phase::Unblocking { reason };
        self.own_here(deadline_ns)
    }

    fn own_here(&self, deadline_ns: u64) -> Action {
        self.steer(Ops::OWN.and(Ops::UNBLOCK), self.next_epoch(), deadline_ns)
    }

    fn steer(&self, ops: Ops, epoch: u64, deadline_ns: u64) -> Action {
        let flow = self.flow;
        let owner = if ops.has(Ops::OWN) {
            self.here
        } else {
            Owner::NONE
        };
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
        self.stopped_epoch
            .saturating_add(1 + u64::from(self.refused))
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

/// Whether the switch knows better whose the flow is: by its epoch, or by what others have
/// announced since it lost its table.
fn is_outdone(answer: &Answer) -> bool {
    matches!(answer.status, Status::Stale | Status::OldTerm)
}
