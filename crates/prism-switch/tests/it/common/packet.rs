//! Packets, written and checked without the code under test.

use std::net::{IpAddr, SocketAddr};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;
/// Sequence and acknowledgement numbers for tests that do not depend on them.
const NUMBERS: (u32, u32) = (0x0102_0304, 0x0506_0708);
/// Source of the Ethernet frames of tests.
pub const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// The address of the loopback device, which runs test packets.
const OWN_MAC: [u8; 6] = [0; 6];

/// One's complement sum of 16-bit words, folded and inverted.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

/// The checksum of layer 4 with its pseudo-header.
fn l4_checksum(source: IpAddr, dest: IpAddr, protocol: u8, l4: &[u8]) -> u16 {
    let rest = [0, protocol];
    let length = (l4.len() as u16).to_be_bytes();
    checksum(&[&bytes(source), &bytes(dest), &rest, &length, l4])
}

/// An IP packet. `options` are IPv4 options (a multiple of four bytes), or the content of a
/// header of destination options in IPv6.
pub fn ip(
    source: IpAddr,
    dest: IpAddr,
    protocol: u8,
    ttl: u8,
    options: &[u8],
    l4: &[u8],
) -> Vec<u8> {
    match source {
        IpAddr::V4(_) => ip4(source, dest, protocol, ttl, options, l4),
        IpAddr::V6(_) if options.is_empty() => ip6(source, dest, protocol, ttl, l4),
        IpAddr::V6(_) => {
            let payload = [&extension(protocol, options)[..], l4].concat();
            ip6(source, dest, DESTINATION_OPTIONS, ttl, &payload)
        }
    }
}

fn ip4(source: IpAddr, dest: IpAddr, protocol: u8, ttl: u8, options: &[u8], l4: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let mut p = vec![0x40 | (header / 4) as u8, 0];
    p.extend(((header + l4.len()) as u16).to_be_bytes());
    p.extend([0x12, 0x34, 0x40, 0, ttl, protocol, 0, 0]);
    p.extend(bytes(source));
    p.extend(bytes(dest));
    p.extend(options);
    let sum = checksum(&[&p]);
    p[10..12].copy_from_slice(&sum.to_be_bytes());
    p.extend(l4);
    p
}

/// An IPv6 packet, whose payload may begin with extension headers.
pub fn ip6(source: IpAddr, dest: IpAddr, protocol: u8, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![0x60, 0, 0x12, 0x34];
    p.extend((payload.len() as u16).to_be_bytes());
    p.extend([protocol, ttl]);
    p.extend(bytes(source));
    p.extend(bytes(dest));
    p.extend(payload);
    p
}

pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const AUTHENTICATION: u8 = 51;
pub const DESTINATION_OPTIONS: u8 = 60;

/// An extension header of IPv6, filled up with zeros (padding).
pub fn extension(next: u8, content: &[u8]) -> Vec<u8> {
    let units = (2 + content.len()).div_ceil(8);
    let mut header = vec![next, (units - 1) as u8];
    header.extend(content);
    header.resize(units * 8, 0);
    header
}

