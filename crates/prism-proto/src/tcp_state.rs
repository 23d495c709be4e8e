//! The state of one TCP connection, as it travels from host to host.
//!
//! The fields follow Linux `TCP_REPAIR` (`tcp(7)`, `net/ipv4/tcp.c`) and CRIU's `soccr`. This
//! module has the layout and its limits. `prism-sys` reads the state from a socket, and builds a
//! socket from it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::wire::{DecodeError, Put, Reader};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowScale {
    /// Shift of the windows that the peer announces.
    pub send: u8,
    /// Shift of the windows that we announce.
    pub receive: u8,
}

/// The fields of `TCP_REPAIR_WINDOW` (`struct tcp_repair_window`).
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

/// Keepalive settings of the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    /// `TCP_KEEPIDLE`, seconds.
    pub idle_s: u32,
    /// `TCP_KEEPINTVL`, seconds.
    pub interval_s: u32,
    /// `TCP_KEEPCNT`, probes.
    pub probes: u32,
}

/// The options of a connection, which only its application changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Maximum segment size clamp (`TCP_MAXSEG` in repair mode).
    pub mss_clamp_bytes: u16,
    /// Name of the congestion control, at most 15 bytes of ASCII.
    pub congestion: String,
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `SO_KEEPALIVE` and its times.
    pub keepalive: Option<Keepalive>,
    /// `TCP_USER_TIMEOUT`, ms; 0 is the system's default.
    pub user_timeout_ms: u32,
}

/// Everything that a target needs to go on with a TCP connection.
#[derive(Clone, PartialEq, Eq)]
pub struct TcpState {
    /// The client's address.
    pub remote: SocketAddr,
    /// The service address, as the client knows it.
    pub service: SocketAddr,
    /// The sequence number behind the last byte that the application wrote, so behind `sent` and
    /// `unsent` (`write_seq`). A connection whose FIN we have sent is not handed off.
    pub write_seq: u32,
    /// The next sequence number that we expect (`rcv_nxt`). It counts the peer's FIN if
    /// `peer_closed` is set.
    pub receive_seq: u32,
    /// Bytes sent and not yet acknowledged.
    pub sent: Vec<u8>,
    /// Bytes written by the application and never sent.
    pub unsent: Vec<u8>,
    /// Bytes received, acknowledged, and not yet read by the application.
    pub received: Vec<u8>,
    /// The peer has sent its FIN, and everything before it has arrived.
    pub peer_closed: bool,
    /// Options of the handshake.
    pub options: NegotiatedOptions,
    /// Value of our timestamp clock (`TCP_TIMESTAMP`); meaningful with
    /// `options.timestamps` only.
    pub timestamp: u32,
    /// Windows of both directions.
    pub window: Window,
    /// Congestion window of the source, segments.
    pub cwnd_segments: u32,
    /// Smoothed round-trip time of the source, µs; 0 when unknown.
    pub srtt_us: u32,
    /// Options of the application.
    pub behaviour: Behaviour,
}

/// The largest number of bytes of one queue in a hand-off. Linux lets a socket's buffers grow to
/// `tcp_wmem[2]` and `tcp_rmem[2]`, 4 and 6 MiB by default.
pub const MAX_QUEUE_BYTES: usize = 8 << 20;

impl fmt::Debug for TcpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpState")
            .field("remote", &self.remote)
            .field("service", &self.service)
            .field("write_seq", &self.write_seq)
            .field("receive_seq", &self.receive_seq)
            .field("sent_bytes", &self.sent.len())
            .field("unsent_bytes", &self.unsent.len())
            .field("received_bytes", &self.received.len())
            .field("peer_closed", &self.peer_closed)
            .field("options", &self.options)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

const FLAG_PEER_CLOSED: u8 = 1;
const FLAG_SACK: u8 = 2;
const FLAG_TIMESTAMPS: u8 = 4;
const FLAG_WINDOW_SCALE: u8 = 8;
const FLAG_NODELAY: u8 = 16;
const FLAG_KEEPALIVE: u8 = 32;
const ALL_FLAGS: u8 = 63;

impl TcpState {
    /// Bytes in the three queues.
    pub fn queued_bytes(&self) -> usize {
        self.sent.len() + self.unsent.len() + self.received.len()
    }

    fn flags(&self) -> u8 {
        let options = [
            (self.peer_closed, FLAG_PEER_CLOSED),
            (self.options.sack, FLAG_SACK),
            (self.options.timestamps, FLAG_TIMESTAMPS),
            (self.options.window_scale.is_some(), FLAG_WINDOW_SCALE),
            (self.behaviour.nodelay, FLAG_NODELAY),
            (self.behaviour.keepalive.is_some(), FLAG_KEEPALIVE),
        ];
        let set = options.into_iter().filter(|(is_set, _)| *is_set);
        set.fold(0, |flags, (_, bit)| flags | bit)
    }

