//! The pace of background work: a bound on bytes per second. An idle time does not allow a burst
//! afterwards. Reads no clock.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The pace of one worker.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes per second; 0 for no bound.
    rate: Cell<u64>,
    /// The end of the time that the bytes so far may take.
    until: Cell<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(rate: u64) -> Self {
        Self {
            rate: Cell::new(rate),
            until: Cell::new(None),
        }
    }

    /// Changes the rate for bytes that are counted from now on.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.rate.set(rate);
    }

    /// Counts `bytes`, and returns the time to wait after them.
    pub(crate) fn wait_after(&self, bytes: u64, now: Instant) -> Duration {
        let rate = self.rate.get();
        if rate == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let begins = self.until.get().map_or(now, |until| until.max(now));
        // A time that the clock cannot express is not waited for.
        let Some(until) = begins.checked_add(takes) else {
            return Duration::ZERO;
        };
        self.until.set(Some(until));
        until - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_at_the_same_time_shares_the_pace_and_a_rest_is_not_made_up_for() {
        let (pace, now) = (Pace::new(1000), Instant::now());
        assert_eq!(pace.wait_after(500, now), Duration::from_millis(500));
        assert_eq!(pace.wait_after(500, now), Duration::from_millis(1000));
        let later = now + Duration::from_millis(900);
        assert_eq!(pace.wait_after(100, later), Duration::from_millis(200));
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.wait_after(100, later), Duration::from_millis(100));
        assert_eq!(Pace::new(0).wait_after(u64::MAX, now), Duration::ZERO);
    }
}