/// An extension header: its number and content.
pub type Header = (u8, &'static [u8]);

pub const HOP: Header = (HOP_BY_HOP, &[5, 2, 0, 0]);
pub const OPTIONS: Header = (DESTINATION_OPTIONS, &[1, 4, 0, 0, 0, 0]);
/// A route whose last segment is reached, and one with a segment left.
pub const ROUTED: Header = (ROUTING, &[4, 0, 0, 0, 0, 0]);
pub const ROUTE: Header = (ROUTING, &[4, 1, 0, 0, 0, 0]);
/// A header of a whole packet, of a first and of a later fragment.
pub const ATOMIC: Header = (FRAGMENT, &[0, 0, 1, 2, 3, 4]);
pub const FIRST: Header = (FRAGMENT, &[0, 1, 1, 2, 3, 4]);
pub const LATER: Header = (FRAGMENT, &[0, 8, 1, 2, 3, 4]);
pub const AUTHENTICATED: Header = (AUTHENTICATION, &[0; 22]);
pub const LONG: Header = (DESTINATION_OPTIONS, &[0; 206]);

/// A TCP packet behind extension headers of IPv6.
pub fn extended(from: SocketAddr, to: SocketAddr, headers: &[Header]) -> Vec<u8> {
    let mut payload = tcp_segment(from, to, ACK, b"hello");
    let mut next = 6;
    for (number, content) in headers.iter().rev() {
        payload = [extension(next, content), payload].concat();
        next = *number;
    }
    ethernet(&ip6(from.ip(), to.ip(), next, 64, &payload))
}

pub fn ethernet(ip: &[u8]) -> Vec<u8> {
    let mut frame = OWN_MAC.to_vec();
    frame.extend(SENDER_MAC);
    frame.extend(if ip[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    });
    frame.extend(ip);
    frame
}

/// Puts tags (IEEE 802.1Q) of these VLANs into a frame, the outer one first.
pub fn tagged(mut frame: Vec<u8>, vlans: &[u16]) -> Vec<u8> {
    const PRIORITY: u16 = 5 << 13;
    for vlan in vlans.iter().rev() {
        let [high, low] = (PRIORITY | vlan).to_be_bytes();
        frame.splice(12..12, [0x81, 0, high, low]);
    }
    frame
}

/// A TCP segment, with its checksum for these addresses.
pub fn tcp_segment(source: SocketAddr, dest: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    numbered_segment(source, dest, NUMBERS, flags, payload)
}

fn numbered_segment(
    source: SocketAddr,
    dest: SocketAddr,
    (seq, ack): (u32, u32),
    flags: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut t = source.port().to_be_bytes().to_vec();
    t.extend(dest.port().to_be_bytes());
    t.extend(seq.to_be_bytes());
    t.extend(ack.to_be_bytes());
    t.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    t.extend(payload);
    let sum = l4_checksum(source.ip(), dest.ip(), 6, &t);
    t[16..18].copy_from_slice(&sum.to_be_bytes());
    t
}

pub struct Tcp {
    pub source: SocketAddr,
    pub dest: SocketAddr,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub ttl: u8,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Tcp {
    pub fn new(source: SocketAddr, dest: SocketAddr) -> Self {
        Self {
            source,
            dest,
            flags: ACK,
            seq: NUMBERS.0,
            ack: NUMBERS.1,
            ttl: 64,
            options: vec![],
            payload: b"hello".to_vec(),
        }
    }

    pub fn build(&self) -> Vec<u8> {
        let numbers = (self.seq, self.ack);
        let segment = numbered_segment(self.source, self.dest, numbers, self.flags, &self.payload);
        let (source, dest) = (self.source.ip(), self.dest.ip());
        ethernet(&ip(source, dest, 6, self.ttl, &self.options, &segment))
    }
}

pub fn udp(source: SocketAddr, dest: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut u = source.port().to_be_bytes().to_vec();
    u.extend(dest.port().to_be_bytes());
    u.extend(((8 + payload.len()) as u16).to_be_bytes());
    u.extend([0, 0]);
    u.extend(payload);
    let sum = l4_checksum(source.ip(), dest.ip(), 17, &u);
    // Zero would mean that there is no checksum (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    u[6..8].copy_from_slice(&sum.to_be_bytes());
    ethernet(&ip(source.ip(), dest.ip(), 17, 64, &[], &u))
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// An ICMP error from `source` that quotes `quoted`, an IP packet.
pub fn icmp_error(source: IpAddr, dest: IpAddr, kind: u8, code: u8, quoted: &[u8]) -> Vec<u8> {
    let mut i = vec![kind, code, 0, 0, 0, 0, 5, 0xdc];
    i.extend(quoted);
    let (protocol, sum) = match source {
        IpAddr::V4(_) => (ICMP, checksum(&[&i])),
        IpAddr::V6(_) => (ICMPV6, l4_checksum(source, dest, ICMPV6, &i)),
    };
    i[2..4].copy_from_slice(&sum.to_be_bytes());
    ethernet(&ip(source, dest, protocol, 64, &[], &i))
}

/// Makes a frame a fragment, by a field as IPv4 has it.
pub fn fragment(frame: Vec<u8>, field: u16) -> Vec<u8> {
    match frame[14] >> 4 {
        4 => fragment4(frame, field),
        _ => fragment6(frame, field),
    }
}

fn fragment4(mut frame: Vec<u8>, field: u16) -> Vec<u8> {
    frame[20..22].copy_from_slice(&field.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn fragment6(mut frame: Vec<u8>, field: u16) -> Vec<u8> {
    let (offset, more) = (field & 0x1fff, field >> 13 & 1);
    let [high, low] = (offset << 3 | more).to_be_bytes();
    let header = [frame[20], 0, high, low, 0x12, 0x34, 0x56, 0x78];
    frame[20] = FRAGMENT;
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame.splice(54..54, header);
    frame
}

/// An IP packet taken apart.
struct Split<'a> {
    source: IpAddr,
    dest: IpAddr,
    hop_limit: u8,
    protocol: u8,
    l4: &'a [u8],
}

fn addr(packet: &[u8], at: usize) -> IpAddr {
    match packet[0] >> 4 {
        4 => <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap().into(),
        _ => <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap().into(),
    }
}

fn split(packet: &[u8]) -> Split<'_> {
    if packet[0] >> 4 == 4 {
        return Split {
            source: addr(packet, 12),
            dest: addr(packet, 16),
            hop_limit: packet[8],
            protocol: packet[9],
            l4: &packet[usize::from(packet[0] & 15) * 4..],
        };
    }
    let (mut protocol, mut at) = (packet[6], 40);
    while [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS].contains(&protocol) {
        protocol = packet[at];
        at += 8 * (1 + usize::from(packet[at + 1]));
    }
    Split {
        source: addr(packet, 8),
        dest: addr(packet, 24),
        hop_limit: packet[7],
        protocol,
        l4: &packet[at..],
    }
}

/// Whether every checksum of a frame is right: IPv4, and TCP, UDP or ICMP in full, and the IPv4
/// header that an ICMP error quotes.
pub fn verify(frame: &[u8]) {
    let packet = &frame[14..];
    let is_v4 = packet[0] >> 4 == 4;
    let at = if is_v4 { 2 } else { 4 };
    let length = usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let total = if is_v4 { length } else { 40 + length };
    assert_eq!(total, packet.len(), "length");
    let s = split(packet);
    if is_v4 {
        let header = packet.len() - s.l4.len();
        assert_eq!(checksum(&[&packet[..header]]), 0, "IP checksum");
    }
    if s.protocol == ICMP {
        assert_eq!(checksum(&[s.l4]), 0, "ICMP checksum");
        let quoted = usize::from(s.l4[8] & 15) * 4;
        assert_eq!(checksum(&[&s.l4[8..8 + quoted]]), 0, "quoted IP checksum");
    } else {
        let sum = l4_checksum(s.source, s.dest, s.protocol, s.l4);
        assert_eq!(sum, 0, "checksum of {frame:02x?}");
    }
}

pub struct Parsed<'a> {
    pub dest_mac: [u8; 6],
    pub ttl: u8,
    pub source: SocketAddr,
    pub dest: SocketAddr,
    pub payload: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// A TCP or UDP packet.
    pub fn new(frame: &'a [u8]) -> Self {
        let s = split(&frame[14..]);
        let port = |at: usize| u16::from_be_bytes([s.l4[at], s.l4[at + 1]]);
        let l4_header = match s.protocol {
            6 => usize::from(s.l4[12] >> 4) * 4,
            _ => 8,
        };
        Self {
            dest_mac: frame[..6].try_into().unwrap(),
            ttl: s.hop_limit,
            source: SocketAddr::new(s.source, port(0)),
            dest: SocketAddr::new(s.dest, port(2)),
            payload: &s.l4[l4_header..],
        }
    }
}

/// An ICMP error taken apart: its source and destination, and those of the quoted packet.
pub struct Quoting {
    pub source: IpAddr,
    pub dest: IpAddr,
    pub quoted_source: SocketAddr,
    pub quoted_dest: IpAddr,
}

impl Quoting {
    pub fn new(frame: &[u8]) -> Self {
        let outer = split(&frame[14..]);
        let quoted = &outer.l4[8..];
        let inner = split(quoted);
        let port = u16::from_be_bytes([inner.l4[0], inner.l4[1]]);
        Self {
            source: outer.source,
            dest: outer.dest,
            quoted_source: SocketAddr::new(inner.source, port),
            quoted_dest: inner.dest,
        }
    }
}
