//! Listings of objects, in the order of their keys' bytes.

use std::ops::Bound;

use crate::{
    error::Error,
    keys::{object_key, split_object_key},
    record::Record,
    store::Store,
    types::{Entry, KEY_MAX, Position, Step},
};

/// Longest prefix and longest position, in bytes: more than any key has.
const LIST_ARGUMENT_MAX: usize = 2 * KEY_MAX;

impl Store {
    /// Lists the objects whose keys begin with `prefix`, from `begin` on, as of one moment.
    /// `visit` gets each and says how to continue. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`]; [`Error::InvalidName`] for a prefix or position of more than
    /// 2 KiB.
    pub fn scan(
        &self,
        bucket: &str,
        prefix: &str,
        begin: Position<'_>,
        mut visit: impl FnMut(Entry) -> Step,
    ) -> Result<(), Error> {
        self.buckets().get(bucket)?;
        let argument = match begin {
            Position::Start => "",
            Position::After(text) | Position::Behind(text) => text,
        };
        if prefix.len().max(argument.len()) > LIST_ARGUMENT_MAX {
            return Err(Error::InvalidName("prefix or start_after too long"));
        }
        let all = object_key(bucket, prefix);
        let mut bound = match begin {
            Position::After(key) if !key.is_empty() => Bound::Excluded(object_key(bucket, key)),
            Position::Behind(prefix) if !prefix.is_empty() => {
                Bound::Included(behind(bucket, prefix))
            }
            _ => Bound::Included(all.clone()),
        };
        let view = self.view();
        loop {
            if matches!(&bound, Bound::Included(at) | Bound::Excluded(at) if *at < all) {
                bound = Bound::Included(all.clone());
            }
            let mut skip = None;
            for found in view.objects(bound) {
                let (object_key, record) = found?;
                if !object_key.starts_with(&all) {
                    break;
                }
                match visit(entry(&object_key, record)?) {
                    Step::Entry => {}
                    Step::Behind(prefix) => {
                        skip = Some(behind(bucket, &prefix));
                        break;
                    }
                    Step::End => break,
                }
            }
            match skip {
                Some(next) => bound = Bound::Included(next),
                None => return Ok(()),
            }
        }
    }
}

/// The least tree key greater than those of all keys that begin with `prefix`.
/// Its last byte is one of UTF-8, or of a bucket's name: never the greatest.
pub(crate) fn behind(bucket: &str, prefix: &str) -> Vec<u8> {
    let mut out = object_key(bucket, prefix);
    if let Some(last) = out.last_mut() {
        *last = last.saturating_add(1);
    }
    out
}

fn entry(object_key: &[u8], record: Record) -> Result<Entry, Error> {
    let (_, key) = split_object_key(object_key).ok_or_else(|| Error::corrupt("object key"))?;
    Ok(Entry {
        key: key.to_owned(),
        len: record.len,
        etag: record.meta.etag,
        created_ms: record.meta.created_ms,
    })
}
