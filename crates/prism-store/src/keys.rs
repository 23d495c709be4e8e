//! The keys of the trees. Strings carry their length, or end with 0 0; numbers are big-endian.
//! `record`, `uploads` and `pending` define the values.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `objects` | bucket length (1), bucket, key | `Record` |
//! | `files` | file id (8) | `FileRecord` |
//! | `inline` | file id (8) | the object's bytes |
//! | `uploads` | bucket length (1), bucket, escaped key, 0 0, upload id (16) | `UploadRecord` |
//! | `parts` | upload id (16), part number (2) | `Record` of a file |
//! | `manifests` | id (8) | `Manifest` of a completed object |
//! | `garbage` | id of a manifest (8) or of an upload (16) | nothing |
//! | `versions` | bucket length (1), bucket, escaped key, 0 0, place (24) | `Record` |
//! | `nulls` | as in `objects` | the place of the key's null version in `versions` |
//! | `changes` | as in `objects` | the stamp of the key's last change |
//!
//! An object of parts stays the files of its parts, in the order of the manifest. No upload or
//! object has the parts in `garbage` any more. A commit of its own removes them, however many
//! they are.
//!
//! The current object of a key always lies in the tree `objects`, so its readers pay nothing
//! for versions. The objects that it replaces move to `versions`. Delete markers lie there
//! too, current or not. A place is a stamp with its bits inverted, so the newest version of a
//! key comes first. The name of a version gives its place. A null version lies at the stamp
//! that it had when it moved.
//!
//! A key with versions is in `changes`. Every change of any version sets the key's stamp
//! there, by which replicas compare the key. A key without versions has the stamp of its
//! object.

use prism_cluster::replica::Stamp;

use crate::{
    error::Error,
    types::{UploadId, VersionPlace, check_bucket, check_key},
};

/// Ends the key within a tree's key; a 0 in the key itself is followed by 255.
const END: [u8; 2] = [0, 0];
/// Behind all uploads or versions of one key, before any longer key.
const BEHIND: [u8; 2] = [0, 1];

