//! Reading the whole state of a paused connection.
//!
//! The packets were stopped elsewhere, but a segment may have been under way and still change
//! the socket. Values that belong together are therefore read in an order in which a change in
//! between is harmless, or noticed:
//!
//! - *Send queue*: nobody writes, so `write_seq` stands still. Acknowledgements only shorten
//!   the queue at its front. The bytes are taken as the suffix that ends at `write_seq`.
//! - *Receive queue*: nobody reads, so `rcv_nxt` moves exactly when a byte or the FIN arrives.
//!   It is read before and after the bytes.
//!
//! The out-of-order queue is not saved. A receiver may forget bytes that it acknowledged
//! selectively (RFC 2018, section 8): the client sends them again.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use prism_proto::{Behaviour, MAX_QUEUE_BYTES, NegotiatedOptions, TcpState, WindowScale};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;

use super::info::{self, TcpInfo};
use super::options::{self, Queue};
use super::pause::Paused;
use crate::CallError;

/// The number of readings of the receive queue while segments arrive in between. One is likely to
/// be the last one under way.
const MAX_ATTEMPTS: usize = 8;

/// Room for acknowledged bytes at the front of the send queue. The kernel
/// drops acknowledged segments whole, and peeks them whole: at most one
/// segment of at most 64 KiB begins before `snd_una`.
const PARTLY_ACKED_BYTES: usize = 64 << 10;

/// The reason why a paused connection was not saved. It is still paused: resume it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum SaveError {
    #[error("the connection ended meanwhile")]
    Gone,
    #[error("the {queue} queue holds {bytes} bytes, a hand-off carries {MAX_QUEUE_BYTES}")]
    TooLarge {
        /// "receive" or "send".
        queue: &'static str,
        bytes: usize,
    },
    #[error("segments keep arriving: the packets of the connection were not stopped")]
    NotQuiet,
    #[error("the connection does not use IP")]
    NotIp,
    #[error(transparent)]
    Kernel(#[from] CallError),
}

/// Names the call that failed.
fn failed(call: &'static str) -> impl FnOnce(io::Error) -> SaveError {
    move |source| match source.raw_os_error() {
        Some(
            libc::ENOTCONN | libc::ECONNRESET | libc::ECONNABORTED | libc::ETIMEDOUT | libc::EPIPE,
        ) => SaveError::Gone,
        _ => CallError { call, source }.into(),
    }
}

impl<S: AsFd> Paused<S> {
    /// Reads all that a target needs to go on with the connection.
    ///
    /// `service` is the local address as the client knows it. It is not the socket's own if a
    /// switch rewrites the flow. The call sends and changes nothing: the connection can still be
    /// resumed.
    ///
    /// # Errors
    /// [`SaveError`]; the connection stays paused.
    pub fn save(&self, service: SocketAddr) -> Result<TcpState, SaveError> {
        let remote = remote_address(self.as_fd())?;
        self.save_with(remote, service, self.behaviour()?)
    }

    /// Reads the options of the application.
    ///
    /// # Errors
    /// [`SaveError::Gone`] or [`SaveError::Kernel`].
    pub fn behaviour(&self) -> Result<Behaviour, SaveError> {
        let fd = self.as_fd();
        let nodelay = SockRef::from(&fd).tcp_nodelay();
        Ok(Behaviour {
            mss_clamp_bytes: mss_clamp(fd)?,
            congestion: options::congestion(fd).map_err(failed("TCP_CONGESTION"))?,
            nodelay: nodelay.map_err(failed("TCP_NODELAY"))?,
            keepalive: options::keepalive(fd).map_err(failed("SO_KEEPALIVE"))?,
            user_timeout_ms: options::user_timeout_ms(fd).map_err(failed("TCP_USER_TIMEOUT"))?,
        })
    }

