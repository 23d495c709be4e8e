//! Exporting connections: who may be exported, and how an export ends. The driver of
//! `prism_proto::export` is in `driver`.

mod driver;
mod socket;

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::export::Kept;
use prism_proto::facts::Form;
use prism_proto::node::{MAX_CONTEXT_BYTES, MAX_INPUT_BYTES, MAX_MOVES, Refusal};
use prism_proto::tcp_state::MAX_QUEUE_BYTES;
use prism_sys::tcp::info::send_queue_bytes;
use tokio::time::Instant;

use crate::connection::{Connection, present};
use crate::connection_state::ConnectionState;
use crate::control::Control;
use crate::cost::{Costs, metered};
use crate::peers::Peers;
use crate::settling::Settling;
use crate::trace::{HandOffStep, Part, Record};
use crate::worker::Worker;
use prism_common::unguessable;

use driver::{Driver, HandOffTarget};

/// The longest wait for the client's acknowledgements, and the interval of looks. A client that
/// stalls for longer moves with its queues full.
const MAX_DRAIN: Duration = Duration::from_millis(200);
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// An upper bound on the tickets of a TLS session. They may be under way to the client at its first
/// hand-off, because clients acknowledge them late (RFC 1122, section 4.2.3.2; 40 ms on Linux).
const TICKETS_BYTES: usize = 4096;

/// How an export ended.
#[derive(Debug)]
pub enum Exported {
    /// The peer has the connection.
    Moved,
    /// It is still here, and works as before.
    Kept {
        /// The connection.
        connection: Connection,
        /// Why it did not move.
        reason: Kept,
    },
    /// The connection has ended, by the kernel or by a new connection of the client on the
    /// same ports.
    Lost,
    /// The connection has left this node. Neither the switch nor the peer said whether the
    /// peer has it.
    Unknown,
}

/// Hands `connection` over to `peer`, with the bytes that were read and not consumed, and with a
/// context in the form that the peer reads.
pub(crate) async fn export(
    worker: &Rc<Worker>,
    peers: &Rc<Peers>,
    mut connection: Connection,
    peer: &str,
    context: impl Fn(Form) -> Vec<u8>,
) -> Exported {
    let counters = &worker.counters;
    let client = connection.client();
    counters.exports_started.add_one();
    let (exported, spent) = {
        let export = pin!(try_export(worker, peers, &mut connection, peer, &context));
        metered(Costs::is_sample(), export).await
    };
    let exported = match exported {
        Ok(gone) => gone,
        Err(reason) => {
            let of_reason = match reason {
                Kept::SwitchSilent => &counters.kept_switch_silent,
                Kept::SwitchRefused(_) => &counters.kept_switch_refused,
                Kept::SaveFailed => &counters.kept_save_failed,
                Kept::TargetRefused(_) => &counters.kept_target_refused,
                Kept::TargetSilent => &counters.kept_target_silent,
                Kept::MovedTooOften => &counters.kept_moved_too_often,
            };
            of_reason.add_one();
            Exported::Kept { connection, reason }
        }
    };
    let count = match exported {
        Exported::Moved => &counters.exports_moved,
        Exported::Kept { .. } => &counters.exports_kept,
        Exported::Lost => &counters.exports_lost,
        Exported::Unknown => &counters.exports_unknown,
    };
    count.add_one();
    if matches!(exported, Exported::Moved) {
        worker.process.moves.add(client, peer);
    }
    if let (Exported::Moved, Some(spent)) = (&exported, spent) {
        worker.process.costs.took_here(spent);
    }
    exported
}

