//! The source's half of a hand-off as a state machine: stop the connection's
//! packets → save → send → verdict, and from every step before the commit a way
//! back. The packets are stopped by one of two [`Method`]s.
//!
//! The switch decides who owns the flow. The source blocks at epoch *e*, or in a
//! freeze holds the flow at epoch *e*; the target's `OWN|UNBLOCK` and the source's
//! rollback both carry *e* + 1, so that exactly one of them wins, whatever is
//! lost, late or repeated between them. Only where the target has refused, and so
//! will never be live, the source reclaims at *e* + 2, and need not wait for the
//! switch to confirm that: nobody else will send on the flow, and at worst the
//! switch drops what this host sends until the command has reached it. A refusal
//! may be lost on its way; so a source that learns from the switch that the flow
//! is the target's asks the target.
//!
//! Sans-IO: each [`Action`] is for the driver to carry out, which answers with
//! the [`Event`] named there. Deadlines are the driver's to keep, with the
//! constants below.

use crate::control::{Answer, FIRST_COMMAND_NS, FlowKey, FlowState, Ops, Owner, Status};
use crate::node::Refusal;
use crate::steering::{Command, CommandOutcome};

/// How long the source waits for the switch to block the flow. A switch that is
/// out of reach costs a request this much once; then it is relayed.
pub const BLOCK_DEADLINE_NS: u64 = 250_000_000;
/// How long the source waits for the target's verdict before it asks the switch
/// for the flow back.
pub const VERDICT_DEADLINE_NS: u64 = 2_000_000_000;
/// How long either end asks the switch to settle who owns the flow, where nobody
/// else can say. Longer than the verdict's, and bounded: then the connection is
/// given up. The switch drops a flow's packets that long ([`BLOCKED_NS`]).
pub const SETTLE_DEADLINE_NS: u64 = 8_000_000_000;
/// How long the switch keeps a flow blocked: while either end may still settle whose it
/// is.
pub const BLOCKED_NS: u64 = VERDICT_DEADLINE_NS + SETTLE_DEADLINE_NS;
/// How long the target asks the switch for the flow before it gives up, and the
/// source, once the target has, for the flow back before it goes on unconfirmed:
/// what an outage of the switch costs the requests that it meets.
pub const CLAIM_DEADLINE_NS: u64 = 250_000_000;
/// How long the source asks the flow's owner whether it has given the connection
/// up, where no verdict has come.
pub const ASK_DEADLINE_NS: u64 = 2_000_000_000;
/// How often.
pub const ASK_INTERVAL_NS: u64 = 100_000_000;
/// For how many times [`SETTLE_DEADLINE_NS`] a source goes on to ask for the flow
/// of a connection that it kept unconfirmed ([`Outcome::Kept`]).
pub const MAX_SETTLE_ROUNDS: u64 = 4;

// A connection's first epoch is still new to the switch when its first command ends.
const _: () = assert!(2 * BLOCK_DEADLINE_NS <= FIRST_COMMAND_NS);

/// How the source stops the packets of the connection that it saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The switch drops them (NSDI'21, section 4.2): one more round trip to it.
    TwoPhase,
    /// The source silences its own socket, and keeps it, silent, until the
    /// verdict.
    Freeze,
}

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
    /// Pause the socket (in a freeze: silence it too) and save it; then
    /// [`Event::Saved`] or [`Event::SaveFailed`] (with the socket live again).
    Save,
    /// Send the state to the target, which is to own the flow at this epoch, and
    /// wait for its verdict; then [`Event::Verdict`]. A blocked socket is closed
    /// silently meanwhile, a frozen one is kept.
    Send {
        /// The epoch of the target's command.
        epoch: u64,
    },
    /// Build the socket again from the saved state, still silent (a frozen one is
    /// still there); then [`Event::Rebuilt`], [`Event::Returned`] or
    /// [`Event::RebuildFailed`].
    Rebuild,
    /// Ask the node that has this owner record (or, without one, the node that the
    /// state was sent to) whether it has given the connection up, each
    /// [`ASK_INTERVAL_NS`], on a channel of its own, until it says or the deadline;
    /// then [`Event::Told`].
    Ask {
        /// Who owns the flow, if the switch has said so.
        owner: Option<Owner>,
        /// From now.
        deadline_ns: u64,
    },
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
    /// The connection has come back since, as another hand-off: the target took
    /// it, and its verdict is late. Or it is over, and the client's next one is here.
    Returned,
    /// What the owner said, or that it was not to be reached.
    Told(Verdict),
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
    /// the flow blocked, or for the target: repeat `OWN|UNBLOCK` at that epoch
    /// until it answers, [`MAX_SETTLE_ROUNDS`] times [`SETTLE_DEADLINE_NS`] at most.
    /// `STALE` then means that the connection is lost; but where the switch
    /// never confirmed a command for it and the flow is absent, that it always
    /// was this frontend's (where the flow is held for this very owner, by a
    /// predecessor: repeat above it).
    Kept {
        /// The flow's epoch.
        epoch: u64,
        /// Why it did not move.
        reason: Kept,
        /// The switch has confirmed that packets pass here.
        settled: bool,
    },
    /// It is here, live, and no command for it has been applied, nor ever will be.
    Untouched {
        /// Why it did not move.
        reason: Kept,
    },
    /// The flow belongs to neither (the client opened a new connection on its
    /// addresses): drop what is left, silently.
    Lost,
    /// The connection's owner is unknown: neither the switch nor the target was in reach, or
    /// the flow is gone. The target may have it, or have had it: drop what is left, silently.
    Unknown,
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
    /// It has moved [`crate::node::MAX_MOVES`] times since the client last got an answer.
    MovedTooOften,
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
    flow: FlowKey,
    here: Owner,
    /// The flow's epoch while its packets are stopped here.
    stopped_epoch: u64,
    /// The target has said that it never will own the flow, so our command may
    /// outrank whatever it sent before.
    refused: bool,
    /// The switch has not yet confirmed any command for this connection.
    never_steered: bool,
    phase: Phase,
}