    /// [`Self::save`] with the known client and options, which spares a third of the calls.
    ///
    /// # Errors
    /// As for [`Self::save`].
    pub fn save_with(
        &self,
        remote: SocketAddr,
        service: SocketAddr,
        behaviour: Behaviour,
    ) -> Result<TcpState, SaveError> {
        let fd = self.as_fd();
        let info = self.info();
        // The receive queue last: with the send queue selected, an arriving
        // acknowledgement would mark unsent bytes as sent without sending them.
        let send = read_send_queue(fd, info)?;
        let receive = read_receive_queue(fd)?;
        Ok(TcpState {
            remote,
            service,
            write_seq: send.write_seq,
            receive_seq: receive.seq,
            sent: send.sent,
            unsent: send.unsent,
            received: receive.bytes,
            peer_closed: receive.peer_closed,
            options: negotiated(info),
            timestamp: if info.timestamps {
                let ticks = options::timestamp(fd).map_err(failed("TCP_TIMESTAMP"))?;
                marked_timestamp(ticks, info.us_timestamps)
            } else {
                0
            },
            window: options::window(fd).map_err(failed("TCP_REPAIR_WINDOW"))?,
            cwnd_segments: info.rested_cwnd_segments(),
            srtt_us: info.srtt_us,
            behaviour,
        })
    }
}

/// Marks in bit 0 the unit of a timestamp, as kernels from 6.7 do: 1 for µs, 0 for ms.
/// Before, bit 0 is a part of the count in ms, and a newer target would take it for the
/// mark. The count is rounded up, because a timestamp must not go back (RFC 7323).
fn marked_timestamp(ticks: u32, in_us: bool) -> u32 {
    if in_us {
        ticks | 1
    } else {
        ticks.wrapping_add(1) & !1
    }
}

#[derive(Default)]
struct SendQueue {
    write_seq: u32,
    sent: Vec<u8>,
    unsent: Vec<u8>,
}

fn read_send_queue(fd: BorrowedFd<'_>, before: &TcpInfo) -> Result<SendQueue, SaveError> {
    options::select_queue(fd, Queue::Send).map_err(failed("TCP_REPAIR_QUEUE"))?;
    let write_seq = options::queue_seq(fd).map_err(failed("TCP_QUEUE_SEQ"))?;
    // Nobody writes any more, so a queue that was empty still is.
    if before.unacked_segments == 0 && before.unsent_bytes == 0 {
        return Ok(SendQueue {
            write_seq,
            ..SendQueue::default()
        });
    }
    let unacked = info::send_queue_bytes(fd).map_err(failed("SIOCOUTQ"))?;
    let unsent = info::unsent_queue_bytes(fd).map_err(failed("SIOCOUTQNSD"))?;
    let mut sent = peek_send_queue(fd, unacked)?;
    let unsent = sent.split_off(sent.len().saturating_sub(unsent));
    Ok(SendQueue {
        write_seq,
        sent,
        unsent,
    })
}

/// The last `unacked` bytes before `write_seq`, or fewer if more have been
/// acknowledged meanwhile.
fn peek_send_queue(fd: BorrowedFd<'_>, unacked: usize) -> Result<Vec<u8>, SaveError> {
    if unacked == 0 {
        return Ok(Vec::new());
    }
    bounded("send", unacked)?;
    // The kernel copies whole segments, and fails where they do not fit.
    let mut bytes = peek(fd, unacked + PARTLY_ACKED_BYTES).map_err(failed("recv"))?;
    let acknowledged = bytes.len().saturating_sub(unacked);
    drop(bytes.drain(..acknowledged));
    Ok(bytes)
}

struct ReceiveQueue {
    seq: u32,
    bytes: Vec<u8>,
    peer_closed: bool,
}

