//! Bounds on the client connections of a process, which may change while it runs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::newcomers::NewcomerLimits;

/// The largest number of client connections of a process by default.
const CONNECTIONS: u64 = 100_000;

/// Bounds on the client connections of a process. All of its threads share them.
#[derive(Debug)]
pub struct ClientLimits {
    connections: AtomicU64,
    per_address: AtomicU32,
    timeout_ms: AtomicU64,
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
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn newcomers(&self) -> NewcomerLimits {
        NewcomerLimits {
            per_address: self.per_address.load(Ordering::Relaxed),
            timeout: Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed)),
        }
    }
}
