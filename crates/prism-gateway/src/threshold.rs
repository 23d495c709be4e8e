//! The threshold: the longest answer that is relayed, by the measured costs of relaying and of
//! handing off.
//!
//! The cost of a hand-off does not depend on the length of the answer, but the cost of relaying
//! grows with each byte. A node measures the processor time of some of its hand-offs, at both
//! ends, and of some of its relayed answers. The threshold is the length at which the two costs
//! are equal.
//!
//! Processor time says nothing about links. A relayed answer uses this node's link, and the
//! answer on a moved connection does not. So nothing is relayed while answers take more than
//! half of the link; connections move then. An exception are backends, for objects so short that
//! the hand-off itself would take as much of the link. Without a known link speed, only very
//! short answers are relayed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use std::time::Duration;

use parking_lot::Mutex;
use prism_common::mean::Mean;
use prism_config::RelayUpTo;

/// One of this number of relayed answers is measured.
const SAMPLED: u32 = 16;
/// GETs in one round of trials.
const TRIALS_EVERY: u32 = 1024;
/// Trials at the start of each round. They come in a row, because rare operations take longer.
const TRIALS: u32 = 16;
/// Trials of a round that are not measured: the first ones, which take longer.
const TRIALS_NOT_MEASURED: u32 = 8;
/// The least threshold that `auto` chooses.
pub(crate) const LEAST_BYTES: u32 = 512;
/// The largest threshold that `auto` chooses.
const MOST_BYTES: u32 = 32 << 10;
/// The largest threshold that `auto` chooses without a known link speed.
const MOST_BYTES_BLINDLY: u32 = 4 << 10;
/// The owner's cost of a relayed answer, as a share of the relaying node's cost. The owner opens
/// and seals records and parses a head. Hand-offs are measured at both ends, relays only here.
const OWNERS_SHARE: f64 = 0.5;
/// The weight of each point of [`PRIOR`], in measurements.
const PRIOR_WEIGHT: f64 = 16.0;
/// The assumption before any measurement: lengths of answers, and the cost to relay them as a
/// share of a hand-off's.
const PRIOR: [(f64, f64); 2] = [(0.0, 0.6), (8192.0, 0.74)];

/// The treatment of one GET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chance {
    /// Relay it up to the largest threshold, so that long answers are measured too.
    pub(crate) is_trial: bool,
    pub(crate) is_measured: bool,
}

impl Chance {
    /// The longest answer to relay.
    pub(crate) fn most_bytes(self, relaying: &Threshold) -> u32 {
        if self.is_trial {
            relaying.most_bytes()
        } else {
            relaying.up_to_bytes()
        }
    }
}

/// The threshold of a node.
pub(crate) struct Threshold {
    /// 0 if nothing is relayed.
    up_to_bytes: AtomicU32,
    /// Whether it follows the measured costs, and is not configured. It changes under the lock of
    /// `relayed_ns`.
    is_auto: AtomicBool,
    /// The measured costs of relaying.
    relayed_ns: Mutex<Line>,
    /// The largest threshold that `auto` may choose.
    most_bytes: AtomicU32,
    /// GETs so far.
    turns: AtomicU32,
}

impl Threshold {
    /// `link_is_known`: the configuration has the speed of the link.
    pub(crate) fn new(up_to: RelayUpTo, link_is_known: bool) -> Self {
        let threshold = Self {
            up_to_bytes: AtomicU32::default(),
            is_auto: AtomicBool::default(),
            relayed_ns: Mutex::default(),
            most_bytes: AtomicU32::default(),
            turns: AtomicU32::default(),
        };
        threshold.set(up_to, link_is_known);
        threshold
    }

