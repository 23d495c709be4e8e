//! Stamps order the changes of a key: the state with the greater stamp is the later one. A
//! node makes stamps from its clock. A new stamp is always above the present one of the key,
//! so a clock that is set back disorders nothing.

use std::fmt;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

/// Bits of an origin that count the openings of one store.
const GENERATION_BITS: u32 = 20;

/// Orders and names the changes of one key. No two changes of a key have the same stamp.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Stamp {
    /// The epoch of the cluster in which the change was made.
    pub epoch: u64,
    /// Microseconds since the Unix epoch by the maker's clock, or a little more.
    pub time_us: u64,
    /// The node that made the change, in one of its lives: see [`origin`].
    pub origin: u64,
}

impl Stamp {
    /// The stamp of states that are older than stamps, below every other stamp.
    pub const NONE: Self = Self {
        epoch: 0,
        time_us: 0,
        origin: 0,
    };
    /// Length of the encoded form in bytes.
    pub const LEN: usize = 24;

    /// Its bytes, which sort as stamps do.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let words = [self.epoch, self.time_us, self.origin];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Reads what [`Stamp::to_bytes`] wrote.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_be_bytes(*word));
        let mut next = || words.next().unwrap_or_default();
        Self {
            epoch: next(),
            time_us: next(),
            origin: next(),
        }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:016x}", self.epoch, self.time_us, self.origin)
    }
}

/// Names a node in one of its lives: 44 bits of the hash of its name, and 20 bits of the
/// number of the store's opening. So a stamp is unique even if a clock was set back while the
/// node was down.
#[must_use]
pub fn origin(node: &str, generation: u64) -> u64 {
    // "prism stamps" in two words. The key is no secret.
    let first = u64::from_le_bytes(*b"prism st");
    let second = u64::from_le_bytes(*b"amps\0\0\0\0");
    let mut hash = SipHasher24::new_with_keys(first, second);
    hash.write(node.as_bytes());
    let mask = (1 << GENERATION_BITS) - 1;
    (hash.finish() & !mask) | (generation & mask)
}

/// Makes stamps.
#[derive(Debug)]
pub struct StampClock {
    origin: u64,
    last_us: AtomicU64,
}

impl StampClock {
    /// A clock for one life of a node.
    #[must_use]
    pub fn new(origin: u64) -> Self {
        Self {
            origin,
            last_us: AtomicU64::new(0),
        }
    }

    /// Makes the time of every later stamp greater than that of this one.
    pub fn observe(&self, stamp: Stamp) {
        self.last_us.fetch_max(stamp.time_us, Ordering::Relaxed);
    }

    /// A stamp above `above` and above all earlier ones of this clock in this epoch. `now_us`
    /// is the time in microseconds since the Unix epoch.
    pub fn next(&self, epoch: u64, now_us: u64, above: Stamp) -> Stamp {
        let (epoch, floor) = if above.epoch >= epoch {
            (above.epoch, above.time_us.saturating_add(1))
        } else {
            (epoch, 0)
        };
        let candidate = now_us.max(floor);
        let step = |last: u64| Some(candidate.max(last.saturating_add(1)));
        let last = self
            .last_us
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step)
            .unwrap_or_default();
        Stamp {
            epoch,
            time_us: candidate.max(last.saturating_add(1)),
            origin: self.origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_above_all_before_it_whatever_the_clock_says() {
        let clock = StampClock::new(origin("a", 1));
        let first = clock.next(1, 1_000, Stamp::NONE);
        let second = clock.next(1, 900, Stamp::NONE);
        assert!(second > first, "{second} after {first}");
        let other = StampClock::new(origin("b", 1)).next(1, 5_000, first);
        assert!(clock.next(1, 901, other) > other);
        let far = Stamp {
            time_us: 1 << 50,
            ..other
        };
        clock.observe(far);
        assert!(clock.next(1, 902, Stamp::NONE) > far);
        // A greater epoch outranks any clock, and stamps never go back from it.
        let later = clock.next(2, 10, other);
        assert!(later > other && later.epoch == 2);
        assert!(clock.next(1, 10, later) > later);
    }

    #[test]
    fn stamps_survive_the_round_trip_and_their_bytes_are_in_their_order() {
        let clock = StampClock::new(origin("a", 7));
        let mut last = Stamp::NONE;
        for now in [5, 3, 1 << 40, 9] {
            let stamp = clock.next(1, now, last);
            assert_eq!(Stamp::from_bytes(stamp.to_bytes()), stamp);
            assert!(stamp.to_bytes() > last.to_bytes());
            last = stamp;
        }
    }

    #[test]
    fn nodes_and_their_lives_are_told_apart() {
        assert_ne!(origin("a", 1), origin("b", 1));
        assert_ne!(origin("a", 1), origin("a", 2));
        assert_eq!(origin("a", 1), origin("a", 1));
    }
}
