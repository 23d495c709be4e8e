//! The generic cell rate algorithm: a token bucket whose state is one time.

/// A rate, and how many requests may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Time in ns in which one request is admitted.
    interval_ns: u64,
    /// Time in ns in which as many are admitted as may come at once.
    burst_ns: u64,
}

impl Rate {
    /// `count` requests in `period_ns`, of which `burst` may come at once. Zeros count as ones.
    #[must_use]
    pub fn new(count: u32, period_ns: u64, burst: u32) -> Self {
        let interval_ns = (period_ns / u64::from(count.max(1))).max(1);
        Self {
            interval_ns,
            burst_ns: interval_ns.saturating_mul(burst.max(1).into()),
        }
    }

    /// Time in ns in which one request is admitted.
    #[must_use]
    pub fn interval_ns(self) -> u64 {
        self.interval_ns
    }

    /// Whether a request is admitted at `now_ns`, if all before it are paid for until
    /// `paid_until_ns`. Returns the time until which it is paid for then.
    ///
    /// # Errors
    /// The time in ns to wait.
    pub fn admit(self, paid_until_ns: u64, now_ns: u64) -> Result<u64, u64> {
        let until_ns = paid_until_ns.max(now_ns).saturating_add(self.interval_ns);
        match until_ns.saturating_sub(now_ns).checked_sub(self.burst_ns) {
            None | Some(0) => Ok(until_ns),
            Some(wait_ns) => Err(wait_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_burst_is_admitted_and_then_the_rate() {
        let rate = Rate::new(10, SECOND, 3);
        let mut paid = 0;
        let mut admitted = Vec::new();
        for now in (0..SECOND).step_by(10_000_000) {
            if let Ok(until) = rate.admit(paid, now) {
                paid = until;
                admitted.push(now / 10_000_000);
            }
        }
        assert_eq!(admitted, [0, 1, 2, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
        assert_eq!(rate.admit(2 * SECOND, SECOND), Err(8 * SECOND / 10));
        assert_eq!(
            rate.admit(u64::MAX, SECOND),
            Err(u64::MAX - SECOND - 3 * SECOND / 10)
        );
    }

    #[test]
    fn no_rate_divides_by_zero_or_admits_nothing() {
        assert_eq!(Rate::new(0, 0, 0), Rate::new(1, 1, 1));
        assert_eq!(
            Rate::new(1, 3_600 * SECOND, 0).admit(0, 5),
            Ok(3_600 * SECOND + 5)
        );
    }
}
