//! After a hand-off that the switch has not confirmed the end of.

use std::rc::Rc;

use prism_proto::control::{FlowKey, Ops, Owner, Status};
use prism_proto::export::{MAX_SETTLE_ROUNDS, SETTLE_DEADLINE_NS};
use prism_proto::steering::{Command, CommandOutcome};

use crate::control::Control;

/// Repeats what the switch has not confirmed, so that a flow it blocked just
/// before it fell silent passes again when it is back.
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
            // The refusing epoch is our own, of an earlier connection on these ports.
            CommandOutcome::Answered(a) if a.status == Status::Stale && a.owner == owner => {
                epoch = a.epoch.saturating_add(1);
            }
            CommandOutcome::Answered(_) => return,
        }
    }
}
