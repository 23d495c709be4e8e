//! Tells clients that nobody owns their connection any more.
//!
//! If the switch has seen the owner's packets, it knows the sequence number that the client
//! expects, and a reset with it ends the connection at once. Otherwise, or after a loss, the
//! segment draws an acknowledgement (RFC 9293, section 3.10.7.4; RFC 5961). This goes to a
//! frontend, whose kernel does not know the connection and answers with the right reset. A
//! client that gets no segment finds out when it next sends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use prism_proto::control::FlowKey;
use prism_proto::wire::ip_bytes;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

const SEGMENT_BYTES: usize = 20;
/// The protocol number of raw IP: the header is ours.
const IPPROTO_RAW: i32 = 255;
const IPPROTO_TCP: u8 = 6;
const HOP_LIMIT: u8 = 64;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;

/// Sends resets. It opens the socket of a family with the first one.
#[derive(Debug, Default)]
pub(crate) struct Resetter {
    v4: Option<Socket>,
    v6: Option<Socket>,
}

impl Resetter {
    /// Resets the client of `flow`, which expects `next_seq`.
    pub(crate) fn reset(&mut self, flow: &FlowKey, next_seq: Option<u32>) {
        if let Err(error) = self.try_reset(flow, next_seq) {
            tracing::warn!(client = %flow.client, %error, "cannot reset a client whose owner has died");
        }
    }

    fn try_reset(&mut self, flow: &FlowKey, next_seq: Option<u32>) -> io::Result<()> {
        let packet = packet(flow.vip, flow.client, next_seq)?;
        // The port of a raw socket's destination has no meaning.
        let to = SockAddr::from(SocketAddr::new(flow.client.ip(), 0));
        self.socket(flow.client.ip())?.send_to(&packet, &to)?;
        Ok(())
    }

    /// The socket for packets to `client`.
    fn socket(&mut self, client: IpAddr) -> io::Result<&Socket> {
        let (place, domain) = match client {
            IpAddr::V4(_) => (&mut self.v4, Domain::IPV4),
            IpAddr::V6(_) => (&mut self.v6, Domain::IPV6),
        };
        let socket = match place.take() {
            Some(socket) => socket,
            None => {
                let protocol = Some(Protocol::from(IPPROTO_RAW));
                let socket = Socket::new(domain, Type::RAW, protocol)?;
                socket.set_nonblocking(true)?;
                socket
            }
        };
        Ok(place.insert(socket))
    }
}

/// The packet to a client. The ends of a flow are of one family.
fn packet(from: SocketAddr, to: SocketAddr, next_seq: Option<u32>) -> io::Result<Vec<u8>> {
    let mut packet = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ip4_header(from, to),
        (IpAddr::V6(from), IpAddr::V6(to)) => ip6_header(from, to),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    packet.extend(segment(from, to, next_seq));
    Ok(packet)
}

/// An IPv4 header without length, identification and checksum, which the kernel fills in.
fn ip4_header(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    const DONT_FRAGMENT: u8 = 0x40;
    let fixed = [
        0x45,
        0,
        0,
        0,
        0,
        0,
        DONT_FRAGMENT,
        0,
        HOP_LIMIT,
        IPPROTO_TCP,
        0,
        0,
    ];
    [&fixed[..], &from.octets(), &to.octets()].concat()
}

/// An IPv6 header, of which the kernel fills in nothing.
fn ip6_header(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let fixed = [
        0x60,
        0,
        0,
        0,
        0,
        SEGMENT_BYTES as u8,
        IPPROTO_TCP,
        HOP_LIMIT,
    ];
    [&fixed[..], &from.octets(), &to.octets()].concat()
}

/// A reset, or a bare acknowledgement if the sequence number is not known: the client would
/// ignore a reset with a wrong number.
fn segment(from: SocketAddr, to: SocketAddr, next_seq: Option<u32>) -> [u8; SEGMENT_BYTES] {
    let flags = next_seq.map_or(FLAG_ACK, |_| FLAG_RST);
    let seq = next_seq.unwrap_or_else(|| fastrand::u32(..));
    let ([a, b], [c, d]) = (from.port().to_be_bytes(), to.port().to_be_bytes());
    let [e, f, g, h] = seq.to_be_bytes();
    let mut segment = [
        a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0,
    ];
    let check = checksum(from.ip(), to.ip(), &segment);
    if let Some(field) = segment.get_mut(16..18) {
        field.copy_from_slice(&check.to_be_bytes());
    }
    segment
}

/// The checksum of a TCP segment with its pseudo-header (RFC 9293, section 3.1). The prefix of
/// a mapped address has no sum, so both families have the same.
fn checksum(from: IpAddr, to: IpAddr, segment: &[u8; SEGMENT_BYTES]) -> u16 {
    let pseudo = [ip_bytes(from), ip_bytes(to)].concat();
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

    const FLOWS: [(&str, &str, usize); 2] = [
        ("198.51.100.1:80", "192.0.2.9:50000", 20),
        ("[2001:db8::1]:443", "[2001:db8:ffff::9]:50000", 40),
    ];

    /// The sum over pseudo-header and segment, with its checksum, is all ones.
    fn is_right(addresses: &[u8], segment: &[u8]) -> bool {
        let all = [addresses, &[0, 6, 0, 20], segment].concat();
        let sum: u32 = all
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn a_known_sequence_number_makes_a_reset_with_a_right_checksum() {
        for (vip, client, ip_bytes) in FLOWS {
            let (vip, client) = (vip.parse().unwrap(), client.parse().unwrap());
            for seq in [0, 1, 0xdead_beef, u32::MAX] {
                let packet = packet(vip, client, Some(seq)).unwrap();
                let (ip, tcp) = packet.split_at(ip_bytes);
                let addresses = &ip[if ip_bytes == 20 { 12 } else { 8 }..];
                assert_eq!(tcp[13], FLAG_RST);
                assert_eq!(tcp[4..8], seq.to_be_bytes());
                assert!(is_right(addresses, tcp));
            }
        }
    }

    #[test]
    fn an_unknown_one_makes_an_acknowledgement_that_asks() {
        for (vip, client, ip_bytes) in FLOWS {
            let (vip, client) = (vip.parse().unwrap(), client.parse().unwrap());
            let packet = packet(vip, client, None).unwrap();
            assert_eq!(packet[ip_bytes + 13], FLAG_ACK);
        }
    }
}
