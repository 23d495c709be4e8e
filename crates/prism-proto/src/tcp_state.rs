//! The state of one TCP connection, as it travels from host to host.
//!
//! What each field is follows Linux `TCP_REPAIR` (`tcp(7)`, `net/ipv4/tcp.c`)
//! and CRIU's `soccr`. This module knows the layout and its limits; reading the
//! state from a socket and building a socket from it is `prism-sys`'s work.

use std::net::SocketAddr;

/// Options both ends agreed on in the handshake (RFC 7323, RFC 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedOptions {
    /// Selective acknowledgements are permitted.
    pub sack: bool,
    /// Segments carry timestamps.
    pub timestamps: bool,
    /// The peer's and our window shift (0 to 14), if windows are scaled.
    pub window_scale: Option<WindowScale>,
}

/// Window shifts of both directions (RFC 7323, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowScale {
    /// Shift of the windows that the peer announces.
    pub send: u8,
    /// Shift of the windows that we announce.
    pub receive: u8,
}

/// What `TCP_REPAIR_WINDOW` reads and writes (`struct tcp_repair_window`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Sequence number of the segment that last updated the send window.
    pub send_wl1: u32,
    /// Bytes the peer lets us send beyond what it acknowledged.
    pub send_window_bytes: u32,
    /// The largest window the peer ever announced.
    pub max_window_bytes: u32,
    /// Bytes we let the peer send beyond `receive_wup`.
    pub receive_window_bytes: u32,
    /// Our `rcv_nxt` when we last announced a window.
    pub receive_wup: u32,
}

/// Keepalive settings of the socket, where they are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// `TCP_KEEPIDLE`, seconds.
    pub idle_s: u32,
    /// `TCP_KEEPINTVL`, seconds.
    pub interval_s: u32,
    /// `TCP_KEEPCNT`, probes.
    pub probes: u32,
}

/// Everything that a target needs to go on with a TCP connection.
#[derive(Clone, PartialEq, Eq)]
pub struct TcpState {
    /// The client's address.
    pub remote: SocketAddr,
    /// The service address, as the client knows it.
    pub service: SocketAddr,
    /// Sequence number behind the last byte that the application wrote, so
    /// behind `sent` and `unsent` together (`write_seq`). Where our FIN was
    /// sent, the connection is not handed off at all.
    pub write_seq: u32,
    /// Next sequence number that we expect (`rcv_nxt`). Where `peer_closed`
    /// is set this counts the peer's FIN.
    pub receive_seq: u32,
    /// Bytes sent and not yet acknowledged.
    pub sent: Vec<u8>,
    /// Bytes written by the application and never sent.
    pub unsent: Vec<u8>,
    /// Bytes received, acknowledged, and not yet read by the application.
    pub received: Vec<u8>,
    /// The peer has sent its FIN, and everything before it has arrived.
    pub peer_closed: bool,
    /// Maximum segment size clamp (`TCP_MAXSEG` in repair mode).
    pub mss_clamp_bytes: u16,
    /// Options of the handshake.
    pub options: NegotiatedOptions,
    /// Value of our timestamp clock (`TCP_TIMESTAMP`); meaningful with
    /// `options.timestamps` only.
    pub timestamp: u32,
    /// Windows of both directions.
    pub window: Window,
    /// Name of the congestion control, at most 15 bytes of ASCII.
    pub congestion: String,
    /// Congestion window of the source, segments.
    pub cwnd_segments: u32,
    /// Smoothed round-trip time of the source, µs; 0 when unknown.
    pub srtt_us: u32,
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `SO_KEEPALIVE` and its times.
    pub keepalive: Option<Keepalive>,
    /// `TCP_USER_TIMEOUT`, ms; 0 is the system's default.
    pub user_timeout_ms: u32,
}

/// Most bytes one queue may hold in a hand-off. Linux lets a socket's buffers
/// grow to `tcp_wmem[2]` and `tcp_rmem[2]`, 4 and 6 MiB by default.
pub const MAX_QUEUE_BYTES: usize = 8 << 20;
