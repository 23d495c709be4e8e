//! Building a socket from a saved state.
//!
//! Where this differs from CRIU's `soccr`, and why:
//!
//! - *Received bytes* do not go back into the kernel. The receive sequence is set behind them,
//!   and the application gets them with the socket ([`Live::input`]). They are not buffered
//!   twice, and cannot fail for want of memory.
//! - *Never-sent bytes* do not either. The application writes them first ([`Live::output`]),
//!   under its own flow control.
//! - *Half-closed*: the peer's FIN is not injected again. Its sequence number is counted as
//!   received. `shutdown(SHUT_RD)`, which sends nothing, makes the socket behave as after a
//!   FIN: reads end, epoll reports `EPOLLRDHUP`, and a further save finds it. The kernel's
//!   state is ESTABLISHED, not CLOSE_WAIT. Closing therefore waits in FIN_WAIT2 for a FIN that
//!   has come before; that wait is cut short ([`FIN_WAIT2_S`]).
//!
//! Not restored: the slow start threshold, the out-of-order queue, ECN (packets leave without
//! ECT), and the peer's last timestamp, which the first arriving segment brings. Nor is the
//! round-trip time. **Until the first byte sent by the new socket is acknowledged its
//! retransmission timeout is 3 s** (`tcp_init_metrics`; less if the kernel remembers the client
//! from an earlier connection), and its tail-loss probe comes after 1 s. Bytes that the source
//! sent and the network dropped are late by that much. A source should therefore let its
//! never-sent bytes drain before it blocks the flow. A target that does not want to wait
//! renews the socket ([`super::renew`]).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use prism_proto::{Behaviour, MAX_QUEUE_BYTES, TcpState};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::freeze::{self, Freezer};
use super::initial_window::InitialWindow;
use super::options::{self, MSS_RANGE_BYTES, Queue};
use super::pause::ResumeError;
use super::send_queue::{fill_send_queue, unlock_buffers};
use super::silent::Silent;
use crate::CallError;
use crate::error::failed;
use crate::sockopt;

/// The `TCP_LINGER2` of a restored half-closed connection, in seconds. The kernel raises it to 3.5
/// retransmission timeouts, so that a lost FIN is repeated.
const FIN_WAIT2_S: i32 = 1;

/// The largest window shift (RFC 7323, section 2.3).
const MAX_WINDOW_SHIFT: u8 = 14;

/// Receive windows up to this need no larger buffer: half of the default of
/// `tcp_rmem[1]`, 128 KiB.
const DEFAULT_WINDOW_BYTES: u32 = 64 << 10;

/// The congestion window that a new connection has (RFC 6928).
pub(super) const NEW_WINDOW_SEGMENTS: u16 = 10;
/// The largest congestion window that is taken over, in segments: 2.8 MiB on Ethernet. The target's
/// path has not carried yet what the source's has.
pub const MAX_WINDOW_SEGMENTS: u16 = 2048;

/// A connection that exists in this host's kernel, in repair mode. It has sent nothing, and takes
/// segments that reach it.
///
/// Dropping it closes it silently: the source still has the connection.
#[must_use = "dropping it abandons the hand-off"]
#[derive(Debug)]
pub struct Restored {
    connection: Live<Silent>,
    /// The next sequence number of the client, as it was told.
    receive_seq: u32,
    /// It is silent, or mute.
    has_mark: bool,
}

/// A restored connection that is live, with the bytes that did not go into the kernel.
#[must_use = "dropping it closes the connection"]
pub struct Live<S = OwnedFd> {
    /// The socket: non-blocking, close-on-exec.
    pub fd: S,
    /// Bytes from the client that come before anything read from `fd`.
    pub input: Vec<u8>,
    /// Bytes to the client that must be written to `fd` before any other.
    pub output: Vec<u8>,
    /// The client has closed its direction: `input` is all there is. Reads
    /// from `fd` say so too.
    pub peer_closed: bool,
}

// Written by hand, so that no log has clients' data.
impl<S: fmt::Debug> fmt::Debug for Live<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("fd", &self.fd)
            .field("input_bytes", &self.input.len())
            .field("output_bytes", &self.output.len())
            .field("peer_closed", &self.peer_closed)
            .finish()
    }
}

