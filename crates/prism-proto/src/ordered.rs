//! A map in the order of its keys that takes little more memory than its entries: a tree of sorted
//! pages, whose memory follows their length in small steps.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// The most entries of a page; one more splits it.
const MAX_PAGE: usize = 64;
/// Two neighbours of so many entries in all become one page, so that pages have half as many on
/// average at least.
const JOINED: usize = 48;
/// A page grows by so many places, and has fewer than twice as many unused ones.
const STEP: usize = 4;
/// The memory of a page beside its places: key and vector in a node of the tree with 5 of 11 places
/// in use, a part of a node above, and the allocator's 16 bytes.
const PAGE_BYTES: usize = 140;

/// The most memory of an entry of so many bytes, if there are many.
pub(crate) const fn most_bytes(entry: usize) -> usize {
    let least_page = JOINED / 2;
    ((least_page + 2 * STEP) * entry + PAGE_BYTES).div_ceil(least_page)
}

/// Entries by key. The default key is the least.
#[derive(Debug)]
pub(crate) struct OrderedMap<K, V> {
    /// By a key that is at most their first one, and behind the last one of the page before. The
    /// first page has the default key.
    pages: BTreeMap<K, Vec<(K, V)>>,
    len: usize,
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> Self {
        Self {
            pages: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<K: Copy + Ord + Default, V> OrderedMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let (_, page) = self.pages.range(..=*key).next_back()?;
        let (_, value) = page.get(place(page, key).ok()?)?;
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (_, page) = self.pages.range_mut(..=*key).next_back()?;
        let at = place(page, key).ok()?;
        let (_, value) = page.get_mut(at)?;
        Some(value)
    }

    /// The first entry behind `after`.
    pub(crate) fn next(&self, after: Option<K>) -> Option<(&K, &V)> {
        let Some(after) = after else {
            return first_entry(self.pages.values());
        };
        let (bound, page) = self.pages.range(..=after).next_back()?;
        let at = page.partition_point(|(key, _)| *key <= after);
        match page.get(at) {
            Some((key, value)) => Some((key, value)),
            None => {
                let behind = self.pages.range((Excluded(bound), Unbounded));
                first_entry(behind.map(|(_, page)| page))
            }
        }
    }

    /// Adds an entry, or replaces its value.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.pages.is_empty() {
            self.pages.insert(K::default(), Vec::new());
        }
        let Some((_, page)) = self.pages.range_mut(..=key).next_back() else {
            return;
        };
        match place(page, &key) {
            Ok(at) => {
                if let Some((_, old)) = page.get_mut(at) {
                    *old = value;
                }
            }
            Err(at) => {
                if page.len() == page.capacity() {
                    page.reserve_exact(STEP);
                }
                page.insert(at, (key, value));
                self.len += 1;
                if page.len() > MAX_PAGE {
                    let upper = page.split_off(MAX_PAGE / 2);
                    page.shrink_to_fit();
                    if let Some((bound, _)) = upper.first() {
                        self.pages.insert(*bound, upper);
                    }
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        let Some((bound, page)) = self.pages.range_mut(..=*key).next_back() else {
            return;
        };
        let Ok(at) = place(page, key) else {
            return;
        };
        page.remove(at);
        self.len -= 1;
        if page.capacity() - page.len() >= 2 * STEP {
            page.shrink_to(page.len() + STEP);
        }
        let bound = *bound;
        self.join_next(bound);
        if let Some((before, _)) = self.pages.range(..bound).next_back() {
            self.join_next(*before);
        }
    }

    /// Makes the page and its next one page if they are short.
    fn join_next(&mut self, bound: K) {
        let mut pages = self.pages.range_mut(bound..);
        let (Some((_, page)), Some((next, more))) = (pages.next(), pages.next()) else {
            return;
        };
        if page.len() + more.len() <= JOINED {
            page.reserve_exact(more.len());
            page.append(more);
            let next = *next;
            self.pages.remove(&next);
        }
    }
}

fn first_entry<'a, K: 'a, V: 'a>(
    mut pages: impl Iterator<Item = &'a Vec<(K, V)>>,
) -> Option<(&'a K, &'a V)> {
    let (key, value) = pages.find_map(|page| page.first())?;
    Some((key, value))
}

/// The index of `key` in a page, or the one at which it would be.
fn place<K: Ord, V>(page: &[(K, V)], key: &K) -> Result<usize, usize> {
    page.binary_search_by(|(k, _)| k.cmp(key))
}

#[cfg(test)]
#[path = "ordered_tests.rs"]
mod tests;
