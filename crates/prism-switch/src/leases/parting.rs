//! How the connection of a run ended, and how long the run may then be away.

use std::io;
use std::time::Duration;

use super::table::RunEnd;

/// The time in which a run whose connection has ended may return before it counts as dead. A
/// node that lost only the connection dials again after 50 ms.
pub const LEASE_GRACE: Duration = Duration::from_millis(500);

/// The grace of a run whose host was out of reach. Its link may come and go in step with the
/// keepalives, and the node needs a moment to notice that it has no lease.
pub(super) const OUT_OF_REACH_GRACE: Duration = Duration::from_millis(4500);
/// How the connection of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parting {
    pub(super) end: RunEnd,
    /// The time in which the run may return.
    pub(super) grace: Duration,
}

impl Parting {
    /// The run announced it.
    pub(super) const LEFT: Self = Self {
        end: RunEnd::Left,
        grace: LEASE_GRACE,
    };
    /// Its kernel closed it.
    pub(super) const CLOSED: Self = Self {
        end: RunEnd::Died,
        grace: LEASE_GRACE,
    };
    /// Its host did not answer.
    const OUT_OF_REACH: Self = Self {
        end: RunEnd::Died,
        grace: OUT_OF_REACH_GRACE,
    };

    pub(super) fn after_error(error: &io::Error) -> Self {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        match error.kind() {
            // An ICMP error for a keepalive replaces the timeout.
            TimedOut | HostUnreachable | NetworkUnreachable => Self::OUT_OF_REACH,
            _ => Self::CLOSED,
        }
    }
}