/// The reason why no socket was built. Nothing is left behind, and nothing was sent.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum RestoreError {
    #[error("{bind} to {remote} is taken on this host; try another port")]
    Taken {
        /// The local address asked for.
        bind: SocketAddr,
        /// The client.
        remote: SocketAddr,
    },
    #[error("{0} is not an address of this host")]
    NotLocal(SocketAddr),
    #[error("the saved state contradicts itself: {0}")]
    BadState(&'static str),
    #[error(transparent)]
    Kernel(#[from] CallError),
}

/// Builds a socket for the connection, bound to `bind`, still in repair mode.
///
/// `bind` is the service address where packets arrive unchanged, or any address
/// and port of this host where the switch rewrites them. Its port may be in
/// use: only the pair with the client's address and port must be free. A
/// predecessor in TIME_WAIT gives way if it used timestamps (`tcp_twsk_unique`),
/// and counts as taken if not.
///
/// # Errors
/// [`RestoreError`]. [`RestoreError::Taken`] is worth another attempt with
/// another port.
pub fn restore(state: &TcpState, bind: SocketAddr) -> Result<Restored, RestoreError> {
    restore_into(
        Blank::new(bind, state.behaviour.mss_clamp_bytes)?,
        state,
        None,
    )
}

/// A socket that is prepared for a later connection. That is a third of the work of [`restore`],
/// done before a client waits for it.
#[derive(Debug)]
pub struct Blank {
    socket: Socket,
    bound: SocketAddr,
    mss_clamp_bytes: u16,
    /// The congestion control of new sockets.
    congestion: String,
    is_mute: bool,
}

impl Blank {
    /// Prepares a socket for a connection that will be bound to `bind` and, most
    /// likely, has this clamp of segment sizes.
    ///
    /// # Errors
    /// [`RestoreError::NotLocal`] or [`RestoreError::Kernel`].
    pub fn new(bind: SocketAddr, mss_clamp_bytes: u16) -> Result<Self, RestoreError> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new_raw(Domain::for_address(bind), kind, Some(Protocol::TCP))
            .map_err(failed("socket"))?;
        let fd = socket.as_fd();
        options::repair_on(fd).map_err(failed("TCP_REPAIR"))?;
        socket
            .set_tcp_nodelay(true)
            .map_err(failed("TCP_NODELAY"))?;
        // A new socket acknowledges its first segments at once. The connection is not
        // new: its requests are acknowledged by their answers.
        let is_quick = socket.set_tcp_quickack(false);
        is_quick.map_err(failed("TCP_QUICKACK"))?;
        let congestion = options::congestion(fd).map_err(failed("TCP_CONGESTION"))?;
        let mss_clamp_bytes = mss_clamp_bytes.max(*MSS_RANGE_BYTES.start());
        options::set_mss_clamp(fd, mss_clamp_bytes).map_err(failed("TCP_MAXSEG"))?;
        options::select_queue(fd, Queue::Send).map_err(failed("TCP_REPAIR_QUEUE"))?;
        // In repair mode, over any other socket on that port.
        socket
            .bind(&bind.into())
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EADDRNOTAVAIL) => RestoreError::NotLocal(bind),
                _ => failed("bind")(error).into(),
            })?;
        Ok(Self {
            socket,
            bound: bind,
            mss_clamp_bytes,
            congestion,
            is_mute: false,
        })
    }

    /// Keeps the connection from sending anything, also acknowledgements, until
    /// [`Restored::go_live`]. It takes segments all the time.
    ///
    /// # Errors
    /// [`RestoreError::Kernel`].
    pub fn mute(mut self, freezer: &Freezer) -> Result<Self, RestoreError> {
        let muted = freezer.mute(self.socket.as_fd());
        muted.map_err(failed("SO_MARK"))?;
        self.is_mute = true;
        Ok(self)
    }

    /// The address that the connection will be bound to.
    #[must_use]
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }
}

