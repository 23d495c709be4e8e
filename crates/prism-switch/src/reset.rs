//! Tells clients that nobody owns their connection any more.
//!
//! If the switch has seen the owner's packets, it knows the sequence number that the client
//! expects, and a reset with it ends the connection at once. Otherwise, or after a loss, the
//! segment draws an acknowledgement (RFC 9293, section 3.10.7.4; RFC 5961). This goes to a
//! frontend, whose kernel does not know the connection and answers with the right reset. A
//! client that gets no segment finds out when it next sends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use prism_proto::control::FlowKey;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

const IP_BYTES: usize = 20;
const SEGMENT_BYTES: usize = 20;
/// The protocol number of raw IP: the header is ours.
const IPPROTO_RAW: i32 = 255;
const IPPROTO_TCP: u8 = 6;
const TTL: u8 = 64;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;

/// Sends resets. It opens its socket with the first one.
#[derive(Debug, Default)]
pub(crate) struct Resetter {
    socket: Option<Socket>,
}

impl Resetter {
    /// Resets the client of `flow`, which expects `next_seq`.
    pub(crate) fn reset(&mut self, flow: &FlowKey, next_seq: Option<u32>) {
        if let Err(error) = self.try_reset(flow, next_seq) {
            tracing::warn!(client = %flow.client, %error, "cannot reset a client whose owner has died");
        }
    }

    fn try_reset(&mut self, flow: &FlowKey, next_seq: Option<u32>) -> io::Result<()> {
        let (Some(client), Some(vip)) = (v4(flow.client), v4(flow.vip)) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let packet = packet(vip, client, next_seq);
        // The port of a raw socket's destination has no meaning.
        let to = SockAddr::from(SocketAddrV4::new(*client.ip(), 0));
        self.socket()?.send_to(&packet, &to)?;
        Ok(())
    }

    fn socket(&mut self) -> io::Result<&Socket> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let protocol = Some(Protocol::from(IPPROTO_RAW));
                let socket = Socket::new(Domain::IPV4, Type::RAW, protocol)?;
                socket.set_nonblocking(true)?;
                socket
            }
        };
        Ok(self.socket.insert(socket))
    }
}

/// An IPv4 address and port, also if it is written as an IPv6 one.
fn v4(addr: SocketAddr) -> Option<SocketAddrV4> {
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, addr.port())),
        IpAddr::V6(_) => None,
    }
}

fn packet(
    from: SocketAddrV4,
    to: SocketAddrV4,
    next_seq: Option<u32>,
) -> [u8; IP_BYTES + SEGMENT_BYTES] {
    let mut packet = [0; IP_BYTES + SEGMENT_BYTES];
    let (ip, tcp) = packet.split_at_mut(IP_BYTES);
    ip.copy_from_slice(&ip_header(*from.ip(), *to.ip()));
    tcp.copy_from_slice(&segment(from, to, next_seq));
    packet
}

/// An IP header without length, identification and checksum, which the kernel fills in.
fn ip_header(from: Ipv4Addr, to: Ipv4Addr) -> [u8; IP_BYTES] {
    const DONT_FRAGMENT: u8 = 0x40;
    let ([a, b, c, d], [e, f, g, h]) = (from.octets(), to.octets());
    let [version, fragments, ttl, protocol] = [0x45, DONT_FRAGMENT, TTL, IPPROTO_TCP];
    [
        version, 0, 0, 0, 0, 0, fragments, 0, ttl, protocol, 0, 0, a, b, c, d, e, f, g, h,
    ]
}

/// A reset, or a bare acknowledgement if the sequence number is not known: the client would
/// ignore a reset with a wrong number.
fn segment(from: SocketAddrV4, to: SocketAddrV4, next_seq: Option<u32>) -> [u8; SEGMENT_BYTES] {
    let flags = next_seq.map_or(FLAG_ACK, |_| FLAG_RST);
    let seq = next_seq.unwrap_or_else(|| fastrand::u32(..));
    let ([a, b], [c, d]) = (from.port().to_be_bytes(), to.port().to_be_bytes());
    let [e, f, g, h] = seq.to_be_bytes();
    let mut segment = [
        a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0,
    ];
    let check = checksum(*from.ip(), *to.ip(), &segment);
    if let Some(field) = segment.get_mut(16..18) {
        field.copy_from_slice(&check.to_be_bytes());
    }
    segment
}

/// The checksum of a TCP segment with its pseudo-header (RFC 9293, section 3.1).
fn checksum(from: Ipv4Addr, to: Ipv4Addr, segment: &[u8; SEGMENT_BYTES]) -> u16 {
    let pseudo = [from.octets(), to.octets()].concat();
    let words = pseudo.chunks(2).chain(segment.chunks(2));
    let word = |pair: &[u8]| {
        pair.iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte))
    };
    let sum = words.map(word).sum::<u32>() + u32::from(IPPROTO_TCP) + SEGMENT_BYTES as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn addr(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    /// The sum over pseudo-header and segment, with its checksum, is all ones.
    fn is_right(from: SocketAddrV4, to: SocketAddrV4, segment: &[u8]) -> bool {
        let head = [&from.ip().octets()[..], &to.ip().octets(), &[0, 6, 0, 20]].concat();
        let all = [&head, segment].concat();
        let sum: u32 = all
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn a_known_sequence_number_makes_a_reset_with_a_right_checksum() {
        let (vip, client) = (addr("198.51.100.1:80"), addr("192.0.2.9:50000"));
        for seq in [0, 1, 0xdead_beef, u32::MAX] {
            let packet = packet(vip, client, Some(seq));
            assert_eq!(packet[IP_BYTES + 13], FLAG_RST);
            assert_eq!(packet[IP_BYTES + 4..IP_BYTES + 8], seq.to_be_bytes());
            assert_eq!(packet[12..16], vip.ip().octets());
            assert_eq!(packet[16..20], client.ip().octets());
            assert!(is_right(vip, client, &packet[IP_BYTES..]));
        }
    }

    #[test]
    fn an_unknown_one_makes_an_acknowledgement_that_asks() {
        let (vip, client) = (addr("198.51.100.1:443"), addr("192.0.2.9:1"));
        let packet = packet(vip, client, None);
        assert_eq!(packet[IP_BYTES + 13], FLAG_ACK);
        assert!(is_right(vip, client, &packet[IP_BYTES..]));
    }
}
