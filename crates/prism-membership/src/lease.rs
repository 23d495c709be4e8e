//! A lease: the time for which this node may do something without hearing from etcd.
//!
//! - A backend has one in etcd, and serves from its store under it. The other backends go on
//!   without a backend whose lease has ended in etcd.
//! - Each node has one of its own for its users. Without it a key that this node knows may have
//!   been deleted. etcd does not know of this lease.
//!
//! The node counts from before its request, and a tenth less. By its own clock it has
//! therefore stopped before others go on.
//!
//! Not here: renewing the leases (`etcd_state::hold`, `etcd_state::follow`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds of a clock that goes on while the machine sleeps (`CLOCK_BOOTTIME`).
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The end of a lease that never ends.
const FOR_EVER: u64 = u64::MAX;

/// The lease of this node. Clones are the same lease.
#[derive(Clone, Debug)]
pub struct Lease(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The end of the lease by [`now_ns`]; 0 without a lease.
    until_ns: AtomicU64,
    /// The time of the last request that etcd has granted.
    asked_ns: AtomicU64,
    /// A count of leases.
    term: AtomicU64,
}

/// The term of a lease under which some work began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm(u64);

impl Lease {
    /// The lease of a cluster whose members do not change.
    pub fn for_ever() -> Self {
        Self(Arc::new(Inner {
            until_ns: AtomicU64::new(FOR_EVER),
            ..Inner::default()
        }))
    }

    /// A lease that etcd has not granted yet.
    pub(super) fn none() -> Self {
        Self(Arc::default())
    }

    /// Whether the lease lasts.
    pub fn is_valid(&self) -> bool {
        self.begin().is_some()
    }

    /// The present term, for the start of a read or a change. `None`: this node must not
    /// serve.
    pub fn begin(&self) -> Option<LeaseTerm> {
        // Read first, so that the term is the one of this end or a later one.
        let until_ns = self.0.until_ns.load(Ordering::Acquire);
        let term = self.0.term.load(Ordering::Acquire);
        let is_valid = until_ns == FOR_EVER || now_ns() < until_ns;
        is_valid.then_some(LeaseTerm(term))
    }

    /// Whether the lease has lasted since `begin`. A node asks this before it answers. A lease
    /// that was lost and granted again does not count, because the cluster may have gone on
    /// in between.
    pub fn is_still(&self, term: LeaseTerm) -> bool {
        self.begin() == Some(term)
    }

    /// The remaining time; `None` if the lease never ends.
    pub fn left(&self) -> Option<Duration> {
        match self.0.until_ns.load(Ordering::Acquire) {
            FOR_EVER => None,
            until => Some(Duration::from_nanos(until.saturating_sub(now_ns()))),
        }
    }

    /// The time since the last request that etcd has granted.
    pub fn silence(&self) -> Duration {
        let asked_ns = self.0.asked_ns.load(Ordering::Acquire);
        Duration::from_nanos(now_ns().saturating_sub(asked_ns))
    }

    /// Begins or prolongs the lease. etcd has granted `ttl` to a request of the time `asked_ns`.
    pub(super) fn extend(&self, asked_ns: u64, ttl: Duration) {
        let ttl_ns = u64::try_from(ttl.as_nanos()).unwrap_or(0);
        let until = asked_ns.saturating_add(ttl_ns - ttl_ns / 10);
        // A lease that has ended meanwhile begins a new term.
        if !self.is_valid() {
            self.0.term.fetch_add(1, Ordering::AcqRel);
        }
        self.0.asked_ns.fetch_max(asked_ns, Ordering::AcqRel);
        self.0.until_ns.fetch_max(until, Ordering::AcqRel);
    }

    /// Ends the lease.
    pub(super) fn end(&self) {
        self.0.until_ns.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn a_lease_ends_by_itself_before_its_time() {
        let lease = Lease::none();
        assert!(!lease.is_valid());
        lease.extend(now_ns(), Duration::from_millis(100));
        assert!(lease.is_valid());
        assert!(lease.left().unwrap() <= Duration::from_millis(90));
        std::thread::sleep(Duration::from_millis(91));
        assert!(!lease.is_valid());
    }

    #[test]
    fn what_began_under_one_lease_does_not_end_under_another() {
        let lease = Lease::none();
        let ttl = Duration::from_secs(60);
        lease.extend(now_ns(), ttl);
        let term = lease.begin().unwrap();
        lease.extend(now_ns(), ttl);
        assert!(lease.is_still(term));
        lease.end();
        assert!(!lease.is_still(term));
        lease.extend(now_ns(), ttl);
        assert!(lease.is_valid() && !lease.is_still(term));
        // The same if its end was not noticed.
        let term = lease.begin().unwrap();
        lease.0.until_ns.store(1, Ordering::Release);
        assert!(!lease.is_still(term));
        lease.extend(now_ns(), ttl);
        assert!(lease.is_valid() && !lease.is_still(term));
    }

    #[test]
    fn an_answer_that_comes_late_shortens_nothing() {
        let lease = Lease::none();
        let now = now_ns();
        lease.extend(now, Duration::from_secs(60));
        lease.extend(now - 1_000_000_000, Duration::from_secs(60));
        assert!(lease.left().unwrap() > Duration::from_secs(53));
        assert!(lease.silence() < Duration::from_secs(1));
        assert_eq!(Lease::for_ever().left(), None);
        assert!(Lease::for_ever().is_valid());
    }
}