/// By how many epochs a flow may be ahead that the target has taken: a few commands
/// within the time that a source waits. Between two connections lie more nanoseconds.
const MAX_GONE_ON: u64 = 4096;

/// How often a first block may outbid what is left of the connections before
/// it on the same addresses: a tombstone, then the last commands of a
/// predecessor that died here in the midst of a hand-off (block, unblock,
/// release).
const MAX_BLOCK_RETRIES: u8 = 4;

impl Export {
    /// Starts a hand-off of `flow`, owned by `here` at `epoch` (for a flow the
    /// switch has never heard of: the estimate of its clock). The first hand-off
    /// of a connection is two-phase in any case: what is left at the switch of
    /// the connections before it on the same addresses is found out by the block,
    /// while it cannot be told from a verdict that never came.
    pub fn start(
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
            flow,
            here,
            stopped_epoch,
            refused: false,
            never_steered,
            phase,
        };
        let action = match phase {
            Phase::Saving { .. } => Action::Save,
            _ => export.block(),
        };
        (export, action)
    }

    /// Takes what happened, and says what is next. An event that does not belong
    /// to the phase is a driver's bug, answered by giving the connection up.
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

    fn on_block(&mut self, outcome: CommandOutcome, retries_left: u8) -> Action {
        let CommandOutcome::Answered(answer) = outcome else {
            // The block may have been applied and its answer lost.
            return self.unblock(Kept::SwitchSilent, BLOCK_DEADLINE_NS);
        };
        match answer.status {
            Status::Ok => {
                self.phase = Phase::Saving { is_blocked: true };
                Action::Save
            }
            // What is left of a predecessor is ahead of our clock estimate.
            Status::Stale if retries_left > 0 && self.is_a_predecessors(&answer) => {
                let retries_left = retries_left - 1;
                self.phase = Phase::Blocking { retries_left };
                self.stopped_epoch = answer.epoch.saturating_add(1);
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

    fn reclaim(&mut self, reason: Kept) -> Action {
        self.phase = Phase::Reclaiming { reason };
        self.own_here(match self.refused {
            true => CLAIM_DEADLINE_NS,
            false => SETTLE_DEADLINE_NS,
        })
    }

    /// The socket is there but silent: only what is certain makes it live, the
    /// switch's answer or the target's.
    fn on_reclaim(&mut self, outcome: CommandOutcome, reason: Kept) -> Action {
        match outcome {
            CommandOutcome::Answered(Answer {
                status: Status::Ok, ..
            }) => self.kept(reason, true),
            CommandOutcome::Unanswered if self.refused => self.kept(reason, false),
            CommandOutcome::Unanswered => self.ask(None, reason, Outcome::Unknown),
            CommandOutcome::Answered(answer) if self.is_elsewhere(&answer) => {
                self.ask(Some(answer.owner), reason, Outcome::Moved)
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

    /// The socket never left: it is live whatever the switch says, except where
    /// the flow has become another's.
    fn on_unblock(&mut self, outcome: CommandOutcome, reason: Kept) -> Action {
        let CommandOutcome::Answered(answer) = outcome else {
            return self.kept(reason, false);
        };
        // Nothing of ours is in the table, nor will it be: the flow's packets come
        // here as they always did, past a predecessor's tombstone or our fence.
        let unconfirmed = matches!(reason, Kept::SwitchSilent | Kept::SwitchRefused(_));
        let is_fence = matches!(reason, Kept::SwitchRefused(_));
        let is_absent = answer.state == FlowState::Absent;
        match answer.status {
            Status::Ok if !is_fence => self.kept(reason, true),
            Status::Stale if !is_absent => self.finish(Outcome::Lost),
            _ if self.never_steered && unconfirmed => self.untouched(reason),
            Status::Stale => self.finish(Outcome::Lost),
            _ => self.kept(reason, true),
        }
    }

    /// The flow is another's at the very epoch we gave to the target.
    fn is_elsewhere(&self, answer: &Answer) -> bool {
        answer.status == Status::Stale
            && answer.epoch == self.next_epoch()
            && answer.state != FlowState::Absent
    }

    /// The target has taken the flow at the epoch that we gave it, and has moved or
    /// released it since: nobody else could go on from there. (A SYN goes on from the
    /// switch's clock.)
    fn has_gone_on(&self, answer: &Answer) -> bool {
        let further = answer.epoch.checked_sub(self.next_epoch());
        let is_near = further.is_some_and(|n| (1..MAX_GONE_ON).contains(&n));
        answer.status == Status::Stale && is_near && !self.refused
    }

    /// The target has taken it and it is over, or the client has begun another.
    fn is_forgotten(&self, answer: &Answer) -> bool {
        let is_gone = answer.state == FlowState::Absent;
        answer.status == Status::Stale && is_gone && !self.refused
    }

    fn block(&self) -> Action {
        self.steer(
            Ops::OWN.and(Ops::BLOCK),
            self.stopped_epoch,
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