/// [`restore`] into a socket that has been prepared. With `initial_window` it has the
/// source's congestion window, up to [`MAX_WINDOW_SEGMENTS`]; without, that of a new
/// connection.
///
/// # Errors
/// As for [`restore`]. The prepared socket is used up.
pub fn restore_into(
    blank: Blank,
    state: &TcpState,
    initial_window: Option<&InitialWindow>,
) -> Result<Restored, RestoreError> {
    check_state(state, blank.bound)?;
    if let Some(window) = initial_window
        && state.cwnd_segments > NEW_WINDOW_SEGMENTS.into()
    {
        let segments = u16::try_from(state.cwnd_segments).unwrap_or(u16::MAX);
        let prepared = window.prepare(blank.socket.as_fd(), segments);
        prepared.map_err(failed("SO_PRIORITY"))?;
    }
    let Blank {
        socket,
        congestion,
        is_mute,
        ..
    } = blank;
    let unconnected = Unconnected {
        socket: SockRef::from(&socket),
        bound: blank.bound,
        mss_clamp_bytes: blank.mss_clamp_bytes,
    };
    unconnected.connect(state)?;
    let socket = Silent::new(socket.into());
    let fd = socket.as_fd();
    if !state.sent.is_empty() {
        fill_send_queue(fd, &state.sent)?;
    }
    set_behaviour(fd, &state.behaviour, &congestion)?;
    if state.peer_closed {
        end_input(fd)?;
    }
    Ok(Restored {
        connection: Live {
            fd: socket,
            input: state.received.clone(),
            output: state.unsent.clone(),
            peer_closed: state.peer_closed,
        },
        receive_seq: state.receive_seq,
        has_mark: is_mute,
    })
}

impl Restored {
    /// Silences the socket like a frozen one. Returns whether it is as it was restored; if not, the
    /// client may know of bytes that only this host has.
    ///
    /// # Errors
    /// The kernel's error; the socket may then still hear.
    pub fn silence(&mut self, freezer: &Freezer) -> io::Result<bool> {
        freezer.silence(self.as_fd())?;
        self.has_mark = true;
        options::select_queue(self.as_fd(), Queue::Receive)?;
        Ok(options::queue_seq(self.as_fd())? == self.receive_seq)
    }

    /// Leaves repair mode, which sends nothing. From here on the socket retransmits, acknowledges
    /// and closes like any other.
    ///
    /// # Errors
    /// [`ResumeError`], which no known kernel returns for a restored socket.
    pub fn go_live(self) -> Result<Live, ResumeError> {
        options::repair_off_silently(self.as_fd()).map_err(ResumeError)?;
        if self.has_mark {
            freeze::give_voice(self.as_fd()).map_err(ResumeError)?;
        }
        let Live {
            fd,
            input,
            output,
            peer_closed,
        } = self.connection;
        Ok(Live {
            fd: fd.into_fd(),
            input,
            output,
            peer_closed,
        })
    }
}

impl AsFd for Restored {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.fd.as_fd()
    }
}

/// Refuses states that the kernel would refuse late, or not at all.
fn check_state(state: &TcpState, bind: SocketAddr) -> Result<(), RestoreError> {
    let bad = |what| Err(RestoreError::BadState(what));
    if state.remote.is_ipv4() != bind.is_ipv4() {
        return bad("the client and the address to bind are of different families");
    }
    if state.remote.port() == 0 || bind.port() == 0 {
        return bad("a port is 0");
    }
    if state.sent.len() > MAX_QUEUE_BYTES
        || state.unsent.len() > MAX_QUEUE_BYTES
        || state.received.len() > MAX_QUEUE_BYTES
    {
        return bad("a queue is larger than a hand-off may carry");
    }
    if state.behaviour.mss_clamp_bytes < *MSS_RANGE_BYTES.start() {
        return bad("the maximum segment size is below 88 bytes");
    }
    if let Some(scale) = state.options.window_scale
        && scale.send.max(scale.receive) > MAX_WINDOW_SHIFT
    {
        return bad("a window shift is above 14");
    }
    Ok(())
}

/// A bound socket in repair mode whose send queue is selected.
pub(super) struct Unconnected<'s> {
    pub(super) socket: SockRef<'s>,
    pub(super) bound: SocketAddr,
    pub(super) mss_clamp_bytes: u16,
}

