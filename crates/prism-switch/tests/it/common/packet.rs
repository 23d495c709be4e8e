//! Packets, written and checked without the code under test.

use std::net::SocketAddrV4;

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

fn pseudo(ip: &[u8], l4: &[u8]) -> Vec<u8> {
    let mut bytes = ip[12..20].to_vec();
    bytes.extend([0, ip[9]]);
    bytes.extend((l4.len() as u16).to_be_bytes());
    bytes
}

/// An IPv4 packet with the given options (a multiple of four bytes).
pub fn ip(
    source: [u8; 4],
    dest: [u8; 4],
    protocol: u8,
    ttl: u8,
    options: &[u8],
    l4: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    let mut p = vec![0x40 | (header / 4) as u8, 0];
    p.extend(((header + l4.len()) as u16).to_be_bytes());
    p.extend([0x12, 0x34, 0x40, 0, ttl, protocol, 0, 0]);
    p.extend(source);
    p.extend(dest);
    p.extend(options);
    let sum = checksum(&[&p]);
    p[10..12].copy_from_slice(&sum.to_be_bytes());
    p.extend(l4);
    p
}

pub fn ethernet(ip: &[u8]) -> Vec<u8> {
    let mut frame = OWN_MAC.to_vec();
    frame.extend(SENDER_MAC);
    frame.extend([8, 0]);
    frame.extend(ip);
    frame
}

/// A TCP segment, with its checksum for these addresses.
pub fn tcp_segment(source: SocketAddrV4, dest: SocketAddrV4, flags: u8, payload: &[u8]) -> Vec<u8> {
    numbered_segment(source, dest, NUMBERS, flags, payload)
}

fn numbered_segment(
    source: SocketAddrV4,
    dest: SocketAddrV4,
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
    let header = ip(source.ip().octets(), dest.ip().octets(), 6, 64, &[], &t);
    let sum = checksum(&[&pseudo(&header, &t), &t]);
    t[16..18].copy_from_slice(&sum.to_be_bytes());
    t
}

pub struct Tcp {
    pub source: SocketAddrV4,
    pub dest: SocketAddrV4,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub ttl: u8,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Tcp {
    pub fn new(source: SocketAddrV4, dest: SocketAddrV4) -> Self {
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
        let (source, dest) = (self.source.ip().octets(), self.dest.ip().octets());
        ethernet(&ip(source, dest, 6, self.ttl, &self.options, &segment))
    }
}

pub fn udp(source: SocketAddrV4, dest: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let mut u = source.port().to_be_bytes().to_vec();
    u.extend(dest.port().to_be_bytes());
    u.extend(((8 + payload.len()) as u16).to_be_bytes());
    u.extend([0, 0]);
    u.extend(payload);
    let p = ip(source.ip().octets(), dest.ip().octets(), 17, 64, &[], &u);
    let sum = checksum(&[&pseudo(&p, &u), &u]);
    // Zero would mean that there is no checksum (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    u[6..8].copy_from_slice(&sum.to_be_bytes());
    ethernet(&ip(
        source.ip().octets(),
        dest.ip().octets(),
        17,
        64,
        &[],
        &u,
    ))
}

/// An ICMP error from `source` that quotes `quoted`, an IPv4 packet.
pub fn icmp_error(source: [u8; 4], dest: [u8; 4], kind: u8, code: u8, quoted: &[u8]) -> Vec<u8> {
    let mut i = vec![kind, code, 0, 0, 0, 0, 5, 0xdc];
    i.extend(quoted);
    let sum = checksum(&[&i]);
    i[2..4].copy_from_slice(&sum.to_be_bytes());
    ethernet(&ip(source, dest, 1, 64, &[], &i))
}

/// Sets the fragment field of a frame's IP header.
pub fn fragment(mut frame: Vec<u8>, field: u16) -> Vec<u8> {
    frame[20..22].copy_from_slice(&field.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Whether every checksum of a frame is right: IP, and TCP, UDP or ICMP in full, and the IP
/// header that an ICMP error quotes.
pub fn verify(frame: &[u8]) {
    let packet = &frame[14..];
    let header = usize::from(packet[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    assert_eq!(total, packet.len(), "length");
    let (ip, l4) = packet.split_at(header);
    assert_eq!(checksum(&[ip]), 0, "IP checksum");
    match ip[9] {
        1 => {
            assert_eq!(checksum(&[l4]), 0, "ICMP checksum");
            let quoted = usize::from(l4[8] & 15) * 4;
            assert_eq!(checksum(&[&l4[8..8 + quoted]]), 0, "quoted IP checksum");
        }
        _ => assert_eq!(
            checksum(&[&pseudo(ip, l4), l4]),
            0,
            "TCP or UDP checksum of {frame:02x?}"
        ),
    }
}

pub struct Parsed<'a> {
    pub dest_mac: [u8; 6],
    pub ttl: u8,
    pub source: SocketAddrV4,
    pub dest: SocketAddrV4,
    pub payload: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// A TCP or UDP packet.
    pub fn new(frame: &'a [u8]) -> Self {
        let ip = &frame[14..];
        let header = usize::from(ip[0] & 15) * 4;
        let l4 = &ip[header..];
        let addr = |at: usize, port: usize| {
            let a: [u8; 4] = ip[at..at + 4].try_into().unwrap();
            SocketAddrV4::new(a.into(), u16::from_be_bytes([l4[port], l4[port + 1]]))
        };
        let l4_header = if ip[9] == 6 {
            usize::from(l4[12] >> 4) * 4
        } else {
            8
        };
        Self {
            dest_mac: frame[..6].try_into().unwrap(),
            ttl: ip[8],
            source: addr(12, 0),
            dest: addr(16, 2),
            payload: &l4[l4_header..],
        }
    }
}
