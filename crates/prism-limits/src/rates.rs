//! The state of many rates, in a table of a fixed size. A key that is not in the table has spent
//! nothing. If too many keys are busy, one of those that have spent least is forgotten.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::rate::Rate;

/// Keys that share a set, of which a key may have any place.
const WAYS: usize = 8;
const SETS: usize = 256;
/// Parts with a lock each.
const SHARDS: usize = 64;

/// The time in ns in which most reports of other nodes come. A request that they tell of was
/// admitted within it, so it may have been paid for by a pause before the present.
const REPORTED_WITHIN_NS: u64 = 250_000_000;

/// The longest time that may be spent in advance, so that a report from a node with a wrong clock
/// does not lock a key out for ever.
const MAX_DEBT_NS: u64 = 24 * 3_600 * 1_000_000_000;

/// The state of up to 131,072 busy keys, in at most 4 MiB.
#[derive(Debug)]
pub struct Rates {
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    /// The one that the next report begins with.
    next_shard: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    /// Empty until the first use.
    entries: Vec<Spender>,
    /// Places of keys with something to report.
    changed: Vec<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spender {
    key: u64,
    /// The time until which all admitted requests are paid for. It is free once that has passed.
    paid_until_ns: u64,
    /// The pauses before it that no request has used, at most [`REPORTED_WITHIN_NS`].
    unused_ns: u64,
    /// The part of it that this node has admitted and has not reported.
    unreported_ns: u64,
}

impl Default for Rates {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS);
        Self {
            hasher: RandomState::new(),
            shards: shards.collect(),
            next_shard: AtomicUsize::new(0),
        }
    }
}

impl Rates {
    /// Admits a request.
    ///
    /// # Errors
    /// The time in ns after which it may be admitted.
    pub fn admit(&self, key: u64, rate: Rate, now_ns: u64) -> Result<(), u64> {
        self.with(key, now_ns, |entry| {
            entry.paid_until_ns = rate.admit(entry.paid_until_ns, now_ns)?;
            let was_told = entry.unreported_ns == 0;
            entry.unreported_ns = entry.unreported_ns.saturating_add(rate.interval_ns());
            Ok(was_told)
        })
    }

    /// The time in ns after which a request would be admitted; 0 if it would be now.
    pub fn wait_ns(&self, key: u64, rate: Rate, now_ns: u64) -> u64 {
        let admitted = self.with(key, now_ns, |entry| {
            rate.admit(entry.paid_until_ns, now_ns).map(|_| false)
        });
        admitted.err().unwrap_or(0)
    }

    /// Gives back what a request has spent that was admitted last.
    pub fn give_back(&self, key: u64, rate: Rate, now_ns: u64) {
        let given = self.with(key, now_ns, |entry| {
            let ns = rate.interval_ns();
            entry.paid_until_ns = entry.paid_until_ns.saturating_sub(ns);
            entry.unreported_ns = entry.unreported_ns.saturating_sub(ns);
            Ok(false)
        });
        debug_assert!(given.is_ok());
    }

    /// Counts what another node has admitted lately.
    pub fn add(&self, key: u64, spent_ns: u64, now_ns: u64) {
        let added = self.with(key, now_ns, |entry| {
            let before_ns = spent_ns.min(entry.unused_ns);
            entry.unused_ns -= before_ns;
            let until_ns = entry.paid_until_ns.saturating_add(spent_ns - before_ns);
            entry.paid_until_ns = until_ns.min(now_ns.saturating_add(MAX_DEBT_NS));
            Ok(false)
        });
        debug_assert!(added.is_ok());
    }

    /// Counts a request that is carried out whatever the rate.
    pub fn spend(&self, key: u64, rate: Rate, now_ns: u64) {
        let spent = self.with(key, now_ns, |entry| {
            entry.paid_until_ns = entry.paid_until_ns.saturating_add(rate.interval_ns());
            Ok(false)
        });
        debug_assert!(spent.is_ok());
    }

    /// The time in ns that was spent since the last call, by key: at most `max` keys, oldest first.
    /// The next call goes on with the others.
    pub fn take_unreported(&self, max: usize) -> Vec<(u64, u64)> {
        let mut spent = Vec::new();
        let first = self.next_shard.load(Ordering::Relaxed);
        for place in (first..SHARDS).chain(0..first) {
            if spent.len() >= max {
                self.next_shard.store(place, Ordering::Relaxed);
                break;
            }
            if let Some(shard) = self.shards.get(place) {
                shard.lock().take_unreported(max, &mut spent);
            }
        }
        spent
    }

