//! The socket of a hand-off: built, silent while the switch has not decided, and live.

use std::net::SocketAddr;
use std::rc::Rc;

use prism_proto::node::{HandOff, Refusal};
use prism_sys::tcp::{RestoreError, Restored, restore_into};

use crate::blanks::Blanks;
use crate::buffers::Input;
use crate::connection::Connection;
use crate::connection_state::ConnectionState;
use crate::first_flight::FirstFlight;
use crate::records::Records;
use crate::worker::Worker;

/// Further ports that are tried if one is taken for the same client.
const MAX_PORT_TRIES: usize = 8;

/// A socket that was built from a hand-off, and its local address.
pub(super) struct Built {
    pub(super) restored: Restored,
    pub(super) local: SocketAddr,
}

/// Silences the socket while the switch does not answer. This host's kernel must not
/// acknowledge bytes that the source, if it goes on, does not have. False: it may have.
pub(super) fn wait_silently(worker: &Worker, socket: Option<&mut Built>) -> bool {
    let (Some(built), Some(freezer)) = (socket, worker.freezer()) else {
        return false;
    };
    let silenced = built.restored.silence(freezer).inspect_err(|error| {
        tracing::debug!(%error, "cannot silence a socket that waits for the switch");
    });
    silenced.unwrap_or(false)
}

/// Builds the socket of a hand-off.
pub(super) fn restore_socket(
    worker: &Worker,
    blanks: &Blanks,
    hand_off: &HandOff,
    is_mute: bool,
) -> Result<Built, RestoreError> {
    let tcp = &hand_off.tcp;
    let mut tries_left = if worker.config.has_service_address() {
        0
    } else {
        MAX_PORT_TRIES
    };
    loop {
        let blank = blanks.take(&worker.config, tcp.service, tcp.behaviour.mss_clamp_bytes)?;
        let blank = match worker.freezer() {
            Some(freezer) if is_mute => blank.mute(freezer)?,
            _ => blank,
        };
        let local = blank.bound();
        match restore_into(blank, tcp, worker.process.initial_window()) {
            Err(RestoreError::Taken { .. }) if tries_left > 0 => tries_left -= 1,
            done => {
                let restored = done?;
                return Ok(Built { restored, local });
            }
        }
    }
}

/// Makes the socket live, and gives it the state that came with the hand-off.
pub(super) fn go_live(
    worker: &Rc<Worker>,
    socket: Built,
    hand_off: HandOff,
    records: Option<Records>,
) -> Result<Connection, Refusal> {
    // Not before the switch has decided: a false hand-off takes no place.
    if !worker.has_room() && worker.process.guests.longest_rest_leaves() {
        worker.counters.guests_evicted.add_one();
    }
    let Built { restored, local } = socket;
    let tcp = hand_off.tcp;
    let mut state = ConnectionState::new(worker, tcp.remote, tcp.service, local);
    state.tls = records;
    state.input = Input::new(hand_off.input);
    state.output = hand_off.output;
    state.confirmed = true;
    state.behaviour = Some(tcp.behaviour);
    state.epoch = Some(hand_off.epoch);
    state.moves = hand_off.moves;
    state.origin = hand_off.origin;
    state.context = hand_off.context;
    state.proxied = hand_off.proxied;
    let stream = state.go_live(restored).map_err(|error| {
        tracing::error!(%error, "a restored socket does not go live; its hand-off is refused");
        Refusal::RestoreFailed
    })?;
    // The switch may have dropped an acknowledgement or a window while it blocked the flow,
    // and the client repeats neither.
    if !tcp.sent.is_empty() || !tcp.unsent.is_empty() {
        stream.ask_for_window();
    }
    if let Some(closed) = &worker.closed_sockets {
        closed.unwatch(local, state.flow);
    }
    let mut connection = Connection::new(stream, state);
    // A renewed socket beside the service's listener would miss clients.
    if !worker.config.listen {
        connection.first_flight = FirstFlight::new(&worker.process, tcp.srtt_us);
    }
    Ok(connection)
}