    /// Begins again with another configuration, unless it is the present one.
    pub(crate) fn set(&self, up_to: RelayUpTo, link_is_known: bool) {
        let most_bytes = if link_is_known {
            MOST_BYTES
        } else {
            MOST_BYTES_BLINDLY
        };
        let mut relayed_ns = self.relayed_ns.lock();
        let bytes = match up_to {
            RelayUpTo::Bytes(bytes) => bytes,
            RelayUpTo::Auto if self.is_auto() && self.most_bytes() == most_bytes => return,
            RelayUpTo::Auto => {
                *relayed_ns = Line::default();
                // Without measurements the result does not depend on the cost of a hand-off.
                crossover_bytes(1.0, &relayed_ns, most_bytes)
            }
        };
        let is_auto = up_to == RelayUpTo::Auto;
        self.is_auto.store(is_auto, Ordering::Relaxed);
        self.most_bytes.store(most_bytes, Ordering::Relaxed);
        self.up_to_bytes.store(bytes, Ordering::Relaxed);
    }

    fn is_auto(&self) -> bool {
        self.is_auto.load(Ordering::Relaxed)
    }

    fn most_bytes(&self) -> u32 {
        self.most_bytes.load(Ordering::Relaxed)
    }

    /// The longest answer that is relayed; 0 if none is.
    pub(crate) fn up_to_bytes(&self) -> u32 {
        self.up_to_bytes.load(Ordering::Relaxed)
    }

    /// The treatment of the next GET.
    pub(crate) fn next(&self) -> Chance {
        if !self.is_auto() {
            return Chance::default();
        }
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let in_row = turn % TRIALS_EVERY;
        let is_trial = in_row < TRIALS;
        Chance {
            is_trial,
            is_measured: if is_trial {
                in_row >= TRIALS_NOT_MEASURED
            } else {
                turn.is_multiple_of(SAMPLED)
            },
        }
    }

    /// Processor time that relaying an answer took lately, in ns; 0 if it is unknown.
    pub(crate) fn relay_ns(&self) -> f64 {
        self.relayed_ns.lock().y.get().unwrap_or_default()
    }