/// The prefix of the keys of all objects of a bucket.
pub(crate) fn bucket_prefix(bucket: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + bucket.len());
    out.push(u8::try_from(bucket.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(bucket.as_bytes());
    out
}

/// The key of a bucket's document.
pub(crate) fn document_key(bucket: &str, name: &str) -> Vec<u8> {
    [&bucket_prefix(bucket), name.as_bytes()].concat()
}

/// The key of a document of the caller in the tree `system`.
pub(crate) fn note_key(name: &str) -> String {
    format!("note/{name}")
}

/// The key of an object in the tree `objects`, which sorts by the key's bytes within a bucket. The
/// caller has checked the lengths of both.
pub(crate) fn object_key(bucket: &str, key: &str) -> Vec<u8> {
    let mut out = bucket_prefix(bucket);
    out.extend_from_slice(key.as_bytes());
    out
}

/// [`object_key`] of names that come from a caller.
pub(crate) fn checked_key(bucket: &str, key: &str) -> Result<Vec<u8>, Error> {
    check_bucket(bucket)?;
    check_key(key)?;
    Ok(object_key(bucket, key))
}

/// The least key in `objects` greater than those of all keys that begin with `prefix`.
/// Its last byte is one of UTF-8, or of a bucket's name: never the greatest.
pub(crate) fn behind(bucket: &str, prefix: &str) -> Vec<u8> {
    let mut out = object_key(bucket, prefix);
    if let Some(last) = out.last_mut() {
        *last = last.saturating_add(1);
    }
    out
}

/// Splits the tree's key of an object into bucket and key.
pub(crate) fn split_object_key(object_key: &[u8]) -> Option<(&str, &str)> {
    let (bucket, key) = split_bucket(object_key)?;
    Some((
        std::str::from_utf8(bucket).ok()?,
        std::str::from_utf8(key).ok()?,
    ))
}

/// The bucket of the tree's key of an object.
pub(crate) fn bucket_of(object_key: &[u8]) -> &str {
    let bucket = split_bucket(object_key).map(|(bucket, _)| bucket);
    std::str::from_utf8(bucket.unwrap_or_default()).unwrap_or_default()
}

fn split_bucket(tree_key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = tree_key.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// The prefix of all uploads or versions whose keys begin with `prefix`.
pub(crate) fn escaped_prefix(bucket: &str, prefix: &str) -> Vec<u8> {
    let mut out = bucket_prefix(bucket);
    escape(prefix.as_bytes(), &mut out);
    out
}

/// Appends a key, or a prefix of one, so that no [`END`] is inside.
fn escape(key: &[u8], out: &mut Vec<u8>) {
    for byte in key {
        out.push(*byte);
        if *byte == 0 {
            out.push(u8::MAX);
        }
    }
}

/// The key that [`escape`] has escaped.
fn unescape(escaped: &[u8]) -> Option<String> {
    let mut key = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        key.push(*byte);
        if *byte == 0 && bytes.next() != Some(&u8::MAX) {
            return None;
        }
    }
    String::from_utf8(key).ok()
}

/// Splits the tree's key of an upload or a version into bucket, key and the `N` bytes behind.
fn split_escaped<const N: usize>(tree_key: &[u8]) -> Option<(&[u8], String, [u8; N])> {
    let (bucket, rest) = split_bucket(tree_key)?;
    let (escaped, last) = rest.split_last_chunk()?;
    Some((bucket, unescape(escaped.strip_suffix(&END)?)?, *last))
}

/// Greater than every upload or version of `key`, smaller than those of greater keys.
pub(crate) fn behind_key(bucket: &str, key: &str) -> Vec<u8> {
    let mut out = escaped_prefix(bucket, key);
    out.extend_from_slice(&BEHIND);
    out
}

/// The least tree key greater than those of all versions whose keys begin with
/// `prefix`, which is not empty. Its last byte is one of UTF-8: never the greatest.
pub(crate) fn behind_prefix(bucket: &str, prefix: &str) -> Vec<u8> {
    let mut out = bucket_prefix(bucket);
    if let Some((last, rest)) = prefix.as_bytes().split_last() {
        escape(rest, &mut out);
        out.push(last.saturating_add(1));
    }
    out
}

/// The prefix of all uploads and versions of one object.
pub(crate) fn versions_of(object_key: &[u8]) -> Vec<u8> {
    let (bucket, key) = split_bucket(object_key).unwrap_or_default();
    let mut out = object_key.get(..=bucket.len()).unwrap_or_default().to_vec();
    escape(key, &mut out);
    out.extend_from_slice(&END);
    out
}

/// The key of an upload in its tree: by key, then by its id.
pub(crate) fn upload_key(object_key: &[u8], id: UploadId) -> Vec<u8> {
    [&versions_of(object_key), id.bytes().as_slice()].concat()
}

pub(crate) fn split_upload_key(upload_key: &[u8]) -> Option<(String, UploadId)> {
    let (_, key, id) = split_escaped(upload_key)?;
    Some((key, UploadId::from_bytes(id)))
}

pub(crate) fn part_key(upload: UploadId, number: u16) -> [u8; 18] {
    let mut out = [0; 18];
    let (id, rest) = out.split_at_mut(16);
    id.copy_from_slice(&upload.bytes());
    rest.copy_from_slice(&number.to_be_bytes());
    out
}

pub(crate) fn part_number(part_key: &[u8]) -> Option<u16> {
    let number = part_key.split_last_chunk::<2>()?.1;
    Some(u16::from_be_bytes(*number))
}

pub(crate) fn version_key(object_key: &[u8], place: &VersionPlace) -> Vec<u8> {
    [&versions_of(object_key), place.as_slice()].concat()
}

pub(crate) fn split_version_key(version_key: &[u8]) -> Option<(String, VersionPlace)> {
    let (_, key, place) = split_escaped::<{ Stamp::LEN }>(version_key)?;
    Some((key, place))
}

/// The object key of the tree's key of a version; that of no object for any other key.
pub(crate) fn object_key_of(version_key: &[u8]) -> Vec<u8> {
    let split = split_escaped::<{ Stamp::LEN }>(version_key);
    let (bucket, key, _) = split.unwrap_or_default();
    let len = u8::try_from(bucket.len()).unwrap_or(u8::MAX);
    [&[len], bucket, key.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::types::{place, stamp_at};

    #[test]
    fn object_keys_split_into_what_they_were_made_of() {
        let joined = object_key("b", "k/ü");
        assert_eq!(split_object_key(&joined), Some(("b", "k/ü")));
        assert_eq!(split_object_key(&[9, b'x']), None);
        assert_eq!(split_object_key(&[]), None);
    }

    #[test]
    fn uploads_are_in_the_order_of_keys_whatever_bytes_are_in_them() {
        let keys = ["a", "a\0", "a\0b", "a\u{1}", "aa", "a\u{10ffff}", "b"];
        let last = UploadId::from_bytes([255; 16]);
        let first = UploadId::from_bytes([0; 16]);
        for pair in keys.windows(2) {
            let greatest = upload_key(&object_key("bkt", pair[0]), last);
            assert!(greatest < behind_key("bkt", pair[0]));
            assert!(behind_key("bkt", pair[0]) < upload_key(&object_key("bkt", pair[1]), first));
        }
        for key in keys {
            let made = upload_key(&object_key("bkt", key), last);
            assert_eq!(split_upload_key(&made), Some((key.to_owned(), last)));
        }
        assert_eq!(split_upload_key(b"\x03bkt"), None);
    }

    fn stamp(time_us: u64) -> Stamp {
        Stamp {
            epoch: 1,
            time_us,
            origin: 7,
        }
    }

    #[test]
    fn versions_lie_in_the_order_of_keys_and_then_the_newest_first() {
        let at = |key: &str, time| version_key(&object_key("b", key), &place(stamp(time)));
        let ordered = [
            at("a", 9),
            at("a", 2),
            behind_key("b", "a"),
            at("a\0", 5),
            at("a\0b", 5),
            behind_prefix("b", "a\0"),
            at("a!", 1),
            at("a!", 0),
            behind_prefix("b", "a!"),
            behind_prefix("b", "a"),
            at("b", 1),
        ];
        assert!(ordered.is_sorted(), "{ordered:?}");
        let split = split_version_key(&at("a\0b", 5)).unwrap();
        assert_eq!(split, ("a\0b".to_owned(), place(stamp(5))));
        assert_eq!(stamp_at(split.1), stamp(5));
        assert_eq!(object_key_of(&at("a\0b", 5)), object_key("b", "a\0b"));
        assert_eq!(split_version_key(b"\x01b"), None);
    }
}
