//! A cache of recently read objects. It has the bytes of small objects, compared with their
//! checksum, and the open files of others. A reader that finds a file checks that it is still
//! good.
//!
//! The cache never has an older object than the tree. Keys share counters. A commit makes the
//! counters of its keys odd before readers see any of it, and even again when they see all of
//! it. A cached object counts while its counter has the even value from before its look-up.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fjall::UserKey;
use quick_cache::{Weighter, sync::Cache};

/// The number of counters. Keys that share one only evict each other.
const COUNTERS: usize = 1 << 12;
/// The approximate memory of an object besides its bytes and its key: mostly the head of its
/// answer.
const OBJECT_BYTES: u64 = 1024;

pub(crate) struct Hot<T> {
    small: Cache<Box<[u8]>, Entry<T>, Weigh>,
    /// Apart from small objects, because files take descriptors.
    files: Cache<Box<[u8]>, Entry<T>>,
    counters: Box<[AtomicU64]>,
    hasher: RandomState,
}

struct Entry<T> {
    count: u64,
    bytes: u64,
    object: Arc<T>,
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self {
            object: Arc::clone(&self.object),
            ..*self
        }
    }
}

/// The reason for which an object is worth caching.
pub(crate) enum Worth {
    /// It has this many bytes, all in memory.
    Small(u64),
    /// It has an open file that is known to be good.
    File,
}

#[derive(Clone)]
struct Weigh;

impl<T> Weighter<Box<[u8]>, Entry<T>> for Weigh {
    fn weight(&self, key: &Box<[u8]>, entry: &Entry<T>) -> u64 {
        key.len() as u64 + entry.bytes + OBJECT_BYTES
    }
}

/// The permission to cache an object that is looked up now, unless a commit comes between.
#[derive(Clone, Copy)]
pub(crate) struct Leave(u64);

impl<T> Hot<T> {
    /// A cache of about `bytes` of small objects, and of `files`; 0 disables either.
    pub(crate) fn new(bytes: u64, files: usize) -> Self {
        let objects = usize::try_from(bytes / (4 * OBJECT_BYTES)).unwrap_or(usize::MAX);
        Self {
            small: Cache::with_weighter(objects, bytes, Weigh),
            files: Cache::new(files),
            counters: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }

    fn counter(&self, object_key: &[u8]) -> Option<&AtomicU64> {
        let hash = self.hasher.hash_one(object_key);
        let at = usize::try_from(hash % COUNTERS as u64);
        self.counters.get(at.unwrap_or_default())
    }

    /// The object of a key, if it is cached, and the permission to cache it otherwise.
    pub(crate) fn get(&self, object_key: &[u8]) -> (Option<Arc<T>>, Leave) {
        // An odd count: no object is cached.
        let never = u64::MAX;
        let counter = self.counter(object_key);
        let found = self.small.get(object_key);
        let found = found.or_else(|| self.files.get(object_key));
        // After the look-up, so that the found object is valid at this moment.
        let count = counter.map_or(never, |counter| counter.load(Ordering::SeqCst));
        let found = found.filter(|entry| entry.count == count);
        (found.map(|entry| entry.object), Leave(count))
    }

    /// Caches an object that was looked up.
    pub(crate) fn insert(
        &self,
        object_key: Vec<u8>,
        Leave(count): Leave,
        object: &Arc<T>,
        worth: Worth,
    ) {
        if !count.is_multiple_of(2) {
            return;
        }
        let key: Box<[u8]> = object_key.into();
        let entry = |bytes| Entry {
            count,
            bytes,
            object: Arc::clone(object),
        };
        match worth {
            Worth::Small(bytes) => self.small.insert(key, entry(bytes)),
            Worth::File => {
                self.files.insert(key.clone(), entry(0));
                // A commit may have missed this entry. No reader would use it, but its removed
                // file would stay on the disk.
                let now = self.counter(&key).map(|now| now.load(Ordering::SeqCst));
                if now != Some(count) {
                    self.files.remove(&key);
                }
            }
        }
    }

    /// Forgets the objects of these keys, and caches none of them until the result is dropped.
    /// One caller at a time.
    pub(crate) fn hide<'h>(&'h self, object_keys: &[UserKey]) -> Hidden<'h> {
        let mut counters: Vec<_> = object_keys
            .iter()
            .filter_map(|key| self.counter(key))
            .collect();
        // Each once, or the second time would make it even.
        counters.sort_unstable_by_key(|counter| std::ptr::from_ref(*counter));
        counters.dedup_by_key(|counter| std::ptr::from_ref(*counter));
        for counter in &counters {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        for key in object_keys {
            self.small.remove(&**key);
            self.files.remove(&**key);
        }
        Hidden(counters)
    }
}

