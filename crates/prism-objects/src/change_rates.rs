//! The rate at which clients may change buckets whose records are in etcd. Each change leaves a
//! revision of the whole record there, until etcd compacts it. An etcd whose database is full takes
//! no change at all, of any cluster that shares it.
//!
//! Each bucket and each access key has a token bucket at each node; nodes do not add theirs up.
//! Keys of administrators have no rate of their own, and quotas, which `prism ctl` sets, do not
//! count.

use std::time::{Duration, Instant};

use prism_limits::{Rate, Rates, key_of};
use prism_s3::Principal;

const MINUTE_NS: u64 = 60_000_000_000;
/// Changes of one bucket at once, and then in a minute.
const OF_BUCKET: [u32; 2] = [60, 10];
/// Changes by one key at once, and then in a minute.
const OF_KEY: [u32; 2] = [300, 30];

/// The last changes of buckets by clients.
#[derive(Debug)]
pub(crate) struct ChangeRates {
    rates: Rates,
    begun: Instant,
}

impl Default for ChangeRates {
    fn default() -> Self {
        Self {
            rates: Rates::default(),
            begun: Instant::now(),
        }
    }
}

impl ChangeRates {
    /// The time until `caller` may change the bucket; `None` if it may now. An administrator is no
    /// caller here.
    pub(crate) fn wait(
        &self,
        bucket: &str,
        caller: Option<&Principal>,
        now: Instant,
    ) -> Option<Duration> {
        let now_ns = self.ns_of(now);
        let waits =
            spenders(bucket, caller).map(|(key, rate)| self.rates.wait_ns(key, rate, now_ns));
        waits.max().filter(|ns| *ns > 0).map(Duration::from_nanos)
    }

    /// Counts a change. One that is under way may have been allowed before others were counted; the
    /// next ones wait for longer then.
    pub(crate) fn add(&self, bucket: &str, caller: Option<&Principal>, now: Instant) {
        for (key, rate) in spenders(bucket, caller) {
            self.rates.spend(key, rate, self.ns_of(now));
        }
    }

    fn ns_of(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.begun);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The bucket and the caller, for both of which a change counts. Anonymous callers share a name
/// that no key has.
fn spenders<'s>(
    bucket: &'s str,
    caller: Option<&'s Principal>,
) -> impl Iterator<Item = (u64, Rate)> + 's {
    let rate = |[burst, per_minute]: [u32; 2]| Rate::new(per_minute, MINUTE_NS, burst);
    let name = caller.map(|caller| match caller {
        Principal::AccessKey(key) => key.as_str(),
        Principal::Anonymous => "",
    });
    let of_key = name.map(|name| (key_of("key", name.as_bytes()), rate(OF_KEY)));
    let of_bucket = (key_of("bucket", bucket.as_bytes()), rate(OF_BUCKET));
    [of_bucket].into_iter().chain(of_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET_INTERVAL: Duration = Duration::from_secs(6);

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
        assert_eq!(changes(&rates, "b", &key("one"), now), OF_BUCKET[0]);
        let wait = rates.wait("b", Some(&key("two")), now);
        assert_eq!(wait, Some(BUCKET_INTERVAL));
        assert_eq!(rates.wait("other", Some(&key("one")), now), None);
        let later = now + Duration::from_mins(1);
        assert_eq!(changes(&rates, "b", &key("two"), later), 10);
        let much_later = later + Duration::from_hours(1);
        assert_eq!(changes(&rates, "b", &key("two"), much_later), OF_BUCKET[0]);
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
        assert_eq!(of_all(now), OF_KEY[0]);
        assert_eq!(rates.wait("new", Some(&key("two")), now), None);
        assert_eq!(rates.wait("new", Some(&Principal::Anonymous), now), None);
        assert_eq!(of_all(now + Duration::from_mins(1)), 30);
        for n in 0..2 * OF_KEY[0] {
            let bucket = format!("of an administrator {n}");
            assert_eq!(rates.wait(&bucket, None, now), None);
            rates.add(&bucket, None, now);
        }
    }

    #[test]
    fn changes_that_were_allowed_at_the_same_time_are_paid_for_later() {
        let rates = ChangeRates::default();
        let now = Instant::now();
        for _ in 0..OF_BUCKET[0] + 10 {
            rates.add("b", Some(&key("one")), now);
        }
        let wait = rates.wait("b", Some(&key("one")), now);
        assert_eq!(wait, Some(BUCKET_INTERVAL * 11));
    }
}
