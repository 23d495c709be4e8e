//! The types that go into a store and come out of it.

use std::fmt;

use data_encoding::BASE32_DNSSEC;
use prism_cluster::replica::{BucketStamp, Stamp};
use serde::{Deserialize, Serialize};

use crate::{error::Error, layout::FileId};

/// Longest bucket name, in bytes.
pub const BUCKET_NAME_MAX: usize = 63;
/// Longest key, in bytes of UTF-8.
pub const KEY_MAX: usize = 1024;

/// Longest object of several parts, in bytes: 5 TiB, as in S3.
pub const OBJECT_LEN_MAX: u64 = 5 << 40;

/// Most buckets of one store: bounds the answer to a bucket listing.
pub const BUCKETS_MAX: usize = 10_000;
/// Most records of buckets, those of buckets that are gone included.
pub const BUCKET_RECORDS_MAX: usize = 10 * BUCKETS_MAX;
/// Longest document of a bucket, in bytes.
pub const CONFIG_MAX: usize = 64 * 1024;

/// Most parts of one upload, and the highest number of one.
pub const PARTS_MAX: u16 = 10_000;

/// Most versions of one key with other replicas. A replica that lacks them all takes them in by
/// one commit, and gets their list in one answer of at most 8 MiB.
pub const VERSIONS_MAX: usize = 10_000;

/// The metadata of an object: given by its writer, returned unchanged, and never interpreted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObjectMeta {
    /// Entity tag, without quotes; for a plain PUT the MD5 in hexadecimal.
    pub etag: String,
    /// When the object was written, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Response headers to repeat (`content-type`, `cache-control`, ...), in
    /// order.
    pub headers: Vec<(String, String)>,
    /// User metadata, names without the `x-amz-meta-` prefix, in order.
    pub user: Vec<(String, String)>,
}

/// An object without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The stamp of the last change of its bytes or metadata.
    pub stamp: Stamp,
    /// The version's name; none if its bucket had never kept versions.
    pub version: Option<VersionId>,
    /// As given at commit.
    pub meta: ObjectMeta,
    /// Length in bytes.
    pub len: u64,
}

/// A write that has happened, as durably as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Length in bytes.
    pub len: u64,
    /// The name of the new version; none without versions.
    pub version: Option<VersionId>,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// Its name.
    pub name: String,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Whether it keeps versions.
    pub versioning: Versioning,
    /// Identifies its record.
    pub which: BucketStamp,
}

/// An upload that has neither been completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The key of the object to be.
    pub key: String,
    /// Its name.
    pub id: UploadId,
    /// As given when it was created.
    pub meta: ObjectMeta,
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// 1 to [`PARTS_MAX`](crate::PARTS_MAX).
    pub number: u16,
    /// Length in bytes.
    pub len: u64,
    /// As given at commit.
    pub meta: ObjectMeta,
    /// Names its bytes. The completion of the upload says which bytes its caller has seen.
    pub version: PartVersion,
}

/// Names the bytes of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartVersion(pub(crate) FileId);

/// Names an upload of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadName<'a> {
    /// Bucket of the object to be.
    pub bucket: &'a str,
    /// Its key.
    pub key: &'a str,
    /// The upload.
    pub id: UploadId,
}

/// The position at which a listing begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position<'a> {
    /// At the first key.
    Start,
    /// Behind this key.
    After(&'a str),
    /// Behind every key that begins with this.
    Behind(&'a str),
}

/// The continuation of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The next entry.
    Entry,
    /// The first entry that does not begin with this prefix, which must not be empty.
    Behind(String),
    /// No more entries.
    End,
}

/// Names an upload for ever: its time, so that the uploads of one key are listed in the order of
/// their creation, and a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UploadId([u8; 16]);

impl UploadId {
    pub(crate) fn new(created_ms: u64, random: u64) -> Self {
        Self((u128::from(created_ms) << 64 | u128::from(random)).to_be_bytes())
    }

    pub(crate) const fn bytes(self) -> [u8; 16] {
        self.0
    }

    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Reads what `Display` writes: 32 hexadecimal digits in lower case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let id = Self(u128::from_str_radix(text, 16).ok()?.to_be_bytes());
        (id.to_string() == text).then_some(id)
    }
}

impl From<UploadId> for String {
    fn from(id: UploadId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for UploadId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not the name of an upload")
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

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

/// An object or a version in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
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
    /// As given at commit: [`ObjectMeta::headers`].
    pub headers: Vec<(String, String)>,
}

/// The result of a deletion where versions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The deleted version, or the delete marker that was made.
    pub version: VersionId,
    /// Whether it is a delete marker.
    pub is_marker: bool,
}

impl Removed {
    /// The deletion of a version, also of one that there never was.
    pub(crate) fn version(version: VersionId) -> Self {
        Self {
            version,
            is_marker: false,
        }
    }
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
pub(crate) type VersionPlace = [u8; Stamp::LEN];

pub(crate) fn place(stamp: Stamp) -> VersionPlace {
    stamp.to_bytes().map(|byte| !byte)
}

pub(crate) fn stamp_at(place: VersionPlace) -> Stamp {
    Stamp::from_bytes(place.map(|byte| !byte))
}

pub(crate) fn check_bucket(name: &str) -> Result<(), Error> {
    match name.len() {
        0 => Err(Error::InvalidName("empty bucket name")),
        1..=BUCKET_NAME_MAX => Ok(()),
        _ => Err(Error::InvalidName("bucket name too long")),
    }
}

pub(crate) fn check_key(key: &str) -> Result<(), Error> {
    match key.len() {
        0 => Err(Error::InvalidName("empty key")),
        1..=KEY_MAX => Ok(()),
        _ => Err(Error::InvalidName("key too long")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn stamp(time_us: u64) -> Stamp {
        Stamp {
            epoch: 1,
            time_us,
            origin: 7,
        }
    }

    #[test]
    fn an_upload_id_is_read_back_and_nothing_else_is_one() {
        let id = UploadId::new(1_700_000_000_000, 7);
        assert_eq!(UploadId::parse(&id.to_string()), Some(id));
        let upper = id.to_string().to_uppercase();
        for text in ["", "7", "+7", "../../x", upper.as_str()] {
            assert_eq!(UploadId::parse(text), None, "{text}");
        }
        assert!(id < UploadId::new(1_700_000_000_001, 0));
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
}
