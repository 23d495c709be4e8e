//! Whether this node takes a connection that is offered to it.

use std::rc::Rc;

use prism_proto::control::{FlowKey, FlowState, Ops, Owner, Status};
use prism_proto::export::CLAIM_DEADLINE_NS;
use prism_proto::fence::Fence;
use prism_proto::node::{HandOff, Refusal};
use prism_proto::steering::{Command, CommandOutcome};

use crate::control::Control;
use crate::worker::Worker;

/// The way to the switch, if this node can take the connection.
pub(super) fn check_offer<'w>(
    worker: &'w Worker,
    hand_off: &HandOff,
) -> Result<&'w Rc<Control>, Refusal> {
    let control = worker.control.as_ref().ok_or(Refusal::Unwilling)?;
    let client = hand_off.tcp.remote.ip();
    if !worker.config.is_service(hand_off.tcp.service)
        || worker.config.address_for(client).is_none()
    {
        return Err(Refusal::Unwilling);
    }
    // Nothing else would keep the socket mute.
    if worker.config.fence == Fence::Host && worker.freezer().is_none() {
        return Err(Refusal::Unwilling);
    }
    if !worker.has_room() && !worker.process.guests.has_resting() {
        return Err(Refusal::Busy);
    }
    if !control.decides() {
        return Err(Refusal::SwitchFailed);
    }
    Ok(control)
}

/// Checks that the connection can be at another node, if this one holds its flow: its sockets make
/// room for what comes, and a switch whose key all nodes share lets it replace its own connection.
/// The peer that has got the connection may return it.
pub(super) async fn check_absence(
    worker: &Worker,
    control: &Control,
    flow: &FlowKey,
    epoch: u64,
    peer: &str,
) -> Result<(), Refusal> {
    let process = &worker.process;
    let is_here = process.held_flows.contains(flow)
        || (worker.config.has_service_address() && process.given_up.has(flow));
    if !is_here || process.frozen.is_with(peer, flow, epoch) {
        return Ok(());
    }
    let query = Command {
        ops: Ops::QUERY,
        epoch: 0,
        flow: *flow,
        owner: Owner::NONE,
    };
    let outcome = control.call(None, query, CLAIM_DEADLINE_NS).await;
    let CommandOutcome::Answered(answer) = outcome else {
        return Err(Refusal::SwitchFailed);
    };
    let own = worker.config.address_for(flow.client.ip());
    let is_own = answer.state != FlowState::Absent && Some(answer.owner.via) == own;
    match answer.status {
        Status::Ok if is_own => Err(Refusal::Stale),
        Status::Ok => Ok(()),
        _ => Err(Refusal::SwitchFailed),
    }
}

/// Closes sockets of this connection that it left behind here. With the service's own address, an
/// old one would be in the way of the new one.
pub(super) fn make_room(worker: &Worker, flow: &FlowKey, epoch: u64) {
    let needs_room = worker.config.has_service_address();
    worker.process.frozen.on_arrival(flow, epoch, needs_room);
    if needs_room {
        worker.process.given_up.make_room(flow, epoch);
    }
}
