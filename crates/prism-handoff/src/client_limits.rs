//! Bounds on the client connections of a process, which may change while it runs.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

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
#[derive(Debug)]
pub struct ClientLimits {
    connections: AtomicU64,
    per_address: AtomicU32,
    timeout_ms: AtomicU64,
    unknown_per_address: AtomicU32,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self::new(CONNECTIONS, NewcomerLimits::default())
    }
}

impl ClientLimits {
    /// At most so many connections, and these bounds on newcomers.
    pub fn new(connections: u64, newcomers: NewcomerLimits) -> Self {
        let limits = Self {
            connections: AtomicU64::new(connections),
            per_address: AtomicU32::default(),
            timeout_ms: AtomicU64::default(),
            unknown_per_address: AtomicU32::default(),
        };
        limits.set(connections, newcomers);
        limits
    }

    /// Changes the bounds for connections that are accepted from now on.
    pub fn set(&self, connections: u64, newcomers: NewcomerLimits) {
        let timeout_ms = u64::try_from(newcomers.timeout.as_millis()).unwrap_or(u64::MAX);
        self.connections.store(connections, Ordering::Relaxed);
        self.per_address
            .store(newcomers.per_address, Ordering::Relaxed);
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
        self.unknown_per_address
            .store(newcomers.unknown_per_address, Ordering::Relaxed);
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn newcomers(&self) -> NewcomerLimits {
        NewcomerLimits {
            per_address: self.per_address.load(Ordering::Relaxed),
            timeout: Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed)),
            unknown_per_address: self.unknown_per_address.load(Ordering::Relaxed),
        }
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
