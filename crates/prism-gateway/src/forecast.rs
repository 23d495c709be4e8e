//! The forecast: whether an object of another node is likely small, by that node's earlier
//! answers.
//!
//! The length of an answer decides between relay and hand-off, but only the object's owner knows
//! it. Asking costs a round trip, which is lost if the connection moves after all. The forecast
//! works like a processor's branch prediction: saturating counters, found by hashes. A wrong
//! guess costs time and nothing else.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

/// Keys remembered, 2 bytes each for each class: a power of two.
const KEYS: usize = 1 << 13;
/// Buckets remembered, 1 byte each for each class: a power of two.
const BUCKETS: usize = 1 << 8;
/// The largest value of a bucket's counter. From `HALF` on it means "small".
const FULL: u8 = 15;
const HALF: u8 = FULL / 2 + 1;

/// The classes of short objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Short enough to relay.
    Short,
    /// Short enough to relay even while the link is busy.
    Tiny,
}

const CLASSES: usize = 2;

/// Guesses by key and by bucket, for each class.
pub(crate) struct Forecast<S = RandomState> {
    /// The upper 15 bits of the key's hash, above the bit for "small"; 0 for an unknown key.
    keys: Box<[AtomicU16]>,
    /// Saturating counters: how often objects of a bucket were small lately.
    buckets: Box<[AtomicU8]>,
    hash: S,
}

/// The entries of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Entries {
    key: usize,
    tag: u16,
    bucket: usize,
}

impl Forecast {
    /// An empty forecast, which expects objects to be small.
    pub(crate) fn new() -> Self {
        Self::hashing_with(RandomState::new())
    }
}

impl<S: BuildHasher> Forecast<S> {
    fn hashing_with(hash: S) -> Self {
        Self {
            keys: (0..KEYS * CLASSES).map(|_| AtomicU16::new(0)).collect(),
            buckets: (0..BUCKETS * CLASSES)
                .map(|_| AtomicU8::new(HALF))
                .collect(),
            hash,
        }
    }

    /// The entries of an object.
    pub(crate) fn entries(&self, bucket: &str, key: &str) -> Entries {
        let of_key = self.hash.hash_one((bucket, key));
        let of_bucket = self.hash.hash_one(bucket);
        Entries {
            key: of_key as usize % KEYS * CLASSES,
            // Never 0, which stands for "unknown".
            tag: (of_key >> 48) as u16 | 2,
            bucket: of_bucket as usize % BUCKETS * CLASSES,
        }
    }

    /// Whether an object is likely in `class`.
    pub(crate) fn is_likely(&self, entries: Entries, class: Class) -> bool {
        let known = self.keys.get(entries.key + class as usize);
        let known = known.map_or(0, |known| known.load(Ordering::Relaxed));
        if known & !1 == entries.tag & !1 {
            known & 1 == 1
        } else {
            let count = self.buckets.get(entries.bucket + class as usize);
            count.is_none_or(|count| count.load(Ordering::Relaxed) >= HALF)
        }
    }

    /// Learns whether an object was in `class`. One of two simultaneous updates counts.
    pub(crate) fn learn(&self, entries: Entries, class: Class, small: bool) {
        if let Some(known) = self.keys.get(entries.key + class as usize) {
            known.store(entries.tag & !1 | u16::from(small), Ordering::Relaxed);
        }
        if let Some(count) = self.buckets.get(entries.bucket + class as usize) {
            let now = count.load(Ordering::Relaxed);
            let now = if small {
                (now + 1).min(FULL)
            } else {
                now.saturating_sub(1)
            };
            count.store(now, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use super::*;

    type Fixed = Forecast<BuildHasherDefault<DefaultHasher>>;

    fn is_likely(forecast: &Fixed, bucket: &str, key: &str) -> bool {
        forecast.is_likely(forecast.entries(bucket, key), Class::Short)
    }

    fn learn(forecast: &Fixed, bucket: &str, key: &str, small: bool) {
        forecast.learn(forecast.entries(bucket, key), Class::Short, small);
    }

    fn forecast() -> Fixed {
        Forecast::hashing_with(BuildHasherDefault::default())
    }

    #[test]
    fn an_object_is_what_it_was() {
        let forecast = forecast();
        assert!(is_likely(&forecast, "b", "new"));
        learn(&forecast, "b", "large", false);
        learn(&forecast, "b", "small", true);
        assert!(!is_likely(&forecast, "b", "large"));
        assert!(is_likely(&forecast, "b", "small"));
        learn(&forecast, "b", "large", true);
        assert!(is_likely(&forecast, "b", "large"));
    }

    #[test]
    fn one_class_says_nothing_of_the_other() {
        let forecast = forecast();
        let entries = forecast.entries("b", "k");
        forecast.learn(entries, Class::Tiny, false);
        assert!(forecast.is_likely(entries, Class::Short));
        assert!(!forecast.is_likely(entries, Class::Tiny));
        for n in 0..usize::from(FULL) {
            let entries = forecast.entries("b", &n.to_string());
            forecast.learn(entries, Class::Tiny, false);
        }
        let other = forecast.entries("b", "new");
        assert!(forecast.is_likely(other, Class::Short));
        assert!(!forecast.is_likely(other, Class::Tiny));
    }

    #[test]
    fn a_new_object_is_like_others_of_its_bucket() {
        let forecast = forecast();
        for n in 0..100 {
            learn(&forecast, "films", &n.to_string(), false);
            learn(&forecast, "notes", &n.to_string(), true);
        }
        assert!(!is_likely(&forecast, "films", "new"));
        assert!(is_likely(&forecast, "notes", "new"));
        // A bucket may change.
        for n in 0..usize::from(FULL) {
            learn(&forecast, "films", &n.to_string(), true);
        }
        assert!(is_likely(&forecast, "films", "new"));
    }
}
