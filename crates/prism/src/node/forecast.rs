//! Whether an object that another node has is likely small, by what that node said
//! when it was last asked.
//!
//! Whether a GET is relayed or its connection handed off depends on how long the
//! answer is, which only the object's owner knows. To ask costs a round trip, which is
//! lost where the connection moves after all; hence this guess, made as processors
//! predict branches: counters that saturate, found by hashes. A wrong guess costs time,
//! nothing else.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

/// Keys remembered, 2 bytes each: a power of two.
const KEYS: usize = 1 << 13;
/// Buckets remembered, 1 byte each: a power of two.
const BUCKETS: usize = 1 << 8;
/// A bucket's counter ends here, and says "small" from half of it on.
const FULL: u8 = 15;
const HALF: u8 = FULL / 2 + 1;
/// What was learned of keys and of buckets.
pub(super) struct Forecast<S = RandomState> {
    /// The hash's upper 15 bits, above the bit that says "small"; 0 where nothing is known.
    keys: Box<[AtomicU16]>,
    /// How often objects of a bucket were small lately.
    buckets: Box<[AtomicU8]>,
    hash: S,
}

/// Where something about an object is kept.
#[derive(Clone, Copy)]
pub(super) struct Place {
    key: usize,
    tag: u16,
    bucket: usize,
}

impl Forecast {
    /// Knows nothing, and expects objects to be small.
    pub(super) fn new() -> Self {
        Self::hashing_with(RandomState::new())
    }
}

impl<S: BuildHasher> Forecast<S> {
    fn hashing_with(hash: S) -> Self {
        Self {
            keys: (0..KEYS).map(|_| AtomicU16::new(0)).collect(),
            buckets: (0..BUCKETS).map(|_| AtomicU8::new(HALF)).collect(),
            hash,
        }
    }

    /// Where what is known of an object is found.
    pub(super) fn place(&self, bucket: &str, key: &str) -> Place {
        let of_key = self.hash.hash_one((bucket, key));
        let of_bucket = self.hash.hash_one(bucket);
        Place {
            key: of_key as usize % KEYS,
            // Never 0, which stands for "unknown".
            tag: (of_key >> 48) as u16 | 2,
            bucket: of_bucket as usize % BUCKETS,
        }
    }

    /// Whether it is worth while to ask for an object before its connection is handed off.
    pub(super) fn is_likely_small(&self, place: Place) -> bool {
        let known = self.keys.get(place.key);
        let known = known.map_or(0, |known| known.load(Ordering::Relaxed));
        if known & !1 == place.tag & !1 {
            known & 1 == 1
        } else {
            let count = self.buckets.get(place.bucket);
            count.is_none_or(|count| count.load(Ordering::Relaxed) >= HALF)
        }
    }

    /// What was said of an object. Of what two threads say at once, one counts.
    pub(super) fn learn(&self, place: Place, small: bool) {
        if let Some(known) = self.keys.get(place.key) {
            known.store(place.tag & !1 | u16::from(small), Ordering::Relaxed);
        }
        if let Some(count) = self.buckets.get(place.bucket) {
            let now = count.load(Ordering::Relaxed);
            let now = match small {
                true => (now + 1).min(FULL),
                false => now.saturating_sub(1),
            };
            count.store(now, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use super::*;

    fn forecast() -> Forecast<BuildHasherDefault<DefaultHasher>> {
        Forecast::hashing_with(BuildHasherDefault::default())
    }

    #[test]
    fn an_object_is_what_it_was() {
        let forecast = forecast();
        assert!(forecast.is_likely_small(forecast.place("b", "new")));
        forecast.learn(forecast.place("b", "large"), false);
        forecast.learn(forecast.place("b", "small"), true);
        assert!(!forecast.is_likely_small(forecast.place("b", "large")));
        assert!(forecast.is_likely_small(forecast.place("b", "small")));
        forecast.learn(forecast.place("b", "large"), true);
        assert!(forecast.is_likely_small(forecast.place("b", "large")));
    }

    #[test]
    fn a_new_object_is_like_others_of_its_bucket() {
        let forecast = forecast();
        for n in 0..100 {
            forecast.learn(forecast.place("films", &n.to_string()), false);
            forecast.learn(forecast.place("notes", &n.to_string()), true);
        }
        assert!(!forecast.is_likely_small(forecast.place("films", "new")));
        assert!(forecast.is_likely_small(forecast.place("notes", "new")));
        // Not for ever.
        for n in 0..usize::from(FULL) {
            forecast.learn(forecast.place("films", &n.to_string()), true);
        }
        assert!(forecast.is_likely_small(forecast.place("films", "new")));
    }
}
