//! Connections that have stayed after a hand-off although the switch has not said that their
//! packets pass here.

use std::cell::Cell;
use std::rc::Rc;

use prism_proto::control::{FlowKey, Ops, Owner, Pass, Status};
use prism_proto::export::{MAX_SETTLE_ROUNDS, SETTLE_DEADLINE_NS};
use prism_proto::steering::{Command, CommandOutcome};
use tokio::task::JoinSet;

use crate::control::Control;

/// A flow that is here, which the switch has not confirmed.
pub(crate) struct Unsettled {
    pub(crate) flow: FlowKey,
    pub(crate) owner: Owner,
    /// The epoch of the last command.
    pub(crate) epoch: Rc<Cell<u64>>,
    /// The pass of a target that gave the flow back.
    pub(crate) pass: Option<Pass>,
}

/// The task that asks the switch to let a connection's packets pass. Until it ends, the switch may
/// have the flow as another node's.
pub(crate) struct Settling {
    task: JoinSet<()>,
    epoch: Rc<Cell<u64>>,
}

impl Settling {
    pub(crate) fn begin(control: Rc<Control>, unsettled: Unsettled) -> Self {
        let mut task = JoinSet::new();
        let epoch = unsettled.epoch.clone();
        task.spawn_local(settle(control, unsettled));
        Self { task, epoch }
    }

    /// The epoch of its last command.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Whether the switch has not answered yet.
    pub(crate) fn is_under_way(&mut self) -> bool {
        while self.task.try_join_next().is_some() {}
        !self.task.is_empty()
    }
}

/// Repeats the last command of a hand-off until the switch answers. A flow that the switch blocked
/// just before it fell silent then passes packets again.
async fn settle(control: Rc<Control>, unsettled: Unsettled) {
    let Unsettled {
        flow,
        owner,
        epoch,
        pass,
    } = unsettled;
    for _ in 0..MAX_SETTLE_ROUNDS {
        epoch.set(control.flows.raised(&flow, epoch.get()));
        let command = Command {
            ops: Ops::OWN.and(Ops::UNBLOCK),
            epoch: epoch.get(),
            flow,
            owner,
        };
        let outcome = control.call(pass, command, SETTLE_DEADLINE_NS).await;
        control.note(outcome, owner);
        match outcome {
            CommandOutcome::Unanswered => {}
            // The refusing epoch is this node's own, of an earlier connection on these ports.
            CommandOutcome::Answered(a) if a.status == Status::Stale && a.owner == owner => {
                epoch.set(a.epoch.saturating_add(1));
            }
            CommandOutcome::Answered(_) => return,
        }
    }
}
