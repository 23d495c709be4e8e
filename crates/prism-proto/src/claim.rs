//! A frontend's claim to a connection that it accepted: from then on the switch finds
//! the connection by its flow, and not by the list of frontends, which may change.
//!
//! A claim is for connections that stay ([`CLAIM_AFTER_NS`]): it is never made at the
//! SYN, so that a flood of SYNs writes nothing. Nothing waits for it. It is over when the
//! connection is handed off or closed; its epoch is then to be outranked, whether the
//! switch has confirmed it or not.
//!
//! A claim has the epoch of the moment when the connection was accepted. It outbids
//! nobody: a connection that its client has forgotten must not take the flow from the
//! client's next one, which may be at another frontend by now.

use crate::control::{FlowKey, FlowState, Ops, Owner, Status};
use crate::export::CLAIM_DEADLINE_NS;
use crate::steering::{Command, CommandOutcome};

/// When a frontend claims a connection that it still has. Most connections of one request
/// are over by then, and cost no command; a change of the frontends is slower.
pub const CLAIM_AFTER_NS: u64 = 100_000_000;
/// How long the switch is asked each time.
pub const DEADLINE_NS: u64 = CLAIM_DEADLINE_NS;

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The flow is this frontend's, and the switch knows it.
    Held,
    /// The switch did not answer. Claim again later, at the next epoch.
    Unanswered,
    /// A tombstone is newer. The estimate of the switch's clock may have been behind, and
    /// this answer has corrected it: claim again if the connection came later by it.
    Outranked,
    /// It has no room, or the flow is another's. It stays where the list of frontends
    /// has it.
    Refused,
}

/// The claim to `flow` for `here`. The first of a connection has as its epoch the estimate
/// of the switch's clock when that was accepted, each further one a greater.
pub fn command(flow: FlowKey, here: Owner, epoch: u64) -> Command {
    Command {
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch,
        flow,
        owner: here,
    }
}

impl Claim {
    /// The outcome of a claim by its command's.
    pub fn of(outcome: CommandOutcome) -> Self {
        match outcome {
            CommandOutcome::Unanswered => Self::Unanswered,
            CommandOutcome::Answered(answer) => match (answer.status, answer.state) {
                (Status::Ok, _) => Self::Held,
                (Status::Stale, FlowState::Absent) => Self::Outranked,
                _ => Self::Refused,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::control::Request;
    use crate::flow_table::FlowTable;

    #[test]
    fn a_forgotten_connection_does_not_take_the_flow_of_the_next() {
        let flow = FlowKey {
            client: "192.0.2.1:9".parse().unwrap(),
            vip: "198.51.100.1:80".parse().unwrap(),
        };
        let mut table = FlowTable::new(9);
        let mut claim = |host: u8, epoch| {
            let here = Owner {
                addr: flow.vip,
                via: [10, 0, 0, host].into(),
            };
            let Command {
                ops,
                epoch,
                flow,
                owner,
            } = command(flow, here, epoch);
            let request = Request {
                key_id: 1,
                request_id: 1,
                time_ns: 500,
                ops,
                epoch,
                flow,
                owner,
            };
            Claim::of(CommandOutcome::Answered(table.apply(&request, 500)))
        };
        assert_eq!(claim(2, 200), Claim::Held, "accepted last");
        assert_eq!(claim(1, 100), Claim::Refused, "accepted first");
        assert_eq!(claim(2, 200), Claim::Held, "repetition");
        assert_eq!(Claim::of(CommandOutcome::Unanswered), Claim::Unanswered);
    }
}