    /// Learns that an answer of `bytes` was relayed in the processor time `spent`, while a
    /// hand-off takes `hand_off_ns`.
    pub(crate) fn relayed(&self, bytes: u64, spent: Duration, hand_off_ns: Option<f64>) {
        if !self.is_auto() {
            return;
        }
        let mut relayed_ns = self.relayed_ns.lock();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let spent_ns = spent.as_secs_f64() * 1e9;
        relayed_ns.add(bytes.into(), spent_ns * (1.0 + OWNERS_SHARE));
        let Some(hand_off_ns) = hand_off_ns else {
            return;
        };
        let bytes = crossover_bytes(hand_off_ns, &relayed_ns, self.most_bytes());
        // It may have been configured meanwhile.
        if self.is_auto() {
            self.up_to_bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

/// The length at which relaying costs as much as a hand-off, within bounds.
fn crossover_bytes(hand_off_ns: f64, relayed_ns: &Line, most_bytes: u32) -> u32 {
    let mut relayed_ns = relayed_ns.clone();
    for (bytes, share) in PRIOR {
        relayed_ns.weigh(PRIOR_WEIGHT, bytes, share * hand_off_ns);
    }
    let Some((at_zero_ns, per_byte_ns)) = relayed_ns.fit() else {
        return LEAST_BYTES;
    };
    let bytes = (hand_off_ns - at_zero_ns) / per_byte_ns.max(f64::MIN_POSITIVE);
    bytes.clamp(LEAST_BYTES.into(), most_bytes.into()) as u32
}

/// A line through points, by least squares. Older points count less.
#[derive(Clone, Default)]
struct Line {
    x: Mean,
    y: Mean,
    xx: Mean,
    xy: Mean,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        self.x.add(x);
        self.y.add(y);
        self.xx.add(x * x);
        self.xy.add(x * y);
    }

    fn weigh(&mut self, weight: f64, x: f64, y: f64) {
        self.x.weigh(weight, x);
        self.y.weigh(weight, y);
        self.xx.weigh(weight, x * x);
        self.xy.weigh(weight, x * y);
    }

    /// Its value at 0, and its slope.
    fn fit(&self) -> Option<(f64, f64)> {
        let x = self.x.get()?;
        let y = self.y.get()?;
        let slope = (self.xy.get()? - x * y) / (self.xx.get()? - x * x);
        slope.is_finite().then_some((y - slope * x, slope))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    fn auto() -> Threshold {
        Threshold::new(RelayUpTo::Auto, true)
    }

    /// Measures answers of some sizes that take 20 us here, and 1 ns for each byte.
    fn measure(relaying: &Threshold, hand_off_us: f64) {
        for n in 0..2_000_u64 {
            let bytes = n % 4 * 4_000;
            let spent = Duration::from_nanos(20_000 + bytes);
            relaying.relayed(bytes, spent, Some(hand_off_us * 1e3));
        }
    }

    #[test]
    fn begins_with_an_assumption() {
        assert_eq!(auto().up_to_bytes(), 23_405);
    }

    #[test]
    fn follows_what_is_measured() {
        let relaying = auto();
        for (hand_off_us, expected) in [(45.0, 9_000..11_000), (33.0, 1_500..3_500)] {
            measure(&relaying, hand_off_us);
            let found = relaying.up_to_bytes();
            assert!(expected.contains(&found), "{found}");
        }
    }

    #[test]
    fn relays_only_what_is_short_over_a_link_that_it_does_not_know() {
        let relaying = Threshold::new(RelayUpTo::Auto, false);
        assert_eq!(relaying.up_to_bytes(), MOST_BYTES_BLINDLY);
        measure(&relaying, 45.0);
        assert_eq!(relaying.up_to_bytes(), MOST_BYTES_BLINDLY);
        measure(&relaying, 33.0);
        assert!((1_500..3_500).contains(&relaying.up_to_bytes()));
    }

    #[test]
    fn stays_within_bounds_whatever_is_measured() {
        for hand_off_us in [0.0, 1.0, 1e9] {
            for spent_ns in [0, 1, 1_000_000, u64::MAX] {
                let relaying = auto();
                for bytes in [0, 64, 64, 64, u64::MAX] {
                    let spent = Duration::from_nanos(spent_ns);
                    relaying.relayed(bytes, spent, Some(hand_off_us));
                }
                let found = relaying.up_to_bytes();
                assert!((LEAST_BYTES..=MOST_BYTES).contains(&found), "{found}");
            }
        }
    }

    #[test]
    fn what_is_long_is_tried_now_and_then() {
        let relaying = auto();
        let chances: Vec<_> = (0..10 * TRIALS_EVERY).map(|_| relaying.next()).collect();
        let trials = chances.iter().filter(|chance| chance.is_trial);
        assert_eq!(trials.clone().count(), 160);
        assert_eq!(trials.filter(|chance| chance.is_measured).count(), 80);
        let usual = chances.iter().filter(|chance| !chance.is_trial);
        assert_eq!(
            usual.clone().filter(|chance| chance.is_measured).count(),
            630
        );
        let up_to_bytes = relaying.up_to_bytes();
        assert!(
            usual
                .copied()
                .all(|chance| chance.most_bytes(&relaying) == up_to_bytes)
        );
    }

    #[test]
    fn another_configuration_counts_at_once_and_the_same_one_changes_nothing() {
        let relaying = auto();
        measure(&relaying, 33.0);
        let measured = relaying.up_to_bytes();
        relaying.set(RelayUpTo::Auto, true);
        assert_eq!(relaying.up_to_bytes(), measured);
        relaying.set(RelayUpTo::Bytes(7), true);
        measure(&relaying, 33.0);
        assert_eq!(relaying.up_to_bytes(), 7);
        relaying.set(RelayUpTo::Auto, true);
        assert_eq!(relaying.up_to_bytes(), auto().up_to_bytes());
        relaying.set(RelayUpTo::Auto, false);
        assert_eq!(relaying.up_to_bytes(), MOST_BYTES_BLINDLY);
    }

    #[test]
    fn a_number_is_taken_as_it_is() {
        let relaying = Threshold::new(RelayUpTo::Bytes(7), true);
        assert_eq!(relaying.next(), Chance::default());
        relaying.relayed(1, Duration::ZERO, Some(1.0));
        assert_eq!(relaying.up_to_bytes(), 7);
        assert_eq!(Threshold::new(RelayUpTo::Bytes(0), true).up_to_bytes(), 0);
    }
}
