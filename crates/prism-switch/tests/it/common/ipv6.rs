//! IPv6 addresses of tests.

use std::net::{IpAddr, Ipv6Addr};

pub const IS_V6: bool = true;
/// Bytes of an IP header without extensions.
pub const IP_BYTES: usize = 40;
/// Length of the networks that hosts of tests are in, and a flag: each address is usable at once.
pub const ON_LINK: &str = "/112 nodad";
pub const ALONE: &str = "/128 nodad";
/// The file that has a host forward packets.
pub const FORWARDING: &str = "/proc/sys/net/ipv6/conf/all/forwarding";

/// The address of these numbers.
pub const fn host([a, b, c, d]: [u8; 4]) -> IpAddr {
    let [a, b, c, d] = [a as u16, b as u16, c as u16, d as u16];
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, a, b, c, d))
}

/// The numbers of an address.
pub fn numbers(ip: IpAddr) -> [u8; 4] {
    match ip {
        IpAddr::V6(ip) => {
            let [_, _, _, _, a, b, c, d] = ip.segments();
            [a, b, c, d].map(|n| u8::try_from(n).unwrap())
        }
        IpAddr::V4(_) => panic!("{ip} is not of the test's family"),
    }
}
