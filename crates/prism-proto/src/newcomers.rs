//! Connections whose client has not authenticated yet.
//!
//! Anybody can open them, so their number is bounded for each address and in total. An address at
//! its limit gets no more; at the total limit the oldest newcomer is closed. Honest clients
//! authenticate within a short time, so many silent ones do not keep them out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The largest numbers of newcomers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// From one address.
    pub per_address: u32,
    /// Together.
    pub in_all: usize,
}

/// All newcomers; `T` tells one of them to give way.
#[derive(Debug, Default)]
pub struct Newcomers<T> {
    next: u64,
    /// The oldest first.
    by_age: BTreeMap<u64, (IpAddr, T)>,
    by_address: HashMap<IpAddr, u32>,
}

/// A newcomer that has entered.
#[derive(Debug, PartialEq, Eq)]
pub struct Entered<T> {
    /// Its number, for [`Newcomers::leave`].
    pub age: u64,
    /// The newcomer that has to give way to it.
    pub gives_way: Option<T>,
}

impl<T> Newcomers<T> {
    /// Adds one from `address`; `None` if the address has too many.
    pub fn enter(&mut self, address: IpAddr, bounds: Bounds, tell: T) -> Option<Entered<T>> {
        let count = self.by_address.get(&address).copied().unwrap_or(0);
        if count >= bounds.per_address {
            return None;
        }
        let gives_way = if self.by_age.len() >= bounds.in_all {
            self.oldest_before(self.next)
        } else {
            None
        };
        *self.by_address.entry(address).or_default() += 1;
        let age = self.next;
        self.next += 1;
        self.by_age.insert(age, (address, tell));
        Some(Entered { age, gives_way })
    }

    /// Removes the oldest one if it came before the one of this number.
    pub fn oldest_before(&mut self, age: u64) -> Option<T> {
        let oldest = *self.by_age.first_key_value()?.0;
        (oldest < age).then(|| self.leave(oldest)).flatten()
    }

    /// Removes one that has authenticated or ended. `None` if it was told to give way, as it is
    /// removed already.
    pub fn leave(&mut self, age: u64) -> Option<T> {
        let (address, tell) = self.by_age.remove(&age)?;
        if let Some(count) = self.by_address.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
        Some(tell)
    }
}

/// The interval between two lines of the log about events that anybody can cause.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// An event that anybody can cause, and that is logged seldom.
#[derive(Debug, Default)]
pub struct LogThrottle {
    said: Option<Instant>,
    times: u64,
}

impl LogThrottle {
    /// Counts the event. Returns the number since the last line of the log, if a line is due.
    pub fn count_event(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        let is_early =
            (self.said).is_some_and(|said| now.saturating_duration_since(said) < SAID_EVERY);
        if is_early {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Bounds = Bounds {
        per_address: 2,
        in_all: 3,
    };

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn an_address_has_no_more_than_its_share_and_others_have_theirs() {
        let mut all = Newcomers::default();
        let mut enter = |last| all.enter(address(last), MOST, last).map(|e| e.age);
        assert_eq!((enter(1), enter(1), enter(1)), (Some(0), Some(1), None));
        assert_eq!(enter(2), Some(2));
        all.leave(0);
        all.leave(0);
        assert!(all.enter(address(1), MOST, 1).is_some());
        assert!(all.enter(address(1), MOST, 1).is_none());
    }

    #[test]
    fn the_oldest_gives_way_and_nothing_is_left_of_those_that_are_gone() {
        let mut all = Newcomers::default();
        for n in 0..100 {
            let entered = all.enter(address(n), MOST, n);
            let gives_way = n.checked_sub(3);
            let age = u64::from(n);
            assert_eq!(entered, Some(Entered { age, gives_way }));
        }
        assert_eq!(all.oldest_before(97), None);
        assert_eq!(all.oldest_before(98), Some(97));
        for age in 0..100 {
            all.leave(age);
        }
        assert!(all.by_age.is_empty() && all.by_address.is_empty());
        assert_eq!(all.oldest_before(u64::MAX), None);
    }

    #[test]
    fn what_happens_often_is_said_seldom_and_counted() {
        let (mut throttle, begun) = (LogThrottle::default(), Instant::now());
        let mut at = |ms| throttle.count_event(begun + Duration::from_millis(ms));
        assert_eq!(at(0), Some(1));
        assert_eq!((at(1), at(9_999), at(10_000)), (None, None, Some(3)));
    }
}
