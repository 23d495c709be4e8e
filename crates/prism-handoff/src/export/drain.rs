//! Before a hand-off: until what was sent has arrived.

use std::os::fd::AsFd;
use std::time::Duration;

use prism_sys::tcp::info::send_queue_bytes;
use tokio::time::Instant;

use crate::connection::{Connection, ConnectionState};

/// How long a hand-off waits for the client's acknowledgements, and how often it
/// looks. A client that stalls for longer moves with its queues full.
const MAX_DRAIN: Duration = Duration::from_millis(200);
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// More than the tickets of a TLS session.
const TICKETS_BYTES: usize = 4096;

/// What may be on its way to the client when it is handed off. On its first way these
/// are the tickets that it was sent behind its handshake: its first request is under
/// way by then, and the acknowledgement comes late (RFC 1122, section 4.2.3.2; 40 ms
/// with Linux). They move with the connection, and the target asks the client what it
/// has.
pub(super) fn may_be_under_way_bytes(state: &ConnectionState) -> usize {
    match state.confirmed {
        true => 0,
        false => TICKETS_BYTES,
    }
}

/// Waits, for a bounded time, until the client has acknowledged all that was sent
/// to it but `left_bytes`. What the switch drops while it blocks the flow costs the
/// target a retransmission timeout of seconds, as it knows no round-trip time. A client
/// that sends its requests one by one has acknowledged everything by now.
///
/// False where the kernel still keeps TLS records back from TCP: those would be lost.
pub(super) async fn drain(connection: &Connection, left_bytes: usize) -> bool {
    let Some(stream) = &connection.stream else {
        return true;
    };
    let mut end = None;
    loop {
        let is_settled = connection.is_settled().unwrap_or(false);
        let is_drained = !send_queue_bytes(stream.as_fd()).is_ok_and(|bytes| bytes > left_bytes);
        if is_settled && is_drained {
            return true;
        }
        let now = Instant::now();
        if now >= *end.get_or_insert(now + MAX_DRAIN) {
            return is_settled;
        }
        tokio::time::sleep(DRAIN_STEP).await;
    }
}
