//! Waits before a hand-off until the client has acknowledged the bytes that were sent.

use std::os::fd::AsFd;
use std::time::Duration;

use prism_sys::tcp::info::send_queue_bytes;
use tokio::time::Instant;

use crate::connection::{Connection, ConnectionState};

/// The longest wait for the client's acknowledgements, and the interval of looks. A client that
/// stalls for longer moves with its queues full.
const MAX_DRAIN: Duration = Duration::from_millis(200);
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// An upper bound on the tickets of a TLS session.
const TICKETS_BYTES: usize = 4096;

/// The number of bytes that may be under way to the client at its hand-off. At the first hand-off
/// these are the tickets behind the handshake. The client acknowledges them late (RFC 1122, section
/// 4.2.3.2; 40 ms on Linux). They move with the connection, and the target asks the client for an
/// acknowledgement.
pub(super) fn may_be_under_way_bytes(state: &ConnectionState) -> usize {
    match state.confirmed {
        true => 0,
        false => TICKETS_BYTES,
    }
}

/// Waits, for a bounded time, until all but `left_bytes` are acknowledged. If the switch drops a
/// segment of a blocked flow, the target repeats it only after 3 s, because it knows no round-trip
/// time. A client that sends its requests one by one has acknowledged everything by now.
///
/// False if the kernel still has TLS records that TCP has not: those would be lost.
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
