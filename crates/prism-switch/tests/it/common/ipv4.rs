//! IPv4 addresses of tests.

use std::net::{IpAddr, Ipv4Addr};

pub const IS_V6: bool = false;
/// Bytes of an IP header without options.
pub const IP_BYTES: usize = 20;
/// Length of the networks that hosts of tests are in.
pub const ON_LINK: &str = "/24";
pub const ALONE: &str = "/32";
/// The file that has a host forward packets.
pub const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// The address of these numbers.
pub const fn host([a, b, c, d]: [u8; 4]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// The numbers of an address.
pub fn numbers(ip: IpAddr) -> [u8; 4] {
    match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => panic!("{ip} is not of the test's family"),
    }
}
