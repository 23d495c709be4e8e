//! How fast something may go on in the background: so many bytes per second on average,
//! and nothing saved up for later. Reads no clock.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The pace of one worker.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes per second; 0 for as fast as it goes.
    rate: u64,
    /// Until when what went on so far takes.
    until: Cell<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(rate: u64) -> Self {
        Self {
            rate,
            until: Cell::new(None),
        }
    }

    /// How long to wait after these bytes.
    pub(crate) fn after(&self, bytes: u64, now: Instant) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let begins = self.until.get().map_or(now, |until| until.max(now));
        // Beyond what a clock can say, nothing waits.
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
        assert_eq!(pace.after(500, now), Duration::from_millis(500));
        assert_eq!(pace.after(500, now), Duration::from_millis(1000));
        let later = now + Duration::from_millis(900);
        assert_eq!(pace.after(100, later), Duration::from_millis(200));
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.after(100, later), Duration::from_millis(100));
        assert_eq!(Pace::new(0).after(u64::MAX, now), Duration::ZERO);
    }
}