impl Unconnected<'_> {
    /// Gives the socket the connection, without its bytes.
    pub(super) fn connect(&self, state: &TcpState) -> Result<(), RestoreError> {
        let fd = self.socket.as_fd();
        options::set_seq(fd, first_send_seq(state)).map_err(failed("TCP_QUEUE_SEQ"))?;
        options::select_queue(fd, Queue::Receive).map_err(failed("TCP_REPAIR_QUEUE"))?;
        options::set_seq(fd, state.receive_seq).map_err(failed("TCP_QUEUE_SEQ"))?;
        let mss_clamp_bytes = state.behaviour.mss_clamp_bytes;
        if mss_clamp_bytes != self.mss_clamp_bytes {
            options::set_mss_clamp(fd, mss_clamp_bytes).map_err(failed("TCP_MAXSEG"))?;
        }
        let large_window = state.window.receive_window_bytes > DEFAULT_WINDOW_BYTES;
        if large_window {
            raise_receive_buffer(fd, state.window.receive_window_bytes)?;
        }
        self.socket
            .connect(&state.remote.into())
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => taken(state, self.bound),
                _ => failed("connect")(error).into(),
            })?;
        if large_window {
            unlock_buffers(fd)?;
        }
        options::set_negotiated(fd, &state.options).map_err(failed("TCP_REPAIR_OPTIONS"))?;
        if state.options.timestamps {
            options::set_timestamp(fd, state.timestamp).map_err(failed("TCP_TIMESTAMP"))?;
        }
        set_window(fd, state)
    }
}

fn taken(state: &TcpState, bind: SocketAddr) -> RestoreError {
    RestoreError::Taken {
        bind,
        remote: state.remote,
    }
}

/// The first sequence number of the send queue; the kernel counts up as the bytes are put in. Both
/// queues are at most 8 MiB, so the casts keep the value.
fn first_send_seq(state: &TcpState) -> u32 {
    state
        .write_seq
        .wrapping_sub(state.unsent.len() as u32)
        .wrapping_sub(state.sent.len() as u32)
}

/// Enlarges the buffer for the window that the source has announced, which the default buffer would
/// not hold. It comes before `connect`, which derives the limit of later windows from it.
fn raise_receive_buffer(fd: BorrowedFd<'_>, window: u32) -> Result<(), CallError> {
    // The kernel doubles the value, and counts half of the buffer as window.
    let bytes = (window as usize).min(MAX_QUEUE_BYTES) as i32;
    sockopt::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
        .map_err(failed("SO_RCVBUFFORCE"))
}

/// The kernel checks the window against the sequence numbers.
fn set_window(fd: BorrowedFd<'_>, state: &TcpState) -> Result<(), RestoreError> {
    options::set_window(fd, &state.window).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => RestoreError::BadState("the windows contradict the sequence numbers"),
        _ => failed("TCP_REPAIR_WINDOW")(error).into(),
    })
}

/// Sets the options that the application had set.
fn set_behaviour(
    fd: BorrowedFd<'_>,
    behaviour: &Behaviour,
    default_congestion: &str,
) -> Result<(), RestoreError> {
    let congestion = behaviour.congestion.as_str();
    if !congestion.is_empty() && congestion != default_congestion {
        options::set_congestion(fd, congestion).map_err(failed("TCP_CONGESTION"))?;
    }
    // A blank socket has it.
    if !behaviour.nodelay {
        let is_set = SockRef::from(&fd).set_tcp_nodelay(false);
        is_set.map_err(failed("TCP_NODELAY"))?;
    }
    if let Some(keepalive) = &behaviour.keepalive {
        options::set_keepalive(fd, keepalive).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => RestoreError::BadState("a keepalive time is out of range"),
            _ => failed("SO_KEEPALIVE")(error).into(),
        })?;
    }
    if behaviour.user_timeout_ms != 0 {
        options::set_user_timeout_ms(fd, behaviour.user_timeout_ms)
            .map_err(failed("TCP_USER_TIMEOUT"))?;
    }
    Ok(())
}

/// Ends the input of a half-closed connection: see the head of this module.
fn end_input(fd: BorrowedFd<'_>) -> Result<(), CallError> {
    options::set_fin_wait2_s(fd, FIN_WAIT2_S).map_err(failed("TCP_LINGER2"))?;
    SockRef::from(&fd)
        .shutdown(std::net::Shutdown::Read)
        .map_err(failed("shutdown"))
}
