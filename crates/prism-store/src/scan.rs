//! Listings of objects, in the order of their keys' bytes.

use std::ops::Bound;

use crate::{
    error::Error,
    keys::{behind, object_key, split_object_key},
    merge::under,
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
        let mut begin = match begin {
            Position::After(key) if !key.is_empty() => Bound::Excluded(object_key(bucket, key)),
            Position::Behind(prefix) if !prefix.is_empty() => {
                Bound::Included(behind(bucket, prefix))
            }
            _ => Bound::Unbounded,
        };
        let view = self.view();
        'skip: loop {
            for found in under(all.clone(), |begin| view.objects(begin), begin) {
                let (object_key, record) = found?;
                match visit(entry(&object_key, record)?) {
                    Step::Entry => {}
                    Step::Behind(prefix) => {
                        begin = Bound::Included(behind(bucket, &prefix));
                        continue 'skip;
                    }
                    Step::End => break,
                }
            }
            return Ok(());
        }
    }
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
