//! The addresses and the packets of one family, for tests that run for both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{PORT, privileged};

/// A family of addresses.
#[derive(Debug)]
pub struct Family {
    pub client: IpAddr,
    pub vip: IpAddr,
    /// Each host's own address, beside the VIP.
    pub hosts: [IpAddr; 2],
    /// The length of a network of one address.
    pub prefix: u8,
    /// An address that never answers.
    pub nobody: &'static str,
    /// An address of the other family.
    pub foreign: &'static str,
    /// The offset of TCP in a packet, behind an IP header without options.
    pub tcp_at: usize,
    pub source_at: usize,
    pub target_at: usize,
    /// The offsets of the checksums over the addresses.
    checksums: &'static [usize],
    /// The first byte of such a packet without traffic class, and the offset of its protocol.
    first: u8,
    protocol_at: usize,
    /// `EtherType`.
    pub ether_type: u16,
}

pub const IPV4: Family = Family {
    client: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)),
    vip: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    hosts: [
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 11)),
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 12)),
    ],
    prefix: 32,
    nobody: "192.0.2.9:9",
    foreign: "[2001:db8::1]:5",
    tcp_at: 20,
    source_at: 12,
    target_at: 16,
    checksums: &[10, 36],
    first: 0x45,
    protocol_at: 9,
    ether_type: 0x0800,
};

pub const IPV6: Family = Family {
    client: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)),
    vip: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1)),
    hosts: [
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x11)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x12)),
    ],
    prefix: 128,
    nobody: "[2001:db8:9::9]:9",
    foreign: "192.0.2.1:5",
    tcp_at: 40,
    source_at: 8,
    target_at: 24,
    checksums: &[56],
    first: 0x60,
    protocol_at: 6,
    ether_type: 0x86dd,
};

/// Runs a test for IPv4 and for IPv6, if it can run.
pub fn both_families(test: impl Fn(&'static Family)) {
    if privileged() {
        test(&IPV4);
        test(&IPV6);
    }
}

impl Family {
    pub fn service(&self) -> SocketAddr {
        SocketAddr::new(self.vip, PORT)
    }

    /// Whether this is a TCP packet of the family.
    pub fn is_tcp(&self, packet: &[u8]) -> bool {
        // The other bits of the first byte are the traffic class of IPv6, or the length of IPv4's
        // header.
        let mask = if self.vip.is_ipv4() { 0xff } else { 0xf0 };
        packet.len() >= self.tcp_at + 20
            && packet[0] & mask == self.first
            && packet[self.protocol_at] == 6
    }

    pub fn octets(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        }
    }

    /// Whether a packet comes from `source`.
    pub fn is_from(&self, packet: &[u8], source: SocketAddr) -> bool {
        let address = Self::octets(source.ip());
        packet[self.source_at..self.source_at + address.len()] == address
            && packet[self.tcp_at..self.tcp_at + 2] == source.port().to_be_bytes()
    }

    /// Makes `new` the source of a packet.
    pub fn set_source(&self, packet: &mut [u8], new: SocketAddr) {
        self.readdress(packet, self.source_at, self.tcp_at, new);
    }

    /// Makes `new` the target of a packet.
    pub fn set_target(&self, packet: &mut [u8], new: SocketAddr) {
        self.readdress(packet, self.target_at, self.tcp_at + 2, new);
    }

    /// Replaces an address and a port, and updates the checksums (RFC 1624).
    fn readdress(&self, packet: &mut [u8], address_at: usize, port_at: usize, new: SocketAddr) {
        let address = Self::octets(new.ip());
        for (n, word) in address.chunks_exact(2).enumerate() {
            replace(
                packet,
                address_at + 2 * n,
                [word[0], word[1]],
                self.checksums,
            );
        }
        let of_tcp = &self.checksums[self.checksums.len() - 1..];
        replace(packet, port_at, new.port().to_be_bytes(), of_tcp);
    }
}

fn replace(packet: &mut [u8], at: usize, new: [u8; 2], checksums: &[usize]) {
    let word = |p: &[u8], at: usize| u32::from(u16::from_be_bytes([p[at], p[at + 1]]));
    let old = word(packet, at);
    let new_word = u32::from(u16::from_be_bytes(new));
    for sum_at in checksums {
        let mut sum = (!word(packet, *sum_at) & 0xffff) + (!old & 0xffff) + new_word;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        packet[*sum_at..*sum_at + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
    }
    packet[at..at + 2].copy_from_slice(&new);
}
