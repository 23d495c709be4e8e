//! Connections that this node passes on to another one, without restoring them.

use std::rc::Rc;
use std::time::Duration;

use prism_proto::export::VERDICT_DEADLINE_NS;
use prism_proto::node::{Frame, MAX_MOVES};

use super::name_of;
use crate::channel::{Arrived, Channel};
use crate::peers::Peers;
use crate::permits::permit_onward;
use crate::trace::{Ended, HandOffStep, Part, Record};
use crate::worker::Worker;

/// The channel to the node that a connection is to be passed on to. There is one if this
/// node has accepted the connection, the application names another node for it, and that
/// node is in reach.
pub(super) async fn onward(
    worker: &Worker,
    peers: &Rc<Peers>,
    arrived: &Arrived,
) -> Option<Rc<Channel>> {
    let transit = worker.config.transit.as_ref()?;
    let hand_off = &arrived.hand_off;
    // A connection that has moved too often stays here, and its request is relayed.
    if hand_off.origin != worker.config.name || hand_off.moves >= MAX_MOVES {
        return None;
    }
    // With TLS the kernel has received records, which the application cannot read.
    let received = match hand_off.tls {
        Some(_) => &[],
        None => hand_off.tcp.received.as_slice(),
    };
    let known = [hand_off.input.as_slice(), received].concat();
    let peer = transit(&hand_off.context, &known).filter(|peer| *peer != arrived.channel.peer)?;
    let channel = peers.channel(&peer).await.ok()?;
    (!channel.is_stuck()).then_some(channel)
}

/// Passes the connection on with one more move. The verdict comes back the same way, and
/// the source keeps the connection until then.
pub(super) async fn pass_on(
    worker: &Worker,
    peers: &Peers,
    arrived: Arrived,
    channel: Rc<Channel>,
) {
    let mut hand_off = arrived.hand_off;
    hand_off.moves = hand_off.moves.saturating_add(1);
    hand_off.permit = permit_onward(worker, peers, &channel, &hand_off);
    let id = hand_off.id;
    let port = hand_off.tcp.remote.port();
    let mut record = Record::new(Part::Transit, id, port);
    record.mark_at(HandOffStep::TransitReceived, arrived.at_ns);
    record.mark(HandOffStep::TransitDecided);
    let trace = &worker.process.trace;
    let context = trace.context_for_observer(&hand_off.context);
    // No source sends two hand-offs with one number. The verdict of the first one counts.
    if channel.awaits(id) {
        return arrived.channel.send_verdict(&Frame::Unknown { id });
    }
    let awaited = channel.await_verdict(id);
    let sent = channel.send(&Frame::HandOff(hand_off));
    worker.counters.passed_on.add_one();
    let deadline = Duration::from_nanos(VERDICT_DEADLINE_NS);
    let verdict = async {
        sent.ok()?;
        awaited.wait().await
    };
    let verdict = tokio::time::timeout(deadline, verdict).await;
    let verdict = verdict.ok().flatten().unwrap_or(Frame::Unknown { id });
    trace.push(&Ended {
        record: &record,
        peer: &arrived.channel.peer,
        context: &context,
        outcome: name_of(&verdict),
    });
    arrived.channel.send_verdict(&verdict);
}
