//! The values of a node, in memory.

use std::collections::HashMap;
use std::rc::Rc;

/// A value. It stays whole while it is being sent.
pub(crate) type Value = Rc<[u8]>;

/// The largest size of all keys and values.
const MAX_BYTES: usize = 1 << 30;

#[derive(Default)]
pub(crate) struct Store {
    values: HashMap<Vec<u8>, Value>,
    bytes: usize,
}

impl Store {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Value> {
        self.values.get(key)
    }

    /// Whether a value of so many bytes fits.
    pub(crate) fn has_room(&self, key: &[u8], value_bytes: usize) -> bool {
        self.bytes + key.len() + value_bytes <= MAX_BYTES
    }

    pub(crate) fn set(&mut self, key: &[u8], value: Value) {
        self.delete(key);
        self.bytes += key.len() + value.len();
        self.values.insert(key.to_vec(), value);
    }

    /// Whether the key was there.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let deleted = self.values.remove(key);
        self.bytes -= deleted.as_ref().map_or(0, |value| key.len() + value.len());
        deleted.is_some()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// All keys and values; the values are shared.
    pub(crate) fn all(&self) -> Vec<(Vec<u8>, Value)> {
        let all = self.values.iter();
        all.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}
