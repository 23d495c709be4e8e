//! The word of this node that a peer may take a flow, and the way for it to give the flow back
//! (`bpf/contain.h` checks it). There is none if the switch does not ask for passes.

use prism_proto::control::{FlowKey, Pass, Passage};
use prism_proto::node::{HandOff, Permit};

use crate::channel::Channel;
use crate::control::Control;
use crate::peers::Peers;
use crate::worker::Worker;

/// The word that the peer of `channel` may take a flow of this node by the command of `epoch`.
pub(crate) fn permit(
    worker: &Worker,
    peers: &Peers,
    channel: &Channel,
    flow: FlowKey,
    epoch: u64,
) -> Option<Permit> {
    let source = worker.config.address_for(flow.client.ip())?;
    let to = passage(peers, channel, flow, epoch)?;
    let key = &worker.control.as_ref()?.identity.switch.key;
    let pass = key.borrow().pass(&to)?;
    Some(Permit { pass, source })
}

/// The same of a hand-off that this node passes on, with the source's address.
pub(crate) fn permit_onward(
    worker: &Worker,
    peers: &Peers,
    channel: &Channel,
    hand_off: &HandOff,
) -> Option<Permit> {
    let permit = hand_off.permit?;
    let to = passage(peers, channel, flow_of(hand_off), hand_off.epoch)?;
    let key = &worker.control.as_ref()?.identity.switch.key;
    let pass = key.borrow().onward(permit.pass, &to)?;
    Some(Permit { pass, ..permit })
}

fn passage(peers: &Peers, channel: &Channel, flow: FlowKey, epoch: u64) -> Option<Passage> {
    let via = peers.address_for(&channel.peer, flow.client.ip());
    let via = via.filter(|_| channel.has_passes)?;
    Some(Passage { flow, epoch, via })
}

/// The word of this node that the source may take the flow back by its next command.
pub(crate) fn pass_back(control: &Control, hand_off: &HandOff) -> Option<Pass> {
    let to = Passage {
        flow: flow_of(hand_off),
        epoch: hand_off.epoch.saturating_add(1),
        via: hand_off.permit?.source,
    };
    control.identity.switch.key.borrow().pass(&to)
}

/// The flow of a hand-off.
pub(crate) fn flow_of(hand_off: &HandOff) -> FlowKey {
    FlowKey {
        client: hand_off.tcp.remote,
        vip: hand_off.tcp.service,
    }
}