    /// Changes the entry of a key. `change` returns whether there is something to report for the
    /// first time.
    fn with(
        &self,
        key: u64,
        now_ns: u64,
        change: impl FnOnce(&mut Spender) -> Result<bool, u64>,
    ) -> Result<(), u64> {
        // By a hash that nobody outside knows, so that no client fills the set of another one.
        let hash = self.hasher.hash_one(key) as usize;
        let Some(shard) = self.shards.get(hash % SHARDS) else {
            return Ok(());
        };
        let first = (hash / SHARDS % SETS) * WAYS;
        let mut shard = shard.lock();
        let Shard { entries, changed } = &mut *shard;
        if entries.is_empty() {
            entries.resize(SETS * WAYS, Spender::default());
        }
        let Some(set) = entries.get_mut(first..first + WAYS) else {
            return Ok(());
        };
        let place = place_of(set, key, now_ns);
        let Some(entry) = set.get_mut(place) else {
            return Ok(());
        };
        if entry.key != key {
            *entry = Spender {
                key,
                ..Spender::default()
            };
        }
        entry.pass_time(now_ns);
        if change(entry)?
            && changed.len() < SETS * WAYS
            && let Ok(place) = u16::try_from(first + place)
        {
            changed.push(place);
        }
        Ok(())
    }
}

impl Shard {
    fn take_unreported(&mut self, max: usize, spent: &mut Vec<(u64, u64)>) {
        let room = max.saturating_sub(spent.len()).min(self.changed.len());
        for place in self.changed.drain(..room) {
            if let Some(entry) = self.entries.get_mut(usize::from(place))
                && entry.unreported_ns > 0
            {
                spent.push((entry.key, std::mem::take(&mut entry.unreported_ns)));
            }
        }
    }
}

impl Spender {
    /// Ends a pause in which nothing was paid for.
    fn pass_time(&mut self, now_ns: u64) {
        let Some(pause_ns) = now_ns.checked_sub(self.paid_until_ns) else {
            return;
        };
        self.unused_ns = self
            .unused_ns
            .saturating_add(pause_ns)
            .min(REPORTED_WITHIN_NS);
        self.paid_until_ns = now_ns;
    }
}

/// The place of a key in its set: its own, or that of the key which has spent least.
fn place_of(set: &[Spender], key: u64, now_ns: u64) -> usize {
    let spent = |entry: &Spender| {
        let left_ns = entry.paid_until_ns.saturating_sub(now_ns);
        (entry.key != key, left_ns, entry.unreported_ns)
    };
    let places = set.iter().enumerate();
    let place = places.min_by_key(|(_, entry)| spent(entry));
    place.map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn keys_have_rates_of_their_own_and_what_others_admitted_counts() {
        let rates = Rates::default();
        let rate = Rate::new(1, SECOND, 2);
        for key in 1..=1_000 {
            assert_eq!(rates.admit(key, rate, SECOND), Ok(()));
        }
        for key in 1..=500 {
            assert_eq!(rates.admit(key, rate, SECOND), Ok(()));
            assert_eq!(rates.admit(key, rate, SECOND), Err(SECOND));
        }
        rates.give_back(1, rate, SECOND);
        assert_eq!(rates.admit(1, rate, SECOND), Ok(()));
        // A quarter of a second before was free.
        rates.add(999, 5 * SECOND, SECOND);
        assert_eq!(rates.admit(999, rate, SECOND), Err(5 * SECOND - SECOND / 4));
        rates.add(999, u64::MAX, SECOND);
        assert_eq!(rates.admit(999, rate, SECOND), Err(MAX_DEBT_NS - SECOND));
        let mut reported = rates.take_unreported(400);
        assert_eq!(reported.len(), 400);
        reported.extend(rates.take_unreported(usize::MAX));
        reported.sort_unstable();
        let expected = (1..=1_000).map(|key| (key, if key <= 500 { 2 * SECOND } else { SECOND }));
        assert!(reported.into_iter().eq(expected));
        assert_eq!(rates.take_unreported(9), []);
    }

    #[test]
    fn many_keys_displace_those_that_have_spent_least() {
        let rates = Rates::default();
        let heavy = Rate::new(1, 60 * SECOND, 3);
        let light = Rate::new(1, SECOND, 1);
        for _ in 0..3 {
            assert_eq!(rates.admit(7, heavy, 0), Ok(()));
        }
        for key in 100..1_000_000 {
            let _ = rates.admit(key, light, 0);
        }
        assert_eq!(rates.admit(7, heavy, 0), Err(60 * SECOND));
        let entries = rates.shards.iter().map(|shard| shard.lock().entries.len());
        assert_eq!(entries.sum::<usize>(), SETS * WAYS * SHARDS);
        assert!(rates.take_unreported(usize::MAX).len() <= SETS * WAYS * SHARDS);
    }
}
