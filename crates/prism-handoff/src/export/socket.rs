//! The place of a connection's TCP state during a hand-off, and the ways out of it: back to a
//! working socket, or to a silent end.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use prism_proto::TcpState;
use prism_proto::export::Event;
use prism_sys::tcp::info::send_queue_bytes;
use prism_sys::tcp::{Paused, RestoreError, Restored, TcpInfo, TcpStateName, restore};

use crate::connection_state::ConnectionState;
use crate::frozen::Frozen;
use crate::stream::Stream;

/// The place of the connection's TCP state.
pub(super) enum Socket {
    /// In a working socket.
    Live(Stream),
    /// In a paused socket, and saved.
    Paused(Paused<Stream>, Box<TcpState>),
    /// In a frozen socket, and saved; the state is with the peer.
    Frozen(Frozen),
    /// In a frozen socket that only this hand-off can reach.
    Silent(Paused<Stream>),
    /// Saved only.
    Saved(Box<TcpState>),
    /// In a rebuilt socket, which is silent.
    Rebuilt(Restored),
    /// Nowhere.
    Gone,
}

pub(super) fn rebuild(socket: Socket, local: SocketAddr) -> (Socket, Event) {
    let state = match socket {
        Socket::Saved(state) => state,
        Socket::Frozen(frozen) => {
            return match frozen.take() {
                Some(paused) => (Socket::Silent(paused), Event::Rebuilt),
                None => (Socket::Gone, Event::Returned),
            };
        }
        Socket::Silent(paused) => return (Socket::Silent(paused), Event::Rebuilt),
        _ => return (Socket::Gone, Event::RebuildFailed),
    };
    match restore(&state, local) {
        Ok(restored) => return (Socket::Rebuilt(restored), Event::Rebuilt),
        // The target took the connection without a verdict, and it has come back since. Or it is
        // over, and the client's next connection is here.
        Err(RestoreError::Taken { .. }) => {
            tracing::debug!(client = %state.remote, "a connection is here again");
            return (Socket::Gone, Event::Returned);
        }
        Err(error) => {
            tracing::error!(%error, client = %state.remote,
                "cannot rebuild a socket after a failed hand-off; its connection is lost");
        }
    }
    (Socket::Gone, Event::RebuildFailed)
}

/// Makes a frozen socket live again. The client repeats its data, but not its acknowledgements, so
/// it is asked for one.
pub(super) fn thaw(paused: Paused<Stream>) -> Option<Stream> {
    let resumed = paused.resume().inspect_err(|error| {
        tracing::error!(%error, "cannot thaw a frozen socket; its connection is lost");
    });
    let stream = resumed.ok()?;
    if send_queue_bytes(stream.as_fd()).is_ok_and(|bytes| bytes > 0) {
        stream.ask_for_window();
    }
    Some(stream)
}

/// Makes a rebuilt socket live.
pub(super) fn go_live(restored: Restored, state: &mut ConnectionState) -> Option<Stream> {
    let live = state.go_live(restored).inspect_err(|error| {
        tracing::error!(%error, "a rebuilt socket does not go live; its connection is lost");
    });
    let stream = live.ok()?;
    stream.ask_for_window();
    Some(stream)
}

pub(super) fn is_alive(socket: &Socket) -> bool {
    let Socket::Live(stream) = socket else {
        return false;
    };
    TcpInfo::read(stream.as_fd()).is_ok_and(|info| {
        matches!(
            info.state,
            TcpStateName::Established | TcpStateName::CloseWait
        )
    })
}

/// Ends a socket without a packet, because the flow is another node's.
pub(super) fn end_silently(socket: Socket) {
    let paused = match socket {
        Socket::Live(stream) => Paused::pause(stream).ok(),
        Socket::Paused(paused, _) | Socket::Silent(paused) => Some(paused),
        Socket::Frozen(frozen) => return drop(frozen.left_behind()),
        // Dropping a restored socket is silent.
        Socket::Rebuilt(_) | Socket::Saved(_) | Socket::Gone => None,
    };
    if let Some(paused) = paused {
        paused.close_silently();
    }
}
