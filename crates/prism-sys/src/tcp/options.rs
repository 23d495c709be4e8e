//! The socket options of `TCP_REPAIR`, one function each.
//!
//! All but [`probe_peer`] are for this crate: their order is fatal, and the
//! types of [`crate::tcp`] keep it.

use std::io;
use std::os::fd::BorrowedFd;

use prism_proto::{Keepalive, Window};

use crate::sockopt::{get, set, set_bytes};

/// How repair mode is left (`include/uapi/linux/tcp.h`).
const TCP_REPAIR_ON: i32 = 1;
const TCP_REPAIR_OFF: i32 = 0;
const TCP_REPAIR_OFF_NO_PROBE: i32 = -1;

/// TCP option kinds (RFC 9293, 2018, 7323) as `TCP_REPAIR_OPTIONS` takes them.
const KIND_WINDOW_SCALE: u32 = 3;
const KIND_SACK_PERMITTED: u32 = 4;
const KIND_TIMESTAMPS: u32 = 8;

/// The smallest and largest values that `TCP_MAXSEG` takes
/// (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
pub(crate) const MSS_RANGE_BYTES: std::ops::RangeInclusive<u16> = 88..=32767;

/// `TCP_CA_NAME_MAX`, the terminating zero included.
const CONGESTION_NAME_BYTES: usize = 16;

/// The queue that `TCP_QUEUE_SEQ`, `recv` and `send` mean in repair mode.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(crate) enum Queue {
    Receive = 1,
    Send = 2,
}

fn set_tcp<T: crate::sockopt::Plain>(fd: BorrowedFd<'_>, name: i32, value: &T) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, name, value)
}

fn get_tcp<T: crate::sockopt::Plain>(fd: BorrowedFd<'_>, name: i32) -> io::Result<T> {
    get(fd, libc::IPPROTO_TCP, name)
}

/// Enters repair mode. As a side effect the kernel lets the socket bind over
/// any other (`SK_FORCE_REUSE`).
pub(crate) fn repair_on(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_tcp(fd, libc::TCP_REPAIR, &TCP_REPAIR_ON)
}

/// Leaves repair mode without emitting anything.
///
/// Leaving clears the socket's reuse flag, and a socket without it keeps a
/// listener from being bound to its port: so `SO_REUSEADDR` is set again.
pub(crate) fn repair_off_silently(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_tcp(fd, libc::TCP_REPAIR, &TCP_REPAIR_OFF_NO_PROBE)?;
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)
}

/// Ends the connection in this kernel, in repair mode without a segment
/// (`tcp_disconnect`).
///
/// Closing does the same, but only with the last reference to the socket, and a
/// process that another thread is just starting holds one until its `exec`.
pub(crate) fn disconnect_silently(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(fd)?)
}

/// Makes the peer repeat its acknowledgement and its window, at once.
///
/// Packets of the peer during a hand-off are lost. The peer repeats data, but not an
/// acknowledgement or a window update. Without this call the new socket waits for its own
/// retransmission or persist timer, 1 s. Call it once the packets of the flow reach the socket, and
/// only if bytes were unacknowledged or the window was small: it costs a packet in each direction.
/// It changes neither data nor state.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`.
pub fn probe_peer(fd: BorrowedFd<'_>) -> io::Result<()> {
    repair_on(fd)?;
    set_tcp(fd, libc::TCP_REPAIR, &TCP_REPAIR_OFF)?;
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)
}

pub(crate) fn select_queue(fd: BorrowedFd<'_>, queue: Queue) -> io::Result<()> {
    set_tcp(fd, libc::TCP_REPAIR_QUEUE, &(queue as i32))
}

/// `rcv_nxt` or `write_seq` of the selected queue.
pub(crate) fn queue_seq(fd: BorrowedFd<'_>) -> io::Result<u32> {
    get_tcp(fd, libc::TCP_QUEUE_SEQ)
}

/// Sets `rcv_nxt` or `write_seq` of the selected queue, of a socket that is not
/// connected yet.
pub(crate) fn set_seq(fd: BorrowedFd<'_>, seq: u32) -> io::Result<()> {
    set_tcp(fd, libc::TCP_QUEUE_SEQ, &seq)
}

/// In repair mode: the clamp that the handshake fixed, in bytes.
pub(crate) fn mss_clamp(fd: BorrowedFd<'_>) -> io::Result<u32> {
    get_tcp(fd, libc::TCP_MAXSEG)
}

/// Before `connect`: after it the segments would stay at 524 bytes.
pub(crate) fn set_mss_clamp(fd: BorrowedFd<'_>, bytes: u16) -> io::Result<()> {
    // Loopback negotiates more than the option takes; the clamp is then
    // lower than it might be, which is allowed.
    let bytes = bytes.min(*MSS_RANGE_BYTES.end());
    set_tcp(fd, libc::TCP_MAXSEG, &i32::from(bytes))
}