/// See [`Hot::hide`].
pub(crate) struct Hidden<'h>(Vec<&'h AtomicU64>);

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        for counter in &self.0 {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(hot: &Hot<u8>, key: &[u8], leave: Leave, byte: u8, len: u64) {
        hot.insert(key.into(), leave, &Arc::new(byte), Worth::Small(len));
    }

    fn first(hot: &Hot<u8>, key: &[u8]) -> Option<u8> {
        hot.get(key).0.map(|byte| *byte)
    }

    fn leave(hot: &Hot<u8>, key: &[u8]) -> Leave {
        let (found, leave) = hot.get(key);
        assert!(found.is_none());
        leave
    }

    #[test]
    fn what_was_looked_up_before_a_commit_counts_no_longer_behind_it() {
        let hot = Hot::new(1 << 20, 0);
        let keys = |key: &[u8]| [UserKey::from(key)];
        insert(&hot, b"k", leave(&hot, b"k"), 1, 100);
        assert_eq!(first(&hot, b"k"), Some(1));
        let early = leave(&hot, b"l");
        let hidden = hot.hide(&[
            UserKey::from(b"k"),
            UserKey::from(b"l"),
            UserKey::from(b"k"),
        ]);
        assert_eq!(first(&hot, b"k"), None);
        // Looked up before, kept meanwhile and behind; looked up meanwhile.
        insert(&hot, b"l", early, 2, 100);
        let meanwhile = leave(&hot, b"k");
        insert(&hot, b"k", meanwhile, 3, 100);
        assert_eq!((first(&hot, b"k"), first(&hot, b"l")), (None, None));
        drop(hidden);
        insert(&hot, b"k", meanwhile, 3, 100);
        assert_eq!((first(&hot, b"k"), first(&hot, b"l")), (None, None));
        insert(&hot, b"k", leave(&hot, b"k"), 4, 100);
        assert_eq!(first(&hot, b"k"), Some(4));
        drop(hot.hide(&keys(b"k")));
        assert_eq!(first(&hot, b"k"), None);
    }

    #[test]
    fn a_file_that_was_looked_up_before_a_commit_does_not_stay_open_behind_it() {
        let (good, hot) = (Arc::new(7), Hot::new(0, 8));
        let early = leave(&hot, b"k");
        hot.insert(b"k".into(), early, &good, Worth::File);
        assert_eq!(hot.files.len(), 1);
        drop(hot.hide(&[UserKey::from(b"k")]));
        hot.insert(b"k".into(), early, &good, Worth::File);
        assert_eq!(hot.files.len(), 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let hot = Hot::new(1 << 20, 0);
        for n in 0..10_000_u32 {
            let key = n.to_be_bytes();
            insert(&hot, &key, leave(&hot, &key), 1, 1000);
        }
        assert!(hot.small.weight() <= 1 << 20);
        let none = Hot::new(0, 0);
        insert(&none, b"k", leave(&none, b"k"), 1, 100);
        assert_eq!(first(&none, b"k"), None);
    }
}
