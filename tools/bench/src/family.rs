//! The families of addresses that a benchmark of the switch runs with.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// The families of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Families {
    /// IPv4
    #[value(name = "4")]
    V4,
    /// IPv6
    #[value(name = "6")]
    V6,
    /// Both, in turns
    #[value(name = "dual")]
    Dual,
}

impl Families {
    pub(crate) fn list(self) -> &'static [Family] {
        match self {
            Self::V4 => &[Family::V4],
            Self::V6 => &[Family::V6],
            Self::Dual => &[Family::V4, Family::V6],
        }
    }
}

impl Family {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The address of these four numbers. Addresses in one IPv4 network of 24 bits are in one
    /// IPv6 network of 112.
    pub(crate) fn host(self, numbers: [u8; 4]) -> IpAddr {
        let [a, b, c, d] = numbers.map(u16::from);
        match self {
            Self::V4 => IpAddr::from(numbers),
            Self::V6 => Ipv6Addr::new(0xfd64, 0, 0, 0, a, b, c, d).into(),
        }
    }

    pub(crate) fn at(self, numbers: [u8; 4], port: u16) -> SocketAddr {
        SocketAddr::new(self.host(numbers), port)
    }

    /// The command that has a host forward packets.
    pub(crate) fn forwarding(self) -> &'static str {
        match self {
            Self::V4 => "echo 1 > /proc/sys/net/ipv4/ip_forward",
            Self::V6 => "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
        }
    }
}

/// An address with the length of its network, as `ip addr add` takes it. An IPv6 address is
/// usable at once, because nobody else can have it.
pub(crate) fn on_link(address: IpAddr) -> String {
    match address {
        IpAddr::V4(_) => format!("{address}/24"),
        IpAddr::V6(_) => format!("{address}/112 nodad"),
    }
}

/// An address for the loopback device.
pub(crate) fn alone(address: IpAddr) -> String {
    match address {
        IpAddr::V4(_) => format!("{address}/32"),
        IpAddr::V6(_) => format!("{address}/128 nodad"),
    }
}
