//! The load of this node's link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Relaying stops while answers take more than one of this number of bytes of the link.
const LINK_SHARE: u64 = 2;
/// Bytes of an answer on the link besides its body: its head, TLS records, packet headers and
/// acknowledgements; for a relayed answer also the request.
const AROUND_BYTES: u64 = 600;
/// The largest burst, as the time that half of the link needs for it.
const AHEAD: Duration = Duration::from_millis(10);
/// The longest backlog that is counted.
const LONGEST_BUSY: Duration = Duration::from_secs(1);

/// The load of a link, as the time at which half of the link would have sent all answers so far.
/// An idle time does not allow a longer burst afterwards.
#[derive(Debug)]
pub struct Link {
    /// 0 if the speed is unknown.
    ns_per_kib: AtomicU64,
    begun: Instant,
    /// The end of the backlog, in ns from `begun`.
    until_ns: AtomicU64,
}

impl Link {
    /// A link of `mbit_s` Mbit/s; 0 if its speed is unknown.
    pub fn new(mbit_s: u32) -> Self {
        Self {
            ns_per_kib: AtomicU64::new(ns_per_kib(mbit_s)),
            begun: Instant::now(),
            until_ns: AtomicU64::new(0),
        }
    }

    /// Changes the speed of the link, as in [`Link::new`].
    pub fn set_mbit_s(&self, mbit_s: u32) {
        self.ns_per_kib.store(ns_per_kib(mbit_s), Ordering::Relaxed);
    }

    /// Whether the speed of the link is known.
    pub fn is_known(&self) -> bool {
        self.ns_per_kib.load(Ordering::Relaxed) > 0
    }

    /// Whether the link has room for a relayed answer. Always true for an unknown link.
    pub fn is_free(&self, now: Instant) -> bool {
        let ahead = Duration::from_nanos(self.until_ns.load(Ordering::Relaxed));
        ahead <= Duration::from_nanos(self.ns(now)) + AHEAD
    }

    /// Counts an answer whose body has `bytes`.
    pub fn answered(&self, bytes: u64) {
        if self.is_known() {
            self.takes(bytes.saturating_add(AROUND_BYTES), Instant::now());
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun).as_nanos()).unwrap_or(u64::MAX)
    }

    fn takes(&self, bytes: u64, now: Instant) {
        let ns_per_kib = self.ns_per_kib.load(Ordering::Relaxed);
        let takes_ns = u128::from(bytes) * u128::from(ns_per_kib) / 1024;
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        let now_ns = self.ns(now);
        let most_ns = now_ns.saturating_add(LONGEST_BUSY.as_nanos() as u64);
        let later = |until_ns: u64| {
            let until_ns = until_ns.max(now_ns).saturating_add(takes_ns);
            Some(until_ns.min(most_ns))
        };
        let stored = Ordering::Relaxed;
        let seen = Ordering::Relaxed;
        // The closure never returns `None`.
        let _ = self.until_ns.fetch_update(stored, seen, later);
    }
}

/// The time in which half of a link of `mbit_s` Mbit/s sends a KiB; 0 for an unknown speed.
fn ns_per_kib(mbit_s: u32) -> u64 {
    let ns = (LINK_SHARE * 1024 * 8 * 1_000).checked_div(mbit_s.into());
    ns.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relaying_leaves_half_of_the_link() {
        let link = Link::new(100);
        let begun = Instant::now();
        let relay = |from: Duration, own_bytes: u64| {
            let mut relayed_bytes = 0;
            for us in 0..1_000_000 {
                let now = begun + from + Duration::from_micros(us);
                if us % 100 == 0 {
                    link.takes(own_bytes, now);
                }
                if link.is_free(now) {
                    link.takes(5_000, now);
                    relayed_bytes += 5_000;
                }
            }
            // Of 12.5 MB in a second.
            relayed_bytes as f64 / 12.5e6
        };
        let alone = relay(Duration::ZERO, 0);
        assert!((0.5..0.52).contains(&alone), "{alone}");
        // Answers of its own take a quarter, then three quarters.
        let beside = relay(Duration::from_secs(10), 312);
        assert!((0.25..0.27).contains(&beside), "{beside}");
        let behind = relay(Duration::from_secs(20), 937);
        assert!(behind < 0.02, "{behind}");
        let later = begun + Duration::from_secs(30);
        link.takes(u64::MAX, later);
        assert!(!link.is_free(later) && link.is_free(later + LONGEST_BUSY));
        let unknown = Link::new(0);
        unknown.answered(u64::MAX);
        assert!(!unknown.is_known() && unknown.is_free(Instant::now()));
    }
}
