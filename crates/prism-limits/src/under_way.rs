//! Requests under way, at this node and at others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The time in ns for which another node's report counts.
const LASTS_NS: u64 = 2_000_000_000;

/// The requests under way that fall under limits, by key. A request is counted for as long as its
/// [`Holds`] exist.
#[derive(Debug, Default)]
pub struct UnderWay {
    own: Arc<Mutex<HashMap<u64, u32>>>,
    others: Mutex<HashMap<String, Report>>,
    /// Whether the last report of this node had something to tell.
    was_busy: Mutex<bool>,
}

#[derive(Debug)]
struct Report {
    at_ns: u64,
    counts: HashMap<u64, u32>,
}

/// The limits that count a request while it is under way.
#[derive(Debug, Default)]
pub struct Holds(Option<Held>);

#[derive(Debug)]
struct Held {
    own: Arc<Mutex<HashMap<u64, u32>>>,
    keys: Vec<u64>,
}

impl UnderWay {
    /// Counts a request under `key` if fewer than `max` are under way at all nodes. Returns whether
    /// it did.
    pub(crate) fn admit(&self, holds: &mut Holds, key: u64, max: u32, now_ns: u64) -> bool {
        let elsewhere = self.elsewhere(key, now_ns);
        let mut own = self.own.lock();
        let here = own.get(&key).copied().unwrap_or(0);
        if here.saturating_add(elsewhere) >= max {
            return false;
        }
        own.insert(key, here + 1);
        self.held(holds).keys.push(key);
        true
    }

    /// Counts a request that another node has admitted under these keys.
    pub(crate) fn resume(&self, keys: &[u64]) -> Holds {
        let mut holds = Holds::default();
        if keys.is_empty() {
            return holds;
        }
        let mut own = self.own.lock();
        for key in keys {
            let count = own.entry(*key).or_default();
            *count = count.saturating_add(1);
        }
        self.held(&mut holds).keys = keys.to_vec();
        holds
    }

    fn held<'h>(&self, holds: &'h mut Holds) -> &'h mut Held {
        holds.0.get_or_insert_with(|| Held {
            own: self.own.clone(),
            keys: Vec::new(),
        })
    }

    fn elsewhere(&self, key: u64, now_ns: u64) -> u32 {
        let others = self.others.lock();
        let fresh = others.values().filter(|report| report.is_fresh(now_ns));
        let counts = fresh.filter_map(|report| report.counts.get(&key));
        counts.fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The report of the node `peer`, in the place of its former one.
    pub(crate) fn learn(&self, peer: &str, counts: &[(u64, u32)], now_ns: u64) {
        let mut others = self.others.lock();
        others.retain(|name, report| name != peer && report.is_fresh(now_ns));
        let counts: HashMap<u64, u32> = counts.iter().copied().collect();
        if !counts.is_empty() {
            let report = Report {
                at_ns: now_ns,
                counts,
            };
            others.insert(peer.to_owned(), report);
        }
    }

    /// The counts of this node, the greatest `max` of them, and whether there is something to tell:
    /// a count, or that there is none any more.
    pub(crate) fn report(&self, max: usize) -> (Vec<(u64, u32)>, bool) {
        let own = self.own.lock();
        let mut counts: Vec<(u64, u32)> = own.iter().map(|(key, count)| (*key, *count)).collect();
        drop(own);
        if counts.len() > max {
            counts.select_nth_unstable_by_key(max, |(_, count)| std::cmp::Reverse(*count));
            counts.truncate(max);
        }
        let is_busy = !counts.is_empty();
        let was_busy = std::mem::replace(&mut *self.was_busy.lock(), is_busy);
        (counts, is_busy || was_busy)
    }
}

impl Report {
    fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) < LASTS_NS
    }
}

impl Holds {
    /// The keys, for the node that the request goes to.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        self.0.as_ref().map_or(&[], |held| &held.keys)
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        let Some(Held { own, keys }) = self.0.take() else {
            return;
        };
        let mut own = own.lock();
        for key in keys {
            let left = own.get(&key).copied().unwrap_or(0).saturating_sub(1);
            if left == 0 {
                own.remove(&key);
            } else {
                own.insert(key, left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn requests_count_until_they_end_here_and_until_a_report_is_old_elsewhere() {
        let under_way = UnderWay::default();
        let admit = |now_ns| {
            let mut holds = Holds::default();
            under_way.admit(&mut holds, 5, 3, now_ns).then_some(holds)
        };
        let first = admit(0);
        let moved = under_way.resume(&[5, 6]);
        assert_eq!(moved.keys(), [5, 6]);
        let third = admit(0);
        assert!(first.is_some() && third.is_some() && admit(0).is_none());
        drop((moved, third));
        under_way.learn("be1", &[(5, 2), (9, 1)], SECOND);
        assert!(admit(2 * SECOND).is_none());
        assert!(admit(3 * SECOND).is_some());
        under_way.learn("be1", &[(5, 2)], 3 * SECOND);
        under_way.learn("be1", &[], 3 * SECOND);
        assert!(admit(3 * SECOND).is_some());
        drop(first);
        assert!(under_way.own.lock().is_empty());
    }

    #[test]
    fn a_report_has_the_greatest_counts_and_the_last_one_says_that_there_are_none() {
        let under_way = UnderWay::default();
        assert_eq!(under_way.report(9), (Vec::new(), false));
        let holds: Vec<Holds> = [1, 2, 2, 3, 3, 3]
            .map(|key| under_way.resume(&[key]))
            .into();
        let (mut counts, tells) = under_way.report(2);
        counts.sort_unstable();
        assert_eq!((counts, tells), (vec![(2, 2), (3, 3)], true));
        drop(holds);
        assert_eq!(under_way.report(2), (Vec::new(), true));
        assert_eq!(under_way.report(2), (Vec::new(), false));
    }
}
