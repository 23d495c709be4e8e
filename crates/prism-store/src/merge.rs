//! Entries of the trees in order: those under a prefix, and those of two trees as one.

use std::{iter, ops::Bound};

use fjall::UserKey;

use crate::error::Error;

/// The entries of a tree whose keys begin with `prefix`, from `begin` on. `entries` has those of
/// all keys.
pub(crate) fn under<V, I: Iterator<Item = Result<(UserKey, V), Error>>>(
    prefix: Vec<u8>,
    entries: impl FnOnce(Bound<Vec<u8>>) -> I,
    begin: Bound<Vec<u8>>,
) -> impl Iterator<Item = I::Item> {
    let begin = match begin {
        Bound::Included(at) | Bound::Excluded(at) if at < prefix => Bound::Included(prefix.clone()),
        Bound::Unbounded => Bound::Included(prefix.clone()),
        begin => begin,
    };
    entries(begin).take_while(move |found| {
        let key = found.as_ref().map(|(key, _)| key);
        key.map_or(true, |key| key.starts_with(&prefix))
    })
}

/// The entries of two iterators in the order of their keys; of equal keys the first one's first.
pub(crate) fn merged<K: Ord, V>(
    first: impl Iterator<Item = Result<(K, V), Error>>,
    second: impl Iterator<Item = Result<(K, V), Error>>,
) -> impl Iterator<Item = Result<(K, V), Error>> {
    let mut first = first.peekable();
    let mut second = second.peekable();
    iter::from_fn(move || match (first.peek(), second.peek()) {
        (Some(Ok((first, _))), Some(Ok((key, _)))) if key < first => second.next(),
        (None, _) | (_, Some(Err(_))) => second.next(),
        _ => first.next(),
    })
}
