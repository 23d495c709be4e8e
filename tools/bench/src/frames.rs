//! Frames for runs of the eBPF program without an interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
/// EtherType for experiments (IEEE 802), which the switch ignores.
const FOREIGN: [u8; 2] = [0x88, 0xb5];

/// An Ethernet frame with an IP packet of the largest hop limit. Its IPv4 checksum is right,
/// that of UDP or TCP is not.
fn ip_frame(from: SocketAddr, to: SocketAddr, protocol: u8, l4: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([8, 0]);
            frame.extend(ip4_header(from, to, protocol, l4.len()));
        }
        (from, to) => {
            let length = u16::try_from(l4.len()).unwrap_or(u16::MAX).to_be_bytes();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length);
            frame.extend([protocol, 255]);
            frame.extend([from, to].map(prism_proto::wire::ip_bytes).concat());
        }
    }
    frame.extend(l4);
    frame
}

fn ip4_header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, l4_bytes: usize) -> Vec<u8> {
    let total = u16::try_from(20 + l4_bytes).unwrap_or(u16::MAX);
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 255, protocol, 0, 0]);
    ip.extend(from.octets());
    ip.extend(to.octets());
    let word = |pair: &[u8]| {
        pair.iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte))
    };
    let mut sum: u32 = ip.chunks_exact(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let check = !u16::try_from(sum).unwrap_or(0);
    ip.splice(10..12, check.to_be_bytes());
    ip
}

/// Bytes of a frame before the layer 4.
fn l3_bytes(addr: SocketAddr) -> usize {
    ETHERNET_BYTES + if addr.is_ipv4() { 20 } else { 40 }
}

/// The offset of the payload in a frame of [`udp`].
pub(crate) fn udp_payload_at(addr: SocketAddr) -> usize {
    l3_bytes(addr) + UDP_BYTES
}

/// A frame that is not IP.
pub(crate) fn foreign_frame(bytes: usize) -> Vec<u8> {
    let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let mut frame = frame(nobody, nobody, bytes);
    frame.splice(12..14, FOREIGN);
    frame
}

/// Whether a frame is not IP.
pub(crate) fn is_foreign(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&FOREIGN)
}

fn ports(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut l4 = from.port().to_be_bytes().to_vec();
    l4.extend(to.port().to_be_bytes());
    l4
}

/// A frame with a UDP datagram.
pub(crate) fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut l4 = ports(from, to);
    l4.extend(u16::try_from(8 + payload.len()).unwrap_or(0).to_be_bytes());
    // The switch does not verify checksums; in IPv6 there must be one.
    l4.extend([u8::from(from.is_ipv6()); 2]);
    l4.extend(payload);
    ip_frame(from, to, 17, &l4)
}

/// A TCP frame of `bytes` bytes, or of its headers if they are longer, with ACK set.
pub(crate) fn frame(from: SocketAddr, to: SocketAddr, bytes: usize) -> Vec<u8> {
    let mut l4 = ports(from, to);
    l4.extend([
        0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0x12, 0x34, 0, 0,
    ]);
    l4.resize(bytes.saturating_sub(l3_bytes(from)).max(l4.len()), 0);
    ip_frame(from, to, 6, &l4)
}
