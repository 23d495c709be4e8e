//! Sending again what a restored socket has sent.
//!
//! A restored socket has measured no round trip. If nothing of what it sends first arrives, its
//! kernel sends again after 1 s and 3 s more, however short the way is, and no option of a socket
//! changes that. The program knows the round-trip time of the source, and can build the socket
//! anew under the same descriptor. The unacknowledged bytes are then sent as new ones.
//!
//! They are sent all at once, like the first time. The client may have some of them, and a kernel
//! ignores acknowledgements of bytes that it has not sent (RFC 9293, section 3.10.7.4).
//!
//! While the connection is in no socket, its segments would be answered with a reset. A listener
//! at its local address, which drops all of its segments, is bound before and closed after it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::freeze::{self, Freezer};
use super::initial_window::InitialWindow;
use super::options::{self, Queue};
use super::pause::{PauseFault, Paused};
use super::restore::{MAX_WINDOW_SEGMENTS, NEW_WINDOW_SEGMENTS, RestoreError, Unconnected};
use super::save::SaveError;
use super::send_queue::queue_all;
use crate::error::failed;

/// The reason why a socket was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// The connection cannot be paused. It is as it was.
    #[error(transparent)]
    Pause(#[from] PauseFault),
    /// The connection cannot be saved. It is as it was.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// the way to it cannot be closed. It is as it was.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The local address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The connection is lost, and the client has not been told.
    #[error("the connection is lost: {0}")]
    Lost(#[from] RestoreError),
}

/// Sends all unacknowledged bytes of a restored connection again. The descriptor, its options and
/// what the application has written stay. No duplicate of the descriptor may be in use.
///
/// Returns false if the socket has input, the client has closed, or more than
/// [`MAX_WINDOW_SEGMENTS`] are under way: it then stays as it was.
///
/// # Errors
/// [`RenewError`]. The connection has ended only with [`RenewError::Lost`].
pub fn renew(
    fd: BorrowedFd<'_>,
    freezer: &Freezer,
    window: &InitialWindow,
) -> Result<bool, RenewError> {
    let local = local_address(fd)?;
    let paused = Paused::freeze(fd, freezer).map_err(|error| error.reason)?;
    let prepared = paused.save(local).map_err(RenewError::from);
    let segments = u16::try_from(paused.info().unacked_segments).unwrap_or(u16::MAX);
    let prepared = prepared.and_then(|state| {
        let has_input = !state.received.is_empty() || state.peer_closed;
        let may_renew = !has_input && segments <= MAX_WINDOW_SEGMENTS;
        let guard = may_renew.then(|| listen_silently(local, freezer));
        Ok((state, guard.transpose()?))
    });
    let (state, guard) = match prepared {
        Ok((state, Some(guard))) => (state, guard),
        other => {
            let resumed = paused.resume();
            resumed.map_err(|error| lost_by("TCP_REPAIR")(error.0))?;
            return other.map(|_| false);
        }
    };
    let fd = paused.into_fd();
    options::disconnect_silently(fd).map_err(lost_by("connect"))?;
    // The end of the old connection is no error of the new one.
    SockRef::from(&fd)
        .take_error()
        .map_err(lost_by("SO_ERROR"))?;
    let prepared = window.prepare(fd, segments.max(NEW_WINDOW_SEGMENTS));
    prepared.map_err(lost_by("SO_PRIORITY"))?;
    options::select_queue(fd, Queue::Send).map_err(lost_by("TCP_REPAIR_QUEUE"))?;
    let blank = Unconnected {
        socket: SockRef::from(&fd),
        bound: local,
        // `tcp_disconnect` has forgotten it.
        mss_clamp_bytes: 0,
    };
    blank.connect(&state)?;
    options::repair_off_silently(fd).map_err(lost_by("TCP_REPAIR"))?;
    freeze::give_voice(fd).map_err(lost_by("SO_DETACH_FILTER"))?;
    drop(guard);
    queue_all(fd, &[state.sent, state.unsent].concat()).map_err(RestoreError::from)?;
    Ok(true)
}

fn lost_by<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> RenewError {
    move |error| RestoreError::from(failed(call)(error.into())).into()
}

fn local_address(fd: BorrowedFd<'_>) -> Result<SocketAddr, RenewError> {
    let address = SockRef::from(&fd).local_addr();
    let address = address.map_err(|error| PauseFault::from(failed("getsockname")(error)))?;
    Ok(address.as_socket().ok_or(SaveError::NotIp)?)
}

/// A listener that drops every segment, beside all sockets that are bound to `address`.
fn listen_silently(address: SocketAddr, freezer: &Freezer) -> Result<Socket, RenewError> {
    let listen = || {
        let kind = Type::STREAM.cloexec();
        let socket = Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        options::repair_on(socket.as_fd())?;
        freezer.silence(socket.as_fd())?;
        socket.bind(&address.into())?;
        socket.listen(1)?;
        Ok(socket)
    };
    listen().map_err(|source| RenewError::Listen { address, source })
}
