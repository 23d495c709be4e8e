//! Frames for runs of the eBPF program without an interface.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Ethernet, IPv4 and UDP.
pub(crate) const HEADERS_UDP: usize = 14 + 20 + 8;

/// An Ethernet frame with an IPv4 packet of the largest TTL. Its IP checksum is right, that of
/// UDP or TCP is not.
fn ip_frame(from: SocketAddrV4, to: SocketAddrV4, protocol: u8, l4: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + l4.len()).unwrap_or(u16::MAX);
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 255, protocol, 0, 0]);
    ip.extend(from.ip().octets());
    ip.extend(to.ip().octets());
    let mut sum: u32 = ip
        .chunks_exact(2)
        .map(|pair| {
            pair.iter()
                .fold(0, |word, byte| word << 8 | u32::from(*byte))
        })
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let check = !u16::try_from(sum).unwrap_or(0);
    ip.splice(10..12, check.to_be_bytes());
    let mut frame = vec![0; 12];
    frame.extend([8, 0]);
    frame.extend(ip);
    frame.extend(l4);
    frame
}

/// EtherType for experiments (IEEE 802), which the switch ignores.
const FOREIGN: [u8; 2] = [0x88, 0xb5];

/// A frame that is not IP.
pub(crate) fn foreign_frame(bytes: usize) -> Vec<u8> {
    let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let mut frame = frame(nobody, nobody, bytes);
    frame.splice(12..14, FOREIGN);
    frame
}

/// Whether a frame is not IP.
pub(crate) fn is_foreign(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&FOREIGN)
}

fn ports(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut l4 = from.port().to_be_bytes().to_vec();
    l4.extend(to.port().to_be_bytes());
    l4
}

/// A frame with a UDP datagram.
pub(crate) fn udp(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let mut l4 = ports(from, to);
    l4.extend(u16::try_from(8 + payload.len()).unwrap_or(0).to_be_bytes());
    l4.extend([0, 0]);
    l4.extend(payload);
    ip_frame(from, to, 17, &l4)
}

/// A TCP frame of `bytes` bytes with ACK set.
pub(crate) fn frame(from: SocketAddrV4, to: SocketAddrV4, bytes: usize) -> Vec<u8> {
    let mut l4 = ports(from, to);
    l4.extend([
        0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0x12, 0x34, 0, 0,
    ]);
    l4.resize(bytes - 34, 0);
    ip_frame(from, to, 6, &l4)
}
