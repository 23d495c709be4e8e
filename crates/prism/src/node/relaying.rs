//! Up to which length an answer is relayed, by what relaying and handing off cost here.
//!
//! A hand-off costs the same whatever is sent afterwards; relaying costs more with each
//! byte. A node measures both as processor time, on some of the hand-offs that it began, at
//! both ends, and on some of the answers that it relayed. Where the line through these
//! meets the hand-off's, it stops to relay.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prism_config::RelayUpTo;
use prism_handoff::cost::Mean;

/// One of so many relayed answers is measured.
const SAMPLED: u32 = 16;
/// Of so many GETs the first few are trials: in a row, as what is done seldom takes longer,
/// and the first of them do not count.
const TRIALS_EVERY: u32 = 1024;
const TRIALS: u32 = 16;
const TRIALS_NOT_MEASURED: u32 = 8;
/// The bounds of what `auto` chooses: a frontend's link is to be spared too, of which
/// processor time says nothing.
const LEAST_BYTES: u32 = 512;
const MOST_BYTES: u32 = 4 << 10;
/// What is assumed before anything is measured, and counts like so many measurements:
/// that relaying so many bytes takes so much of what a hand-off does.
const PRIOR_WEIGHT: f64 = 16.0;
const PRIOR: [(f64, f64); 2] = [(0.0, 0.85), (4096.0, 1.15)];

/// How a GET is dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chance {
    /// Relayed if that is possible at all: what is never tried is never known.
    pub(super) is_trial: bool,
    pub(super) is_measured: bool,
}

impl Chance {
    /// The longest answer to relay, where it usually is `up_to_bytes`.
    pub(super) fn most_bytes(self, up_to_bytes: u32) -> u32 {
        match self.is_trial {
            true => MOST_BYTES,
            false => up_to_bytes,
        }
    }
}

/// The threshold of a node.
pub(crate) struct Relaying {
    /// 0 where nothing is relayed.
    up_to_bytes: AtomicU32,
    /// What was relayed, where the threshold is to be found out.
    relayed_ns: Option<Mutex<Line>>,
    /// GETs that were considered.
    turns: AtomicU32,
}

impl Relaying {
    pub(crate) fn new(up_to: RelayUpTo) -> Self {
        let (bytes, relayed_ns) = match up_to {
            RelayUpTo::Bytes(bytes) => (bytes, None),
            RelayUpTo::Auto => {
                let nothing = Line::default();
                // Whatever a hand-off takes.
                (crossover_bytes(1.0, &nothing), Some(Mutex::new(nothing)))
            }
        };
        Self {
            up_to_bytes: AtomicU32::new(bytes),
            relayed_ns,
            turns: AtomicU32::default(),
        }
    }

    /// The longest answer that is relayed; 0 where none is.
    pub(crate) fn up_to_bytes(&self) -> u32 {
        self.up_to_bytes.load(Ordering::Relaxed)
    }

    /// What to do with the next GET.
    pub(super) fn next(&self) -> Chance {
        if self.relayed_ns.is_none() {
            return Chance::default();
        }
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let in_row = turn % TRIALS_EVERY;
        let is_trial = in_row < TRIALS;
        Chance {
            is_trial,
            is_measured: match is_trial {
                true => in_row >= TRIALS_NOT_MEASURED,
                false => turn.is_multiple_of(SAMPLED),
            },
        }
    }

    /// Processor time that relaying an answer took lately, in ns; 0 where it is unknown.
    pub(super) fn relay_ns(&self) -> f64 {
        let relayed_ns = self.relayed_ns.as_ref();
        let line = relayed_ns.map(|line| line.lock().unwrap_or_else(PoisonError::into_inner));
        line.and_then(|line| line.y.get()).unwrap_or_default()
    }

    /// An answer of so many bytes was relayed, while a hand-off takes `hand_off_ns`.
    pub(super) fn relayed(&self, bytes: u64, spent: Duration, hand_off_ns: Option<f64>) {
        let Some(relayed_ns) = &self.relayed_ns else {
            return;
        };
        let mut relayed_ns = relayed_ns.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        relayed_ns.add(bytes.into(), spent.as_secs_f64() * 1e9);
        let Some(hand_off_ns) = hand_off_ns else {
            return;
        };
        let bytes = crossover_bytes(hand_off_ns, &relayed_ns);
        self.up_to_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// The length of an answer that costs as much to relay as a hand-off, within bounds.
fn crossover_bytes(hand_off_ns: f64, relayed_ns: &Line) -> u32 {
    let mut relayed_ns = relayed_ns.clone();
    for (bytes, share) in PRIOR {
        relayed_ns.weigh(PRIOR_WEIGHT, bytes, share * hand_off_ns);
    }
    let Some((at_zero_ns, per_byte_ns)) = relayed_ns.fit() else {
        return LEAST_BYTES;
    };
    let bytes = (hand_off_ns - at_zero_ns) / per_byte_ns.max(f64::MIN_POSITIVE);
    bytes.clamp(LEAST_BYTES.into(), MOST_BYTES.into()) as u32
}

/// A line through points, by least squares; what is older counts less.
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
        let (x, y) = (self.x.get()?, self.y.get()?);
        let slope = (self.xy.get()? - x * y) / (self.xx.get()? - x * x);
        slope.is_finite().then_some((y - slope * x, slope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures answers of some sizes that take 20 us, and 5 ns for each byte.
    fn measure(relaying: &Relaying, hand_off_us: f64) {
        for n in 0..2_000_u64 {
            let bytes = n % 4 * 1_000;
            let spent = Duration::from_nanos(20_000 + 5 * bytes);
            relaying.relayed(bytes, spent, Some(hand_off_us * 1e3));
        }
    }

    #[test]
    fn begins_with_an_assumption() {
        assert_eq!(Relaying::new(RelayUpTo::Auto).up_to_bytes(), 2048);
    }

    #[test]
    fn follows_what_is_measured() {
        let relaying = Relaying::new(RelayUpTo::Auto);
        for (hand_off_us, expected) in [(36.0, 2_800..3_400), (24.0, 512..1_100)] {
            measure(&relaying, hand_off_us);
            let found = relaying.up_to_bytes();
            assert!(expected.contains(&found), "{found}");
        }
    }

    #[test]
    fn stays_within_bounds_whatever_is_measured() {
        for hand_off_us in [0.0, 1.0, 1e9] {
            for spent_ns in [0, 1, 1_000_000, u64::MAX] {
                let relaying = Relaying::new(RelayUpTo::Auto);
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
        let relaying = Relaying::new(RelayUpTo::Auto);
        let chances: Vec<_> = (0..10 * TRIALS_EVERY).map(|_| relaying.next()).collect();
        let trials = chances.iter().filter(|chance| chance.is_trial);
        assert_eq!(trials.clone().count(), 160);
        assert_eq!(trials.filter(|chance| chance.is_measured).count(), 80);
        let usual = chances.iter().filter(|chance| !chance.is_trial);
        assert_eq!(
            usual.clone().filter(|chance| chance.is_measured).count(),
            630
        );
        assert!(usual.copied().all(|chance| chance.most_bytes(600) == 600));
    }

    #[test]
    fn a_number_is_taken_as_it_is() {
        let relaying = Relaying::new(RelayUpTo::Bytes(7));
        assert_eq!(relaying.next(), Chance::default());
        relaying.relayed(1, Duration::ZERO, Some(1.0));
        assert_eq!(relaying.up_to_bytes(), 7);
        assert_eq!(Relaying::new(RelayUpTo::Bytes(0)).up_to_bytes(), 0);
    }
}