fn read_receive_queue(fd: BorrowedFd<'_>) -> Result<ReceiveQueue, SaveError> {
    options::select_queue(fd, Queue::Receive).map_err(failed("TCP_REPAIR_QUEUE"))?;
    for _ in 0..MAX_ATTEMPTS {
        let seq = options::queue_seq(fd).map_err(failed("TCP_QUEUE_SEQ"))?;
        if is_empty_and_open(fd)? {
            // It is empty now, hence also when `seq` was read.
            return Ok(ReceiveQueue {
                seq,
                bytes: Vec::new(),
                peer_closed: false,
            });
        }
        let length = info::receive_queue_bytes(fd).map_err(failed("SIOCINQ"))?;
        let peer_closed = peer_has_closed(fd)?;
        let bytes = peek_receive_queue(fd, length)?;
        let still = options::queue_seq(fd).map_err(failed("TCP_QUEUE_SEQ"))?;
        if still == seq && bytes.len() == length {
            return Ok(ReceiveQueue {
                seq,
                bytes,
                peer_closed,
            });
        }
    }
    Err(SaveError::NotQuiet)
}

/// Whether there is nothing to read, and neither an end nor an error. This is the usual case, and
/// takes one call.
fn is_empty_and_open(fd: BorrowedFd<'_>) -> Result<bool, SaveError> {
    match recv(fd, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok(_) => Ok(false),
        Err(Errno::AGAIN) => Ok(true),
        Err(error) => Err(failed("recv")(error.into())),
    }
}

fn peek_receive_queue(fd: BorrowedFd<'_>, length: usize) -> Result<Vec<u8>, SaveError> {
    if length == 0 {
        return Ok(Vec::new());
    }
    bounded("receive", length)?;
    peek(fd, length).map_err(failed("recv"))
}

fn bounded(queue: &'static str, bytes: usize) -> Result<(), SaveError> {
    if bytes > MAX_QUEUE_BYTES {
        return Err(SaveError::TooLarge { queue, bytes });
    }
    Ok(())
}

/// Whether the peer has closed. `POLLRDHUP` is set in CLOSE_WAIT, and on a connection that was
/// half-closed when it was restored (`restore.rs`).
fn peer_has_closed(fd: BorrowedFd<'_>) -> Result<bool, SaveError> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).map_err(|error| failed("poll")(error.into()))?;
    let [found] = fds.map(|fd| fd.revents());
    if found.contains(PollFlags::HUP) {
        return Err(SaveError::Gone);
    }
    Ok(found.contains(PollFlags::RDHUP))
}

/// Copies up to `room` bytes of the selected queue.
fn peek(fd: BorrowedFd<'_>, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(room);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(fd, spare_capacity(&mut bytes), flags)?;
    Ok(bytes)
}

fn remote_address(fd: BorrowedFd<'_>) -> Result<SocketAddr, SaveError> {
    let address = SockRef::from(&fd)
        .peer_addr()
        .map_err(failed("getpeername"))?;
    let address = address.as_socket().ok_or(SaveError::NotIp)?;
    // A socket of the other family may carry an IPv4 connection.
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

fn mss_clamp(fd: BorrowedFd<'_>) -> Result<u16, SaveError> {
    let bytes = options::mss_clamp(fd).map_err(failed("TCP_MAXSEG"))?;
    Ok(u16::try_from(bytes).unwrap_or(u16::MAX))
}

fn negotiated(info: &TcpInfo) -> NegotiatedOptions {
    NegotiatedOptions {
        sack: info.sack,
        timestamps: info.timestamps,
        // Two shifts of 0 are the same as no scaling, and are what a restored
        // connection without scaling reports.
        window_scale: info
            .window_scale
            .filter(|shifts| *shifts != (0, 0))
            .map(|(send, receive)| WindowScale { send, receive }),
    }
}

#[cfg(test)]
mod tests {
    use super::marked_timestamp;

    #[test]
    fn a_timestamp_in_ms_has_bit_0_clear_and_does_not_go_back() {
        for (ticks, expected) in [(6, 6), (7, 8), (u32::MAX, 0), (u32::MAX - 1, u32::MAX - 1)] {
            assert_eq!(marked_timestamp(ticks, false), expected);
        }
        assert_eq!(marked_timestamp(6, true), 7);
        assert_eq!(marked_timestamp(7, true), 7);
    }
}
