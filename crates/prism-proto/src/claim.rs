//! A frontend's claim to a connection that it accepted. From then on the switch finds the
//! connection by its flow, and not by the list of frontends, which may change.
//!
//! Only connections that stay are claimed ([`CLAIM_AFTER_NS`]), never at the SYN, so a flood of
//! SYNs writes nothing. No request waits for a claim. A claim is over when the connection is handed
//! off or closed. The next command then has to outrank its epoch, confirmed or not.
//!
//! The epoch of a claim is the time when the connection was accepted, so it outbids no other
//! connection. A connection that its client has forgotten must not take the flow from the client's
//! next one, which may be at another frontend.

use crate::control::{FlowKey, FlowState, Ops, Owner, Status};
use crate::export::CLAIM_DEADLINE_NS;
use crate::steering::{Command, CommandOutcome};

/// The age at which a frontend claims a connection. Most connections of one request are over by
/// then, and cost no command. The lists of frontends change more slowly.
pub const CLAIM_AFTER_NS: u64 = 100_000_000;
/// The deadline of each claim.
pub const DEADLINE_NS: u64 = CLAIM_DEADLINE_NS;

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The flow is this frontend's, and the switch knows it.
    Held,
    /// The switch did not answer, or not in this term. Claim again later, at the next epoch.
    Unanswered,
    /// A tombstone is newer. If this answer has corrected the estimate of the switch's clock
    /// upwards, claim again.
    Outranked,
    /// The switch has no room, or the flow is another's. The connection stays where the list of
    /// frontends has it.
    Refused,
}

/// The claim to `flow` for `here`. The first epoch of a connection is the estimate of the switch's
/// clock at its `accept`; each further one is greater.
pub fn command(flow: FlowKey, here: Owner, epoch: u64) -> Command {
    Command {
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch,
        flow,
        owner: here,
    }
}

impl Claim {
    /// The outcome of a claim, from that of its command.
    pub fn of(outcome: CommandOutcome) -> Self {
        match outcome {
            CommandOutcome::Unanswered => Self::Unanswered,
            CommandOutcome::Answered(answer) => match (answer.status, answer.state) {
                (Status::Ok, _) => Self::Held,
                // The next claim is of the present term.
                (Status::OldTerm, _) => Self::Unanswered,
                (Status::Stale, FlowState::Absent) => Self::Outranked,
                _ => Self::Refused,
            },
        }
    }
}