pub(crate) fn window(fd: BorrowedFd<'_>) -> io::Result<Window> {
    let [
        send_wl1,
        send_window_bytes,
        max_window_bytes,
        receive_window_bytes,
        receive_wup,
    ] = get_tcp::<[u32; 5]>(fd, libc::TCP_REPAIR_WINDOW)?;
    Ok(Window {
        send_wl1,
        send_window_bytes,
        max_window_bytes,
        receive_window_bytes,
        receive_wup,
    })
}

pub(crate) fn set_window(fd: BorrowedFd<'_>, window: &Window) -> io::Result<()> {
    let raw = [
        window.send_wl1,
        window.send_window_bytes,
        window.max_window_bytes,
        window.receive_window_bytes,
        window.receive_wup,
    ];
    set_tcp(fd, libc::TCP_REPAIR_WINDOW, &raw)
}

/// Sets what the handshake negotiated. Before any byte is in the send queue:
/// the kernel refuses it afterwards.
pub(crate) fn set_negotiated(
    fd: BorrowedFd<'_>,
    options: &prism_proto::NegotiatedOptions,
) -> io::Result<()> {
    // A socket that never saw a SYN-ACK keeps the window shift it would have
    // offered. Without scaling both shifts must be set to 0, or the window we
    // announce is taken for 2^-shift of what it is.
    let (send, receive) = options.window_scale.map_or((0, 0), |scale| {
        (u32::from(scale.send), u32::from(scale.receive))
    });
    let list = [
        [KIND_WINDOW_SCALE, send | receive << 16],
        [KIND_SACK_PERMITTED, 0],
        [KIND_TIMESTAMPS, 0],
    ];
    let [scale, sack, stamps] = list;
    let chosen = match (options.sack, options.timestamps) {
        (true, true) => &list[..],
        (true, false) => &[scale, sack][..],
        (false, true) => &[scale, stamps][..],
        (false, false) => &[scale][..],
    };
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, chosen)
}

/// Our timestamp clock. The kernel calls the value opaque: bit 0 says whether
/// it counts in µs or in ms.
pub(crate) fn timestamp(fd: BorrowedFd<'_>) -> io::Result<u32> {
    get_tcp(fd, libc::TCP_TIMESTAMP)
}

pub(crate) fn set_timestamp(fd: BorrowedFd<'_>, value: u32) -> io::Result<()> {
    set_tcp(fd, libc::TCP_TIMESTAMP, &value)
}

/// Name of the congestion control.
pub(crate) fn congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    let raw: [u8; CONGESTION_NAME_BYTES] = get_tcp(fd, libc::TCP_CONGESTION)?;
    let name = raw.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Selects the congestion control; one that this host does not have, or does
/// not allow, leaves the default in place: the connection works with any.
pub(crate) fn set_congestion(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes()) {
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::EPERM | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
        Ok(()) => Ok(()),
    }
}

pub(crate) fn keepalive(fd: BorrowedFd<'_>) -> io::Result<Option<Keepalive>> {
    if get::<i32>(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE)? == 0 {
        return Ok(None);
    }
    Ok(Some(Keepalive {
        idle_s: get_tcp(fd, libc::TCP_KEEPIDLE)?,
        interval_s: get_tcp(fd, libc::TCP_KEEPINTVL)?,
        probes: get_tcp(fd, libc::TCP_KEEPCNT)?,
    }))
}

pub(crate) fn set_keepalive(fd: BorrowedFd<'_>, keepalive: &Keepalive) -> io::Result<()> {
    set_tcp(fd, libc::TCP_KEEPIDLE, &keepalive.idle_s)?;
    set_tcp(fd, libc::TCP_KEEPINTVL, &keepalive.interval_s)?;
    set_tcp(fd, libc::TCP_KEEPCNT, &keepalive.probes)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1_i32)
}

pub(crate) fn user_timeout_ms(fd: BorrowedFd<'_>) -> io::Result<u32> {
    get_tcp(fd, libc::TCP_USER_TIMEOUT)
}

pub(crate) fn set_user_timeout_ms(fd: BorrowedFd<'_>, value: u32) -> io::Result<()> {
    set_tcp(fd, libc::TCP_USER_TIMEOUT, &value)
}

/// How long an orphaned socket waits for the peer's FIN after its own.
pub(crate) fn set_fin_wait2_s(fd: BorrowedFd<'_>, seconds: i32) -> io::Result<()> {
    set_tcp(fd, libc::TCP_LINGER2, &seconds)
}
