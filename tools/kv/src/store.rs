//! The values of a node, in memory.

use std::collections::HashMap;
use std::rc::Rc;

/// A value. It stays whole while it is being sent.
pub(crate) type Value = Rc<[u8]>;

/// The largest size of all entries.
const MAX_BYTES: usize = 1 << 30;
/// The memory of an entry beside its key and its value: the place in the table, which may be half
/// empty, and two allocations.
const ENTRY_BYTES: usize = 128;

#[derive(Default)]
pub(crate) struct Store {
    values: HashMap<Vec<u8>, Value>,
    bytes: usize,
}

impl Store {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Value> {
        self.values.get(key)
    }

    /// Whether a value of so many bytes fits, in the place of the key's present one.
    pub(crate) fn has_room(&self, key: &[u8], value_bytes: usize) -> bool {
        let replaced = self.get(key).map_or(0, |value| size(key, value.len()));
        self.bytes - replaced + size(key, value_bytes) <= MAX_BYTES
    }

    pub(crate) fn set(&mut self, key: &[u8], value: Value) {
        self.delete(key);
        self.bytes += size(key, value.len());
        self.values.insert(key.to_vec(), value);
    }

    /// Whether the key was there.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let deleted = self.values.remove(key);
        self.bytes -= deleted.as_ref().map_or(0, |value| size(key, value.len()));
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

fn size(key: &[u8], value_bytes: usize) -> usize {
    ENTRY_BYTES + key.len() + value_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_takes_a_value_in_the_place_of_another() {
        let mut store = Store::default();
        store.set(b"a", vec![0; 1000].into());
        let most = MAX_BYTES - store.bytes - size(b"b", 0);
        assert!(store.has_room(b"b", most) && !store.has_room(b"b", most + 1));
        store.bytes = MAX_BYTES;
        assert!(store.has_room(b"a", 1000) && !store.has_room(b"a", 1001));
        assert!(!store.has_room(b"b", 0));
    }
}
