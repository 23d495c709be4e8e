//! Bounds on the client connections of a process, which may change while it runs.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use parking_lot::RwLock;

use crate::newcomers::NewcomerLimits;

/// The largest number of client connections of a process by default.
const CONNECTIONS: u64 = 100_000;

/// The bits of an IPv6 address that tell one client from another: a host usually has a whole /64
/// (RFC 4291, section 2.5.1), and may use any address of it.
const CLIENT_PREFIX_BITS: u32 = 64;

/// The address that a client's connections count for: its own, or the first one of its IPv6
/// network.
pub(crate) fn counted_as(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(v6) => {
            let mask = u128::MAX << (u128::BITS - CLIENT_PREFIX_BITS);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
        v4 => v4,
    }
}

/// Bounds on the client connections of a process. All of its threads share them.
#[derive(Debug, Default)]
pub struct ClientLimits(RwLock<ClientBounds>);

/// The bounds of [`ClientLimits`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientBounds {
    /// The largest number of connections. Default 100,000.
    pub connections: u64,
    /// Bounds on newcomers.
    pub newcomers: NewcomerLimits,
    /// The networks of proxies, whose addresses stand for many clients: no bound for one address
    /// applies.
    pub proxies: Vec<IpNet>,
    /// Their connections begin with a header of the PROXY protocol.
    pub proxies_send_headers: bool,
}

impl Default for ClientBounds {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            newcomers: NewcomerLimits::default(),
            proxies: Vec::new(),
            proxies_send_headers: false,
        }
    }
}

impl ClientBounds {
    fn has_proxy(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.proxies
            .iter()
            .any(|network| network.contains(&address))
    }
}

impl ClientLimits {
    /// With these bounds.
    #[must_use]
    pub fn new(bounds: ClientBounds) -> Self {
        Self(bounds.into())
    }

    /// Changes the bounds for connections that are accepted from now on.
    pub fn set(&self, bounds: ClientBounds) {
        *self.0.write() = bounds;
    }

    pub(crate) fn connections(&self) -> u64 {
        self.0.read().connections
    }

    /// The bounds for connections from `client`.
    pub(crate) fn newcomers_of(&self, client: IpAddr) -> NewcomerLimits {
        let now = self.0.read();
        let mut limits = now.newcomers;
        if now.has_proxy(client) {
            (limits.per_address, limits.unknown_per_address) = (u32::MAX, u32::MAX);
        }
        limits
    }

    /// Whether connections from `client` begin with a header of the PROXY protocol.
    pub(crate) fn sends_header(&self, client: IpAddr) -> bool {
        let now = self.0.read();
        now.proxies_send_headers && now.has_proxy(client)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clients_of_one_ipv6_network_count_together() {
        let counted = |text: &str| counted_as(text.parse().unwrap()).to_string();
        assert_eq!(counted("192.0.2.7"), "192.0.2.7");
        assert_eq!(counted("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_ne!(counted("2001:db8:1:3::6"), counted("2001:db8:1:2::6"));
    }
}
