//! The TCP packets of a pcap file, by their heads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const ETHERNET: u32 = 1;
/// The number of TCP in the head of an IP packet.
const TCP: u8 = 6;

/// The head of one TCP packet. A packet that the network card will cut counts once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) sequence: u32,
    pub(super) bytes: u32,
    pub(super) is_syn: bool,
    pub(super) is_reset: bool,
}

/// The TCP packets of a pcap file as tcpdump writes it on this machine.
pub(super) fn parse(mut file: &[u8]) -> Option<Vec<Segment>> {
    let header = take(&mut file, 24)?;
    let magic = u32::from_ne_bytes(*header.first_chunk()?);
    let link = u32::from_ne_bytes(*header.get(20..)?.first_chunk()?);
    if ![0xa1b2_c3d4, 0xa1b2_3c4d].contains(&magic) || link != ETHERNET {
        return None;
    }
    let mut segments = Vec::new();
    while !file.is_empty() {
        let record = take(&mut file, 16)?;
        let length = u32::from_ne_bytes(*record.get(8..)?.first_chunk()?);
        let frame = take(&mut file, length as usize)?;
        segments.extend(parse_frame(frame));
    }
    Some(segments)
}

/// None for other packets than TCP.
fn parse_frame(mut frame: &[u8]) -> Option<Segment> {
    let ethernet = take(&mut frame, 14)?;
    let ip = match ethernet.get(12..14)? {
        [0x08, 0x00] => parse_v4(&mut frame),
        [0x86, 0xdd] => parse_v6(&mut frame),
        _ => None,
    }?;
    let tcp = take(&mut frame, 20)?;
    let port = |at: usize| Some(u16::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
    let flags = *tcp.get(13)?;
    Some(Segment {
        source: (ip.source, port(0)?).into(),
        target: (ip.target, port(2)?).into(),
        sequence: u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?),
        bytes: ip
            .payload_bytes
            .saturating_sub(u32::from(tcp.get(12)? >> 4) * 4),
        is_syn: flags & 2 != 0,
        is_reset: flags & 4 != 0,
    })
}

/// The head of an IP packet of TCP.
struct IpHead {
    source: IpAddr,
    target: IpAddr,
    /// Bytes of the head of TCP and what follows it.
    payload_bytes: u32,
}

fn parse_v4(packet: &mut &[u8]) -> Option<IpHead> {
    let head_bytes = usize::from(packet.first()? & 0xf) * 4;
    let head = take(packet, head_bytes.max(20))?;
    let address = |at: usize| Some(Ipv4Addr::from(*head.get(at..)?.first_chunk::<4>()?).into());
    let total_bytes = u16::from_be_bytes(*head.get(2..)?.first_chunk()?);
    (*head.get(9)? == TCP).then_some(())?;
    Some(IpHead {
        source: address(12)?,
        target: address(16)?,
        payload_bytes: u32::from(total_bytes).saturating_sub(head_bytes as u32),
    })
}

/// None for packets with extension headers, which no host of a lab sends with TCP.
fn parse_v6(packet: &mut &[u8]) -> Option<IpHead> {
    let head = take(packet, 40)?;
    let address = |at: usize| Some(Ipv6Addr::from(*head.get(at..)?.first_chunk::<16>()?).into());
    (*head.get(6)? == TCP).then_some(())?;
    Some(IpHead {
        source: address(8)?,
        target: address(24)?,
        payload_bytes: u16::from_be_bytes(*head.get(4..)?.first_chunk()?).into(),
    })
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(head)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]
    use super::*;

    /// From port 80 to port 51200: a reset and ACK with seven bytes, of which none is recorded.
    const TCP_HEAD: [u8; 20] = [
        0, 80, 200, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x50, 0x14, 0, 0, 0, 0, 0, 0,
    ];

    fn v4() -> Vec<u8> {
        let ethernet = [&[0; 12][..], &[8, 0]].concat();
        let ip = [
            0x45, 0, 0, 47, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        [&ethernet[..], &ip, &TCP_HEAD].concat()
    }

    fn v6() -> Vec<u8> {
        let ethernet = [&[0; 12][..], &[0x86, 0xdd]].concat();
        let ends = ["fd64::1", "fd64::2"].map(|end| end.parse::<Ipv6Addr>().unwrap().octets());
        let ip = [&[0x60, 0, 0, 0, 0, 27, 6, 64][..], &ends.concat()].concat();
        [&ethernet[..], &ip, &TCP_HEAD].concat()
    }

    fn file(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0, 0, 0, 128, ETHERNET] {
            file.extend(word.to_ne_bytes());
        }
        for frame in frames {
            let len = u32::try_from(frame.len()).unwrap();
            for word in [0, 0, len, len + 7] {
                file.extend(word.to_ne_bytes());
            }
            file.extend(frame);
        }
        file
    }

    #[test]
    fn a_capture_becomes_segments_of_both_families_and_a_cut_one_is_refused() {
        let segment = |source: &str, target: &str| Segment {
            source: source.parse().unwrap(),
            target: target.parse().unwrap(),
            sequence: 256,
            bytes: 7,
            is_syn: false,
            is_reset: true,
        };
        let file = file(&[v4(), v6()]);
        let expected = [
            segment("10.0.0.1:80", "10.0.0.2:51200"),
            segment("[fd64::1]:80", "[fd64::2]:51200"),
        ];
        assert_eq!(parse(&file).unwrap(), expected);
        assert!(parse(&file[..file.len() - 1]).is_none());
        assert!(parse(b"no capture").is_none());
    }

    #[test]
    fn other_packets_than_tcp_are_left_out() {
        let (mut udp, mut icmp, mut arp) = (v4(), v6(), v4());
        udp[14 + 9] = 17;
        icmp[14 + 6] = 58;
        arp[13] = 6;
        let short = v6()[..14 + 40 + 19].to_vec();
        assert_eq!(parse(&file(&[udp, icmp, arp, short])).unwrap(), []);
    }
}
