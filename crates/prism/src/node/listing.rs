//! Listing the keys of a bucket whose objects lie on many nodes: each backend
//! lists its own share, and whoever holds the client's connection merges.

use std::collections::BTreeMap;

use prism_s3::op::Operation;
use prism_s3::xml::{ListEntry, ListPage};
use prism_s3::{BucketName, Code, ListObjects, S3Error};
use prism_store::{Entry, Store};
use serde::{Deserialize, Serialize};

use super::answer::from_ms;
use super::get::{quoted, store_error};

/// Most bytes of one node's share of a page: 1,000 names of 1 KiB, escaped.
pub(super) const MAX_SHARE_BYTES: usize = 8 << 20;

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Item {
    /// A key.
    Key {
        len: u64,
        etag: String,
        created_ms: u64,
    },
    /// All keys that begin with the name.
    Prefix,
}

/// What one backend has for a page, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) items: BTreeMap<String, Item>,
    /// There is more behind the last.
    pub(super) truncated: bool,
}

/// This store's share of a page. Blocks on disk.
pub(super) fn share(
    store: &Store,
    bucket: &BucketName,
    list: &ListObjects,
) -> Result<Share, S3Error> {
    let mut share = Share::default();
    let mut after = start(list);
    loop {
        let room = list.max_keys.saturating_sub(share.items.len());
        let page = store.list(bucket.as_str(), &list.prefix, &after, room.max(1));
        let page = page.map_err(|e| store_error(&e))?;
        let Some(last) = page.entries.last() else {
            return Ok(share);
        };
        after = last.key.clone();
        for entry in page.entries {
            if share.items.len() >= list.max_keys {
                share.truncated = true;
                return Ok(share);
            }
            match common_prefix(list, &entry.key) {
                None => {
                    share.items.insert(entry.key.clone(), key(entry));
                }
                Some(prefix) if share.items.contains_key(prefix) => {}
                Some(prefix) => {
                    share.items.insert(prefix.to_owned(), Item::Prefix);
                    // Skip what is below it.
                    after = behind(prefix);
                    break;
                }
            }
        }
        if !page.truncated && !after.ends_with(char::MAX) {
            return Ok(share);
        }
    }
}

fn key(entry: Entry) -> Item {
    let Entry {
        len,
        etag,
        created_ms,
        ..
    } = entry;
    Item::Key {
        len,
        etag,
        created_ms,
    }
}

/// Where a page starts. Behind a common prefix, all that is below it is done.
fn start(list: &ListObjects) -> String {
    match (list.after(), &list.delimiter) {
        (Some(after), Some(_)) if common_prefix(list, after) == Some(after) => behind(after),
        (after, _) => after.unwrap_or_default().to_owned(),
    }
}

/// Greater than every key that begins with `prefix`, or very nearly.
fn behind(prefix: &str) -> String {
    format!("{prefix}{}", char::MAX)
}

fn common_prefix<'k>(list: &ListObjects, key: &'k str) -> Option<&'k str> {
    let delimiter = list.delimiter.as_deref().filter(|d| !d.is_empty())?;
    let rest = key.strip_prefix(list.prefix.as_str())?;
    let end = list.prefix.len() + rest.find(delimiter)? + delimiter.len();
    key.get(..end)
}

/// Merges all backends' shares into the page that the client asked for.
pub(super) fn page_xml(operation: &Operation, shares: Vec<Share>) -> Result<Vec<u8>, S3Error> {
    let Operation::ListObjects { bucket, list } = operation else {
        return Err(Code::InternalError.into());
    };
    let mut truncated = shares.iter().any(|share| share.truncated);
    let mut items: BTreeMap<String, Item> = BTreeMap::new();
    for share in shares {
        items.extend(share.items);
    }
    truncated |= items.len() > list.max_keys;
    let shown: Vec<(&String, &Item)> = items.iter().take(list.max_keys).collect();
    let etags: Vec<String> = shown
        .iter()
        .map(|(_, item)| match item {
            Item::Key { etag, .. } => quoted(etag),
            Item::Prefix => String::new(),
        })
        .collect();
    let entries = shown
        .iter()
        .zip(&etags)
        .filter_map(|((name, item), etag)| match item {
            Item::Key {
                len, created_ms, ..
            } => Some(ListEntry {
                key: name,
                modified: from_ms(*created_ms),
                etag,
                size: *len,
            }),
            Item::Prefix => None,
        });
    let prefixes = shown.iter().filter(|(_, item)| **item == Item::Prefix);
    let page = ListPage {
        bucket,
        request: list,
        entries: entries.collect(),
        common_prefixes: prefixes.map(|(name, _)| name.as_str()).collect(),
        next: shown
            .last()
            .filter(|_| truncated)
            .map(|(name, _)| name.as_str()),
    };
    Ok(page.xml())
}
