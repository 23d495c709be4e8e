//! The rate at which clients may change buckets whose records are in etcd. Each change leaves a
//! revision of the whole record there, until etcd compacts it. An etcd whose database is full takes
//! no change at all, of any cluster that shares it.
//!
//! Each bucket and each access key has a token bucket at each node; nodes do not add theirs up.
//! Keys of administrators have no rate of their own, and quotas, which `prism ctl` sets, do not
//! count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_s3::Principal;

/// One bucket: 60 changes at once, then 10 a minute.
const OF_BUCKET: Rate = Rate {
    burst: 60,
    interval: Duration::from_secs(6),
};
/// One key: 300 changes at once, then 30 a minute.
const OF_KEY: Rate = Rate {
    burst: 300,
    interval: Duration::from_secs(2),
};
/// The most names of a table, at most 200 bytes each. Beyond, the name that has spent least is
/// forgotten first.
const NAMES_MAX: usize = 8_192;

/// A rate of changes.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// The most changes at once.
    burst: u32,
    /// The time in which one more is allowed.
    interval: Duration,
}

/// The last changes of buckets by clients.
#[derive(Debug, Default)]
pub(crate) struct ChangeRates(Mutex<Spent>);

#[derive(Debug, Default)]
struct Spent {
    buckets: Spenders,
    keys: Spenders,
}

/// The time at which each name has all of its changes again.
#[derive(Debug, Default)]
struct Spenders(HashMap<String, Instant>);

impl ChangeRates {
    /// The time until `caller` may change the bucket; `None` if it may now. An administrator is no
    /// caller here.
    pub(crate) fn wait(
        &self,
        bucket: &str,
        caller: Option<&Principal>,
        now: Instant,
    ) -> Option<Duration> {
        let spent = self.0.lock();
        let of_bucket = spent.buckets.wait(OF_BUCKET, bucket, now);
        let of_key = caller.and_then(|caller| spent.keys.wait(OF_KEY, name_of(caller), now));
        of_bucket.max(of_key)
    }

    /// Counts a change. One that is under way may have been allowed before others were counted; the
    /// next ones wait for longer then.
    pub(crate) fn add(&self, bucket: &str, caller: Option<&Principal>, now: Instant) {
        let mut spent = self.0.lock();
        spent.buckets.add(OF_BUCKET, bucket, now);
        if let Some(caller) = caller {
            spent.keys.add(OF_KEY, name_of(caller), now);
        }
    }
}

impl Spenders {
    fn wait(&self, rate: Rate, name: &str, now: Instant) -> Option<Duration> {
        let full_at = self.0.get(name)?;
        let refill = full_at.saturating_duration_since(now) + rate.interval;
        let wait = refill.saturating_sub(rate.interval * rate.burst);
        (!wait.is_zero()).then_some(wait)
    }

    fn add(&mut self, rate: Rate, name: &str, now: Instant) {
        if self.0.len() >= NAMES_MAX && !self.0.contains_key(name) {
            self.make_room(now);
        }
        let full_at = self.0.entry(name.to_owned()).or_insert(now);
        *full_at = (*full_at).max(now) + rate.interval;
    }

    /// Forgets the names that have all of their changes again, or else the one that is next.
    fn make_room(&mut self, now: Instant) {
        self.0.retain(|_, full_at| *full_at > now);
        if self.0.len() < NAMES_MAX {
            return;
        }
        let next = self.0.iter().min_by_key(|(_, full_at)| **full_at);
        if let Some(next) = next.map(|(name, _)| name.clone()) {
            self.0.remove(&next);
        }
    }
}

/// The name of a caller. Anonymous ones share one that no key has.
fn name_of(caller: &Principal) -> &str {
    match caller {
        Principal::AccessKey(key) => key,
        Principal::Anonymous => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Principal {
        Principal::AccessKey(name.into())
    }

    /// The number of changes until one has to wait.
    fn changes(rates: &ChangeRates, bucket: &str, caller: &Principal, now: Instant) -> u32 {
        let mut count = 0;
        while rates.wait(bucket, Some(caller), now).is_none() {
            rates.add(bucket, Some(caller), now);
            count += 1;
        }
        count
    }

    #[test]
    fn a_bucket_has_a_burst_and_then_its_rate_whoever_changes_it() {
        let rates = ChangeRates::default();
        let now = Instant::now();
        assert_eq!(changes(&rates, "b", &key("one"), now), OF_BUCKET.burst);
        let wait = rates.wait("b", Some(&key("two")), now);
        assert_eq!(wait, Some(OF_BUCKET.interval));
        assert_eq!(rates.wait("other", Some(&key("one")), now), None);
        let later = now + Duration::from_mins(1);
        assert_eq!(changes(&rates, "b", &key("two"), later), 10);
        let much_later = later + Duration::from_hours(1);
        assert_eq!(
            changes(&rates, "b", &key("two"), much_later),
            OF_BUCKET.burst
        );
    }

    #[test]
    fn a_key_has_a_burst_and_then_its_rate_over_all_buckets() {
        let rates = ChangeRates::default();
        let now = Instant::now();
        let caller = key("one");
        let of_all = |now| -> u32 {
            let buckets = (0..20).map(|n| changes(&rates, &format!("b{n}"), &caller, now));
            buckets.sum()
        };
        assert_eq!(of_all(now), OF_KEY.burst);
        assert_eq!(rates.wait("new", Some(&key("two")), now), None);
        assert_eq!(rates.wait("new", Some(&Principal::Anonymous), now), None);
        assert_eq!(of_all(now + Duration::from_mins(1)), 30);
        for n in 0..2 * OF_KEY.burst {
            let bucket = format!("of an administrator {n}");
            assert_eq!(rates.wait(&bucket, None, now), None);
            rates.add(&bucket, None, now);
        }
    }

    #[test]
    fn changes_that_were_allowed_at_the_same_time_are_paid_for_later() {
        let rates = ChangeRates::default();
        let now = Instant::now();
        for _ in 0..OF_BUCKET.burst + 10 {
            rates.add("b", Some(&key("one")), now);
        }
        let wait = rates.wait("b", Some(&key("one")), now);
        assert_eq!(wait, Some(OF_BUCKET.interval * 11));
    }

    #[test]
    fn the_names_are_bounded_and_a_busy_one_stays() {
        let rates = ChangeRates::default();
        let now = Instant::now();
        let busy = key("busy");
        changes(&rates, "busy", &busy, now);
        for n in 0..2 * NAMES_MAX {
            rates.add(&format!("b{n}"), Some(&key(&format!("k{n}"))), now);
        }
        let spent = rates.0.lock();
        let sizes = [&spent.buckets, &spent.keys].map(|spenders| spenders.0.len());
        assert_eq!(sizes, [NAMES_MAX; 2]);
        drop(spent);
        assert!(rates.wait("busy", Some(&busy), now).is_some());
    }
}
