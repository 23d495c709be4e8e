//! Exporting connections: who may be exported, and how an export ends. The driver of
//! `prism_proto::export` is in `driver`.

mod drain;
mod driver;
mod renew;
mod settle;
mod socket;

use std::pin::pin;

use prism_proto::export::Kept;
use prism_proto::node::{MAX_CONTEXT_BYTES, MAX_INPUT_BYTES, MAX_MOVES, Refusal};
use prism_proto::tcp_state::MAX_QUEUE_BYTES;

use crate::connection::{Connection, ConnectionState};
use crate::control::Control;
use crate::cost::{Costs, metered};
use crate::endpoint::Handle;
use crate::trace::{Part, Record, Step};

use drain::{drain, may_be_under_way_bytes};
use driver::Driver;
pub(crate) use renew::renew;

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

impl Handle {
    /// Hands `connection` over to `peer`, with the bytes that were read and not consumed,
    /// and with `context` (at most 4 KiB) for the peer's application.
    ///
    /// It ends within some 15 s, the sum of the deadlines of `prism_proto::export` and of a dial.
    /// Run it to its end: if the future is dropped, the connection is closed.
    pub async fn export(&self, connection: Connection, peer: &str, context: &[u8]) -> Exported {
        let counters = self.shared.counters.clone();
        let export = pin!(self.try_export(connection, peer, context));
        let (exported, spent) = metered(Costs::is_sample(), export).await;
        match &exported {
            Exported::Moved => {
                counters.exports_moved.add_one();
                if let Some(spent) = spent {
                    self.shared.process.costs.took_here(spent);
                }
            }
            Exported::Lost => counters.exports_lost.add_one(),
            Exported::Unknown => counters.exports_unknown.add_one(),
            Exported::Kept { reason, .. } => {
                counters.exports_kept.add_one();
                let count = match reason {
                    Kept::SwitchSilent => &counters.kept_switch_silent,
                    Kept::SwitchRefused(_) => &counters.kept_switch_refused,
                    Kept::SaveFailed => &counters.kept_save_failed,
                    Kept::TargetRefused(_) => &counters.kept_target_refused,
                    Kept::TargetSilent => &counters.kept_target_silent,
                    Kept::MovedTooOften => &counters.kept_moved_too_often,
                };
                count.add_one();
            }
        }
        exported
    }

    async fn try_export(&self, mut connection: Connection, peer: &str, context: &[u8]) -> Exported {
        let shared = &self.shared;
        shared.counters.exports_started.add_one();
        let mut record = Record::new(Part::Source, fastrand::u64(..), connection.client().port());
        let Some(control) = shared.control.as_ref().filter(|c| c.is_reachable()) else {
            return kept(connection, Kept::SwitchSilent);
        };
        if self.is_leaving(peer) {
            return kept(connection, Kept::TargetRefused(Refusal::Unwilling));
        }
        let state = &connection.state;
        if state.moves >= MAX_MOVES {
            tracing::warn!(client = %state.flow.client, to = peer, moves = state.moves,
                "a connection moves without an answer to its client: nodes disagree who is to \
                 answer");
            return kept(connection, Kept::MovedTooOften);
        }
        if epoch_of(state, control).is_none() {
            return kept(connection, Kept::SwitchSilent);
        }
        if context.len() > MAX_CONTEXT_BYTES || !fits(state) {
            return kept(connection, Kept::SaveFailed);
        }
        let channel = match shared.peers.channel(peer).await {
            Ok(channel) if channel.is_stuck() => return kept(connection, Kept::TargetSilent),
            Ok(channel) => channel,
            Err(error) => {
                tracing::info!(%error, "no hand-off: the target is out of reach");
                return kept(connection, Kept::TargetSilent);
            }
        };
        if !drain(&connection, may_be_under_way_bytes(state)).await {
            return kept(connection, Kept::SaveFailed);
        }
        connection.state.end_claim();
        let Some(epoch) = epoch_of(&connection.state, control) else {
            return kept(connection, Kept::SwitchSilent);
        };
        record.mark(Step::Start);
        let driver = Driver {
            shared,
            control,
            channel: Some(channel),
            context,
            tls: None,
            kernel: None,
            record,
        };
        driver.run(connection, epoch).await
    }
}

/// Whether the bytes that the connection holds are within the limits of a hand-off.
fn fits(state: &ConnectionState) -> bool {
    let sealed_bytes = state.tls.as_ref().map_or(0, |tls| tls.sealed_bytes());
    state.input.unread().len() <= MAX_INPUT_BYTES
        && state.output.len() <= MAX_QUEUE_BYTES
        && sealed_bytes <= MAX_INPUT_BYTES
}

/// The epoch that a hand-off begins with. Until the switch has confirmed a command for this
/// connection, it is the switch's clock, which outranks a predecessor's flow. `None` if that
/// clock is not known.
fn epoch_of(state: &ConnectionState, control: &Control) -> Option<u64> {
    match (state.confirmed, state.epoch, control.switch_clock_ns()) {
        (true, Some(epoch), _) => Some(epoch),
        (_, epoch, Some(clock)) => Some(clock.max(epoch.unwrap_or(0))),
        (_, _, None) => None,
    }
}

fn kept(connection: Connection, reason: Kept) -> Exported {
    Exported::Kept { connection, reason }
}
