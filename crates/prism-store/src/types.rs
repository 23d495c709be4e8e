//! The types that go into a store and come out of it.

use std::{any::Any, fmt, sync::OnceLock};

use prism_replica::{BucketStamp, Stamp};
use serde::{Deserialize, Serialize};

use crate::{
    checked::CheckedFile,
    error::Error,
    layout::FileId,
    parts::Parts,
    uploads::UploadId,
    versions::{VersionId, Versioning},
};

/// Longest bucket name, in bytes.
pub const BUCKET_NAME_MAX: usize = 63;
/// Longest key, in bytes of UTF-8.
pub const KEY_MAX: usize = 1024;

/// Longest object of several parts, in bytes: 5 TiB, as in S3.
pub const OBJECT_LEN_MAX: u64 = 5 << 40;

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

/// An object opened for reading. It stays readable, unchanged, whatever is
/// written to its key meanwhile.
#[derive(Debug)]
pub struct Object {
    /// The stamp of the last change of its bytes or metadata.
    pub stamp: Stamp,
    /// The version's name; none if its bucket had never kept versions.
    pub version: Option<VersionId>,
    /// As given at commit.
    pub meta: ObjectMeta,
    /// Length in bytes.
    pub len: u64,
    /// The bytes, or their files.
    pub body: Body,
    /// A value that readers derive from the object once, and share while it stays in memory.
    pub derived: Derived,
}

/// A value that a reader derives from an object, such as the head of an answer. The store
/// never looks at it.
#[derive(Default)]
pub struct Derived(OnceLock<Box<dyn Any + Send + Sync>>);

impl Derived {
    /// The value, made by the first call; `None` if that made another type.
    pub fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Derived")
            .field(&self.0.get().is_some())
            .finish()
    }
}

/// The bytes of an object.
#[derive(Debug)]
pub enum Body {
    /// A small object, checked against its checksum.
    Inline(Vec<u8>),
    /// A large object. Check each block before you send it.
    File(CheckedFile),
    /// An object uploaded in parts. Check their blocks likewise.
    Parts(Parts),
}

/// A write that has happened, as durably as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Length in bytes.
    pub len: u64,
    /// Whether an older object was replaced.
    pub replaced: bool,
    /// The stamp of the object or part.
    pub stamp: Stamp,
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

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Length in bytes.
    pub len: u64,
    /// As given at commit.
    pub etag: String,
    /// As given at commit, in milliseconds since the Unix epoch.
    pub created_ms: u64,
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