    pub(crate) fn save(&self, out: &mut Vec<u8>) {
        out.put_socket_addr(self.remote);
        out.put_socket_addr(self.service);
        out.put(&[self.flags()]);
        let scale = self.options.window_scale.unwrap_or_default();
        out.put(&[scale.send, scale.receive]);
        out.put(&self.behaviour.mss_clamp_bytes.to_be_bytes());
        let keepalive = self.behaviour.keepalive.unwrap_or_default();
        for word in [
            self.write_seq,
            self.receive_seq,
            self.timestamp,
            self.window.send_wl1,
            self.window.send_window_bytes,
            self.window.max_window_bytes,
            self.window.receive_window_bytes,
            self.window.receive_wup,
            self.cwnd_segments,
            self.srtt_us,
            self.behaviour.user_timeout_ms,
            keepalive.idle_s,
            keepalive.interval_s,
            keepalive.probes,
        ] {
            out.put(&word.to_be_bytes());
        }
        out.put_short_str(&self.behaviour.congestion);
        for queue in [&self.sent, &self.unsent, &self.received] {
            out.put_sized(queue);
        }
    }

    pub(crate) fn restore(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let remote = client_addr(r)?;
        let service = r.socket_addr("service")?;
        let flags = r.u8("flags")?;
        if flags & !ALL_FLAGS != 0 {
            return Err(DecodeError::Invalid("flags"));
        }
        let has = |bit: u8| flags & bit != 0;
        let scale = WindowScale {
            send: shift(r)?,
            receive: shift(r)?,
        };
        // Absent options are zero, so that a state has one encoding only.
        if !has(FLAG_WINDOW_SCALE) && scale != WindowScale::default() {
            return Err(DecodeError::Invalid("window shift"));
        }
        let mss_clamp_bytes = r.u16("mss")?;
        let write_seq = r.u32("write_seq")?;
        let receive_seq = r.u32("receive_seq")?;
        let timestamp = r.u32("timestamp")?;
        let window = Window {
            send_wl1: r.u32("send_wl1")?,
            send_window_bytes: r.u32("send window")?,
            max_window_bytes: r.u32("max window")?,
            receive_window_bytes: r.u32("receive window")?,
            receive_wup: r.u32("receive_wup")?,
        };
        let cwnd_segments = r.u32("cwnd")?;
        let srtt_us = r.u32("srtt")?;
        let user_timeout_ms = r.u32("user timeout")?;
        let keepalive = Keepalive {
            idle_s: r.u32("keepalive idle")?,
            interval_s: r.u32("keepalive interval")?,
            probes: r.u32("keepalive probes")?,
        };
        if !has(FLAG_KEEPALIVE) && keepalive != Keepalive::default() {
            return Err(DecodeError::Invalid("keepalive"));
        }
        let behaviour = Behaviour {
            mss_clamp_bytes,
            congestion: congestion_name(r)?,
            nodelay: has(FLAG_NODELAY),
            keepalive: has(FLAG_KEEPALIVE).then_some(keepalive),
            user_timeout_ms,
        };
        Ok(Self {
            remote,
            service,
            write_seq,
            receive_seq,
            sent: r.sized(MAX_QUEUE_BYTES, "sent queue")?.to_vec(),
            unsent: r.sized(MAX_QUEUE_BYTES, "unsent queue")?.to_vec(),
            received: r.sized(MAX_QUEUE_BYTES, "received queue")?.to_vec(),
            peer_closed: has(FLAG_PEER_CLOSED),
            options: NegotiatedOptions {
                sack: has(FLAG_SACK),
                timestamps: has(FLAG_TIMESTAMPS),
                window_scale: has(FLAG_WINDOW_SCALE).then_some(scale),
            },
            timestamp,
            window,
            cwnd_segments,
            srtt_us,
            behaviour,
        })
    }
}

/// Reads a client's address that a socket can connect to: no port 0, no multicast.
fn client_addr(r: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let addr = r.socket_addr("remote")?;
    let ip = addr.ip();
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if addr.port() == 0 || ip.is_unspecified() || ip.is_multicast() || broadcast {
        return Err(DecodeError::Invalid("remote"));
    }
    Ok(addr)
}

/// Reads a window shift, at most 14 (RFC 7323, section 2.3).
fn shift(r: &mut Reader<'_>) -> Result<u8, DecodeError> {
    match r.u8("window shift")? {
        shift @ 0..=14 => Ok(shift),
        _ => Err(DecodeError::Invalid("window shift")),
    }
}

/// `TCP_CA_NAME_MAX` is 16 with the final zero.
fn congestion_name(r: &mut Reader<'_>) -> Result<String, DecodeError> {
    let name = r.short_str("congestion control")?;
    let plain = name.bytes().all(|b| b.is_ascii_graphic());
    if name.len() > 15 || !plain {
        return Err(DecodeError::Invalid("congestion control"));
    }
    Ok(name.to_owned())
}
