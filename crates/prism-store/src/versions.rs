//! The names of versions, and their places in the tree.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `versions` | bucket length (1), bucket, escaped key, 0 0, place (24) | [`Record`] |
//! | `nulls` | as in `objects` | the place of the key's null version in `versions` |
//! | `changes` | as in `objects` | the stamp of the key's last change |
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

use std::fmt;

use data_encoding::BASE32_DNSSEC;
use prism_replica::Stamp;
use serde::{Deserialize, Serialize};

use crate::{
    record::{Record, bucket_prefix},
    uploads::{escape, upload_prefix},
};

/// Ends the key within a tree's key, as in `uploads`.
const END: [u8; 2] = [0, 0];
/// Behind all versions of one key, before any longer key.
const BEHIND: [u8; 2] = [0, 1];

/// Most versions of one key with other replicas. A replica that lacks them all takes them in by
/// one commit, and gets their list in one answer of at most 8 MiB.
pub const VERSIONS_MAX: usize = 10_000;

/// Names a version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum VersionId {
    /// The version that was written while its bucket kept no versions.
    Null,
    /// The version whose creation had this stamp.
    Of(Stamp),
}

impl VersionId {
    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "null" {
            return Some(Self::Null);
        }
        let place = BASE32_DNSSEC.decode(text.as_bytes()).ok()?;
        let id = Self::Of(stamp_at(place.try_into().ok()?));
        // A name has one spelling.
        (id.to_string() == text).then_some(id)
    }
}

/// `null`, or 39 letters and digits; the order of their bytes is that of
/// versions, the newest first.
impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Of(stamp) => f.write_str(&BASE32_DNSSEC.encode(&place(*stamp))),
        }
    }
}

impl TryFrom<String> for VersionId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not the name of a version")
    }
}

impl From<VersionId> for String {
    fn from(id: VersionId) -> Self {
        id.to_string()
    }
}

/// Whether a bucket keeps versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Versioning {
    /// It never kept any.
    #[default]
    Never,
    /// Every write makes a version.
    Enabled,
    /// Versions stay; writes replace the null version.
    Suspended,
}

impl Versioning {
    /// The form in a bucket's record: whether versions are enabled; none if they never were.
    #[must_use]
    pub const fn enabled(self) -> Option<bool> {
        match self {
            Self::Never => None,
            Self::Enabled => Some(true),
            Self::Suspended => Some(false),
        }
    }
}

/// A version in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionEntry {
    /// The key.
    pub key: String,
    /// The version's name.
    pub id: VersionId,
    /// Whether it is the newest of its key.
    pub is_latest: bool,
    /// Whether it is a delete marker, which has no bytes.
    pub is_marker: bool,
    /// Length in bytes.
    pub len: u64,
    /// As given at commit.
    pub etag: String,
    /// As given at commit, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}

/// The result of a deletion where versions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The deleted version, or the delete marker that was made.
    pub version: VersionId,
    /// Whether it is a delete marker.
    pub is_marker: bool,
}

/// An object to delete, or one version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToDelete<'a> {
    /// The object's key.
    pub key: &'a str,
    /// The version. Without one, a delete marker is made where versions are kept.
    pub version: Option<VersionId>,
}

/// The place of a version among those of its key.
pub(crate) type Place = [u8; Stamp::LEN];

/// The key of a version in its tree.
pub(crate) fn version_key(object_key: &[u8], place: &Place) -> Vec<u8> {
    [&versions_of(object_key), place.as_slice()].concat()
}

/// The prefix of all versions of one object.
pub(crate) fn versions_of(object_key: &[u8]) -> Vec<u8> {
    let bucket = object_key.first().map_or(0, |len| 1 + usize::from(*len));
    let (bucket, key) = object_key.split_at_checked(bucket).unwrap_or_default();
    let mut out = bucket.to_vec();
    escape(key, &mut out);
    out.extend_from_slice(&END);
    out
}

/// Greater than every version of `key`, smaller than those of greater keys.
pub(crate) fn behind_versions(bucket: &str, key: &str) -> Vec<u8> {
    let mut out = upload_prefix(bucket, key);
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

/// Splits the tree's key of a version into key and place.
pub(crate) fn split_version_key(version_key: &[u8]) -> Option<(String, Place)> {
    let (len, rest) = version_key.split_first()?;
    let (_, rest) = rest.split_at_checked(usize::from(*len))?;
    let (escaped, place) = rest.split_last_chunk::<{ Stamp::LEN }>()?;
    let escaped = escaped.strip_suffix(&END)?;
    Some((crate::uploads::unescape(escaped)?, *place))
}

/// The object key of the tree's key of a version; empty for any other key.
pub(crate) fn object_key_of(version_key: &[u8]) -> Vec<u8> {
    let bucket = version_key.first().map_or(0, |len| 1 + usize::from(*len));
    match (version_key.get(..bucket), split_version_key(version_key)) {
        (Some(bucket), Some((key, _))) => [bucket, key.as_bytes()].concat(),
        _ => Vec::new(),
    }
}

/// The place of a version with this stamp.
pub(crate) fn place(stamp: Stamp) -> Place {
    stamp.to_bytes().map(|byte| !byte)
}

/// The stamp of a place.
pub(crate) fn stamp_at(place: Place) -> Stamp {
    Stamp::from_bytes(place.map(|byte| !byte))
}

impl Record {
    /// The name of this version.
    pub(crate) fn id(&self) -> VersionId {
        self.version.unwrap_or(VersionId::Null)
    }

    /// The place of this version, also while it is current.
    pub(crate) fn place(&self) -> Place {
        place(match self.version {
            Some(VersionId::Of(stamp)) => stamp,
            _ => self.stamp,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::record::object_key;

    fn stamp(time_us: u64) -> Stamp {
        Stamp {
            epoch: 1,
            time_us,
            origin: 7,
        }
    }

    #[test]
    fn names_of_versions_are_read_as_written_and_newer_ones_come_first() {
        for id in [
            VersionId::Null,
            VersionId::Of(stamp(1)),
            VersionId::Of(Stamp::NONE),
        ] {
            assert_eq!(VersionId::parse(&id.to_string()), Some(id), "{id}");
            let text = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<VersionId>(&text).unwrap(), id);
        }
        let (older, newer) = (VersionId::Of(stamp(1_000)), VersionId::Of(stamp(1_001)));
        assert!(newer.to_string() < older.to_string());
        let name = older.to_string();
        for other in [
            "",
            "Null",
            "x",
            &name.to_uppercase(),
            &format!("{name}0"),
            &name[1..],
        ] {
            assert_eq!(VersionId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn versions_lie_in_the_order_of_keys_and_then_the_newest_first() {
        let at = |key: &str, time| version_key(&object_key("b", key), &place(stamp(time)));
        let ordered = [
            at("a", 9),
            at("a", 2),
            behind_versions("b", "a"),
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
