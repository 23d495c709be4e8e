//! The kernel's figures of one connection: `TCP_INFO` and queue lengths.
//!
//! Reading needs no privilege, and works in any state.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sockopt;

/// A TCP state, as in `include/net/tcp_states.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpStateName {
    /// Open in both directions.
    Established,
    /// Our SYN is out.
    SynSent,
    /// A SYN came, our SYN-ACK is out.
    SynReceived,
    /// Our FIN is out and not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged, the peer's has not come.
    FinWait2,
    /// Both closed; waiting out old segments.
    TimeWait,
    /// No connection.
    Close,
    /// The peer's FIN has come, we may still send.
    CloseWait,
    /// The peer's FIN came first, ours is out and not acknowledged.
    LastAck,
    /// Waiting for connections.
    Listen,
    /// Both FINs crossed.
    Closing,
    /// A state this crate does not know.
    Other(u8),
}

impl TcpStateName {
    /// From the kernel's number.
    pub(crate) fn from_kernel(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            // 12 is TCP_NEW_SYN_RECV: a request socket, only seen by sock_diag.
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            other => Self::Other(other),
        }
    }
}

/// Words of 4 bytes in `struct tcp_info` (`include/uapi/linux/tcp.h`) up to `tcpi_min_rtt`. A
/// kernel that knows fewer leaves the rest 0.
const INFO_WORDS: usize = 38;

const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 4;
const OPTION_US_TIMESTAMPS: u8 = 64;

/// The figures of `TCP_INFO` that Prism uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// The state now.
    pub state: TcpStateName,
    /// Timestamps were negotiated.
    pub timestamps: bool,
    /// Our timestamps count in µs (Linux 6.7, a route's option `tcp_usec_ts`), not in ms.
    pub us_timestamps: bool,
    /// Selective acknowledgements were negotiated.
    pub sack: bool,
    /// Shift of the windows the peer announces and of ours, where scaled.
    pub window_scale: Option<(u8, u8)>,
    /// Segments sent and not yet acknowledged.
    pub unacked_segments: u32,
    /// Bytes written and never sent.
    pub unsent_bytes: u32,
    /// Congestion window, segments.
    pub cwnd_segments: u32,
    /// Smoothed round-trip time, µs; 0 when unknown.
    pub srtt_us: u32,
    /// Retransmission timeout, µs.
    pub rto_us: u32,
    /// Time since data was sent, ms.
    pub rest_ms: u32,
    /// Time since the peer's last acknowledgement, ms; every segment has one.
    pub heard_ms: u32,
    /// Retransmission timeouts in a row without an answer.
    pub unanswered_timeouts: u8,
    /// Probes of a closed window, or keepalives, in a row without an answer.
    pub unanswered_probes: u8,
}

impl TcpInfo {
    /// Reads `TCP_INFO` of a TCP socket.
    ///
    /// # Errors
    /// `ENOPROTOOPT` or `EOPNOTSUPP` for a socket that is not TCP.
    pub fn read(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let words: [u32; INFO_WORDS] = sockopt::get(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
        Ok(Self::from_words(&words))
    }

    /// The congestion window, halved for each retransmission timeout without data (RFC 2861): the
    /// knowledge of the path ages.
    pub(super) fn rested_cwnd_segments(&self) -> u32 {
        let rests = u64::from(self.rest_ms) * 1000 / u64::from(self.rto_us.max(1));
        let halvings = u32::try_from(rests).unwrap_or(u32::MAX);
        self.cwnd_segments.checked_shr(halvings).unwrap_or(0)
    }

    fn from_words(words: &[u32; INFO_WORDS]) -> Self {
        let word = |at: usize| words.get(at / 4).copied().unwrap_or(0);
        let [state, _, unanswered_timeouts, unanswered_probes] = word(0).to_ne_bytes();
        let [_, options, shifts, _] = word(4).to_ne_bytes();
        Self {
            state: TcpStateName::from_kernel(state),
            timestamps: options & OPTION_TIMESTAMPS != 0,
            us_timestamps: options & OPTION_US_TIMESTAMPS != 0,
            sack: options & OPTION_SACK != 0,
            window_scale: (options & OPTION_WINDOW_SCALE != 0).then(|| scales(shifts)),
            unacked_segments: word(24),
            unsent_bytes: word(144),
            cwnd_segments: word(80),
            srtt_us: word(68),
            rto_us: word(8),
            rest_ms: word(44),
            heard_ms: word(56),
            unanswered_timeouts,
            unanswered_probes,
        }
    }
}

/// Splits the two 4-bit fields, which lie in the order of the C bit fields.
fn scales(shifts: u8) -> (u8, u8) {
    if cfg!(target_endian = "little") {
        (shifts & 0xf, shifts >> 4)
    } else {
        (shifts >> 4, shifts & 0xf)
    }
}

/// Bytes received and not yet read (`SIOCINQ`); the peer's FIN does not count.
pub(super) fn receive_queue_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    sockopt::ioctl_length(fd, libc::FIONREAD)
}

/// Bytes written and not yet acknowledged (`SIOCOUTQ`), sent or not. Our FIN
/// counts as one.
///
/// # Errors
/// `EINVAL` for a listening socket (the caller's fault).
pub fn send_queue_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    sockopt::ioctl_length(fd, libc::TIOCOUTQ)
}

/// Bytes written and never sent (`SIOCOUTQNSD`).
///
/// # Errors
/// `EINVAL` for a listening socket (the caller's fault).
pub fn unsent_queue_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    /// `include/uapi/linux/sockios.h`; not in `libc`.
    const SIOCOUTQNSD: libc::c_ulong = 0x894B;
    sockopt::ioctl_length(fd, SIOCOUTQNSD)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn reports_states_and_queues_of_a_loopback_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(b"abc").unwrap();

        let info = TcpInfo::read(server.as_fd()).unwrap();
        assert_eq!(info.state, TcpStateName::Established);
        assert!(info.cwnd_segments > 0);
        assert_eq!(receive_queue_bytes(server.as_fd()).unwrap(), 3);
        assert_eq!(send_queue_bytes(server.as_fd()).unwrap(), 0);
        assert_eq!(unsent_queue_bytes(server.as_fd()).unwrap(), 0);
        assert_eq!(
            TcpInfo::read(listener.as_fd()).unwrap().state,
            TcpStateName::Listen
        );
    }
}