/// [`export`], but the error is the reason if the connection stays. The result is never
/// [`Exported::Kept`].
async fn try_export(
    worker: &Rc<Worker>,
    peers: &Rc<Peers>,
    connection: &mut Connection,
    peer: &str,
    context: &dyn Fn(Form) -> Vec<u8>,
) -> Result<Exported, Kept> {
    let mut record = record(connection);
    let control = reachable_switch(worker)?;
    let client = connection.client();
    if worker.process.is_leaving(peer) || peers.address_for(peer, client.ip()).is_none() {
        return Err(Kept::TargetRefused(Refusal::Unwilling));
    }
    let settling = connection.state.settling.as_mut();
    if settling.is_some_and(Settling::is_under_way) {
        return Err(Kept::SwitchSilent);
    }
    let state = &connection.state;
    if state.moves >= MAX_MOVES {
        tracing::warn!(client = %state.flow.client, to = peer, moves = state.moves,
            "a connection moves without an answer to its client: nodes disagree who is to \
             answer");
        return Err(Kept::MovedTooOften);
    }
    first_epoch(state, control)?;
    if !fits(state) {
        return Err(Kept::SaveFailed);
    }
    let channel = match peers.channel(peer).await {
        Ok(channel) if channel.is_stuck() => return Err(Kept::TargetSilent),
        Ok(channel) => channel,
        Err(error) => {
            tracing::info!(%error, "no hand-off: the target is out of reach");
            return Err(Kept::TargetSilent);
        }
    };
    let context = context(channel.form);
    if context.len() > MAX_CONTEXT_BYTES {
        return Err(Kept::SaveFailed);
    }
    let may_be_under_way_bytes = if connection.state.confirmed {
        0
    } else {
        TICKETS_BYTES
    };
    drain(connection, may_be_under_way_bytes).await?;
    record.mark(HandOffStep::Start);
    let target = HandOffTarget { channel, peers };
    hand_over(worker, connection, Some(target), &context, record).await
}

/// Gives the connection another socket on this host, by a hand-off that no peer is offered. It
/// takes two phases, because a frozen socket would be thawed. The intended result is a refusal as
/// the reason to stay: the socket is new. With any other reason it is the old one.
pub(crate) async fn renew(connection: &mut Connection) -> Result<Exported, Kept> {
    let worker = connection.state.worker.clone();
    reachable_switch(&worker)?;
    drain(connection, 0).await?;
    let record = record(connection);
    hand_over(&worker, connection, None, &[], record).await
}

async fn hand_over(
    worker: &Rc<Worker>,
    connection: &mut Connection,
    target: Option<HandOffTarget<'_>>,
    context: &[u8],
    record: Record,
) -> Result<Exported, Kept> {
    let control = worker.control.as_ref().ok_or(Kept::SwitchSilent)?;
    connection.state.end_claim();
    let epoch = first_epoch(&connection.state, control)?;
    let driver = Driver {
        worker,
        control,
        connection,
        target,
        context,
        tls: None,
        kernel: None,
        pass: None,
        record,
    };
    driver.run(epoch).await
}

fn record(connection: &Connection) -> Record {
    Record::new(
        Part::Source,
        unguessable::number(),
        connection.client().port(),
    )
}

fn reachable_switch(worker: &Worker) -> Result<&Rc<Control>, Kept> {
    let control = worker.control.as_ref().filter(|c| c.decides());
    control.ok_or(Kept::SwitchSilent)
}

/// Waits, for a bounded time, until all but `left_bytes` are acknowledged (docs/design/handoff.md).
/// It fails if the kernel still has TLS records that TCP has not: those would be lost.
async fn drain(connection: &Connection, left_bytes: usize) -> Result<(), Kept> {
    let Ok(socket) = present(&connection.stream) else {
        return Ok(());
    };
    let mut end = None;
    loop {
        let is_settled = connection.is_settled().unwrap_or(false);
        let is_drained = !send_queue_bytes(socket).is_ok_and(|bytes| bytes > left_bytes);
        if is_settled && is_drained {
            return Ok(());
        }
        let now = Instant::now();
        if now >= *end.get_or_insert(now + MAX_DRAIN) {
            return is_settled.then_some(()).ok_or(Kept::SaveFailed);
        }
        tokio::time::sleep(DRAIN_STEP).await;
    }
}

/// Whether the bytes that the connection holds are within the limits of a hand-off.
fn fits(state: &ConnectionState) -> bool {
    let sealed_bytes = state
        .tls
        .as_ref()
        .map_or(0, |tls| tls.sealed.unread().len());
    state.input.unread().len() <= MAX_INPUT_BYTES
        && state.output.len() <= MAX_QUEUE_BYTES
        && sealed_bytes <= MAX_INPUT_BYTES
}

/// The epoch that a hand-off begins with. Until the switch has confirmed a command for this
/// connection, it is the switch's clock, which outranks a predecessor's flow.
fn first_epoch(state: &ConnectionState, control: &Control) -> Result<u64, Kept> {
    match (state.confirmed, state.epoch, control.switch_clock_ns()) {
        (true, Some(epoch), _) => Ok(epoch),
        (_, epoch, Some(clock)) => Ok(clock.max(epoch.unwrap_or(0))),
        (_, _, None) => Err(Kept::SwitchSilent),
    }
}
