//! The values of the primary, or a replica's copies of them. No I/O.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;

/// The most keys of a node. With keys and values of 128 KiB together they take 1.25 GiB.
const MAX_KEYS: usize = 10_000;

#[derive(Default)]
pub(crate) struct Values {
    by_key: HashMap<Vec<u8>, StampedValue>,
}

#[derive(Clone)]
pub(crate) struct StampedValue {
    /// A random number of the write.
    pub(crate) stamp: u64,
    pub(crate) value: Rc<[u8]>,
}

impl Values {
    pub(crate) fn get(&self, key: &[u8]) -> Option<StampedValue> {
        self.by_key.get(key).cloned()
    }

    /// Does a write. Returns whether there was room for it.
    pub(crate) fn write(&mut self, key: &[u8], value: &[u8]) -> bool {
        let stamped = StampedValue {
            stamp: RandomState::new().hash_one(key),
            value: value.into(),
        };
        let has_room = self.by_key.len() < MAX_KEYS || self.by_key.contains_key(key);
        if has_room {
            self.by_key.insert(key.to_vec(), stamped);
        }
        has_room
    }

    /// Returns whether the key had a value.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        self.by_key.remove(key).is_some()
    }

    /// Keeps a copy of the primary's value. Other copies make room for it.
    pub(crate) fn copy(&mut self, key: &[u8], copy: StampedValue) {
        if self.by_key.len() >= MAX_KEYS {
            self.by_key.clear();
        }
        self.by_key.insert(key.to_vec(), copy);
    }
}
