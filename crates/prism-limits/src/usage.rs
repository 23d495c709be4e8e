//! Both kinds of limits, and what nodes tell each other of them.

use std::hash::Hasher;

use prism_proto::usage::{MAX_ENTRIES, UsageReport};
use siphasher::sip::SipHasher24;

use crate::rate::Rate;
use crate::rates::Rates;
use crate::under_way::{Holds, UnderWay};

/// One limit for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The key that the limit counts ([`key_of`]).
    pub key: u64,
    /// The most requests in a time.
    pub rate: Option<Rate>,
    /// The most requests under way.
    pub at_once: Option<u32>,
}

/// The reason why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The place of the charge in the list.
    pub place: usize,
    /// The time in ns after which it may be admitted; 0 if nobody can tell.
    pub wait_ns: u64,
}

/// The use of all limits of a service, as a node knows it.
#[derive(Debug, Default)]
pub struct Usage {
    rates: Rates,
    under_way: UnderWay,
}

/// The key of what a limit counts, such as a client's address. It is the same at every node and in
/// every release.
#[must_use]
pub fn key_of(limit: &str, counted: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(limit.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(counted);
    hasher.finish()
}

impl Usage {
    /// Admits a request that falls under these limits. One that is refused is counted by none.
    ///
    /// # Errors
    /// The first limit that refuses it.
    pub fn admit(&self, charges: &[Charge], now_ns: u64) -> Result<Holds, Refusal> {
        let mut holds = Holds::default();
        for (place, charge) in charges.iter().enumerate() {
            let refused = self.charge(&mut holds, charge, now_ns);
            let Err(wait_ns) = refused else { continue };
            let paid = charges.iter().take(place);
            for (key, rate) in paid.filter_map(|charge| Some((charge.key, charge.rate?))) {
                self.rates.give_back(key, rate, now_ns);
            }
            return Err(Refusal { place, wait_ns });
        }
        Ok(holds)
    }

    fn charge(&self, holds: &mut Holds, charge: &Charge, now_ns: u64) -> Result<(), u64> {
        if let Some(max) = charge.at_once
            && !self.under_way.admit(holds, charge.key, max, now_ns)
        {
            return Err(0);
        }
        match charge.rate {
            Some(rate) => self.rates.admit(charge.key, rate, now_ns),
            None => Ok(()),
        }
    }

    /// Counts a request under way that another node has admitted, by its keys there.
    #[must_use]
    pub fn resume(&self, keys: &[u64]) -> Holds {
        self.under_way.resume(keys)
    }

    /// The next report to the other nodes; `None` if there is nothing to tell.
    #[must_use]
    pub fn report(&self) -> Option<UsageReport> {
        let spent = self.rates.take_unreported(MAX_ENTRIES);
        let (under_way, tells) = self.under_way.report(MAX_ENTRIES);
        (tells || !spent.is_empty()).then_some(UsageReport { spent, under_way })
    }

    /// Learns the report of the node `peer`.
    pub fn learn(&self, peer: &str, report: &UsageReport, now_ns: u64) {
        for (key, spent_ns) in &report.spent {
            self.rates.add(*key, *spent_ns, now_ns);
        }
        self.under_way.learn(peer, &report.under_way, now_ns);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::collections::VecDeque;

    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MS;
    /// Time between two reports, and the longest way of one.
    const EVERY: u64 = 200 * MS;
    const DELAY: u64 = 50 * MS;

    #[test]
    fn a_refused_request_is_counted_by_no_limit() {
        let usage = Usage::default();
        let wide = Charge {
            key: key_of("wide", b"a"),
            rate: Some(Rate::new(1, SECOND, 2)),
            at_once: Some(5),
        };
        let narrow = Charge {
            key: key_of("narrow", b"a"),
            rate: Some(Rate::new(1, SECOND, 1)),
            at_once: None,
        };
        let first = usage.admit(&[wide, narrow], 0).unwrap();
        assert_eq!(first.keys(), [wide.key]);
        let refusal = Refusal {
            place: 1,
            wait_ns: SECOND,
        };
        for _ in 0..9 {
            assert_eq!(usage.admit(&[wide, narrow], 0).unwrap_err(), refusal);
        }
        usage.admit(&[wide], 0).unwrap();
        assert_eq!(usage.admit(&[wide], 0).unwrap_err().place, 0);
        let mut told = usage.report().unwrap().spent;
        told.sort_unstable();
        let mut expected = [(wide.key, 2 * SECOND), (narrow.key, SECOND)];
        expected.sort_unstable();
        assert_eq!(told, expected);
    }

    #[test]
    fn a_key_is_the_same_in_every_release() {
        // The example of docs/protocol.md, section 2.9.
        assert_eq!(key_of("logins", &[192, 0, 2, 1]), 0xa02f_dd92_852b_b983);
    }

    struct World {
        nodes: Vec<Usage>,
        /// Reports on their way: when they arrive, from whom, and to whom.
        flights: VecDeque<(u64, usize, usize, UsageReport)>,
        rng: fastrand::Rng,
        /// Reports of 100 that are lost.
        loss: u8,
    }

    impl World {
        fn new(nodes: usize, loss: u8, seed: u64) -> Self {
            Self {
                nodes: std::iter::repeat_with(Usage::default).take(nodes).collect(),
                flights: VecDeque::new(),
                rng: fastrand::Rng::with_seed(seed),
                loss,
            }
        }

        fn step(&mut self, now: u64) {
            for from in 0..self.nodes.len() {
                let is_due = (now + from as u64 * 17 * MS).is_multiple_of(EVERY);
                let Some(report) = is_due.then(|| self.nodes[from].report()).flatten() else {
                    continue;
                };
                for to in (0..self.nodes.len()).filter(|to| *to != from) {
                    if self.rng.u8(..100) >= self.loss {
                        let at = now + self.rng.u64(..DELAY);
                        self.flights.push_back((at, from, to, report.clone()));
                    }
                }
            }
            let flights = std::mem::take(&mut self.flights);
            for (at, from, to, report) in flights {
                if at > now {
                    self.flights.push_back((at, from, to, report));
                } else {
                    self.nodes[to].learn(&from.to_string(), &report, now);
                }
            }
        }
    }

    #[test]
    fn all_nodes_together_admit_the_rate() {
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let count = rng.usize(1..8);
            let (per_s, burst) = (rng.u32(1..200), rng.u32(1..50));
            let greed = rng.f64() * 4.0 + 1.0;
            let mut world = World::new(count, 0, seed);
            let rate = Rate::new(per_s, SECOND, burst);
            let greedy = Charge {
                key: 1,
                rate: Some(rate),
                at_once: None,
            };
            let modest = Charge { key: 2, ..greedy };
            let (mut admitted, mut next) = (0.0, 0);
            let all = 20 * SECOND;
            for now in (0..all).step_by(MS as usize) {
                world.step(now);
                // More than the rate, at all nodes.
                if rng.f64() < f64::from(per_s) * greed / 1_000.0 {
                    let node = &world.nodes[rng.usize(..count)];
                    admitted += f64::from(u8::from(node.admit(&[greedy], now).is_ok()));
                }
                // At most the rate, at all nodes.
                if now >= next {
                    let node = &world.nodes[rng.usize(..count)];
                    assert!(node.admit(&[modest], now).is_ok(), "seed {seed}: {now}");
                    next = now + rate.interval_ns() + MS;
                }
                // Each node may once admit a burst, and what it does until it hears of others.
                let late = f64::from(per_s) * (EVERY + DELAY) as f64 / SECOND as f64;
                let most = f64::from(per_s) * now as f64 / SECOND as f64
                    + count as f64 * (f64::from(burst) + late + 1.0);
                assert!(admitted <= most, "seed {seed}: {admitted} of {most}");
            }
            let least = f64::from(per_s) * 20.0 * 0.85;
            assert!(admitted >= least, "seed {seed}: {admitted} of {least}");
        }
    }

    #[test]
    fn without_reports_each_node_admits_the_rate() {
        let mut world = World::new(5, 100, 1);
        let rate = Some(Rate::new(50, SECOND, 5));
        let charge = Charge {
            key: 1,
            rate,
            at_once: None,
        };
        let mut admitted = 0;
        for now in (0..10 * SECOND).step_by(MS as usize) {
            world.step(now);
            let node = (now / MS) as usize % 5;
            admitted += u32::from(world.nodes[node].admit(&[charge], now).is_ok());
        }
        assert!((5 * 480..5 * 520).contains(&admitted), "{admitted}");
    }

    #[test]
    fn requests_at_once_stay_below_the_bound_when_they_move() {
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut world = World::new(4, 0, seed);
            let max = rng.u32(1..20);
            let charge = Charge {
                key: 1,
                rate: None,
                at_once: Some(max),
            };
            // Requests at other nodes, until they end; and what their frontend still counts.
            let (mut moved, mut former) = (Vec::new(), Vec::new());
            let mut most = 0;
            for now in (0..10 * SECOND).step_by(MS as usize) {
                world.step(now);
                moved.retain(|(until, _)| *until > now);
                former.retain(|(until, _)| *until > now);
                if let Ok(holds) = world.nodes[0].admit(&[charge], now) {
                    let to = &world.nodes[rng.usize(1..4)];
                    let here = to.resume(holds.keys());
                    moved.push((now + rng.u64(..3 * SECOND), here));
                    former.push((now + EVERY + DELAY, holds));
                }
                most = most.max(moved.len());
            }
            assert_eq!(most, max as usize, "seed {seed}");
        }
    }
}
