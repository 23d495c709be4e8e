//! Settles a flow after a hand-off whose last command the switch did not answer.

use std::rc::Rc;

use prism_proto::control::{FlowKey, Ops, Owner, Status};
use prism_proto::export::{MAX_SETTLE_ROUNDS, SETTLE_DEADLINE_NS};
use prism_proto::steering::{Command, CommandOutcome};

use crate::control::Control;

/// Repeats the command until the switch answers. A flow that the switch blocked just before it fell
/// silent then passes packets again.
pub(super) async fn settle(control: Rc<Control>, flow: FlowKey, owner: Owner, mut epoch: u64) {
    for _ in 0..MAX_SETTLE_ROUNDS {
        let command = Command {
            ops: Ops::OWN.and(Ops::UNBLOCK),
            epoch,
            flow,
            owner,
        };
        match control.call(command, SETTLE_DEADLINE_NS).await {
            CommandOutcome::Unanswered => {}
            // The refusing epoch is this node's own, of an earlier connection on these ports.
            CommandOutcome::Answered(a) if a.status == Status::Stale && a.owner == owner => {
                epoch = a.epoch.saturating_add(1);
            }
            CommandOutcome::Answered(_) => return,
        }
    }
}
