//! The keys and values of uploads in parts, before and after their completion.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `uploads` | bucket length (1), bucket, escaped key, 0 0, upload id (16) | [`UploadRecord`] |
//! | `parts` | upload id (16), part number (2) | [`Record`](crate::record::Record) of a file |
//! | `manifests` | id (8) | [`Manifest`] of a completed object |
//! | `garbage` | id of a manifest (8) or of an upload (16) | nothing |
//!
//! An object of parts stays the files of its parts, in the order of the manifest. No upload or
//! object has the parts in `garbage` any more. A commit of its own removes them, however many
//! they are.

use std::fmt;

use prism_replica::Stamp;
use serde::{Deserialize, Serialize};

use crate::{
    codec::{Reader, put_meta, put_string},
    error::Error,
    layout::FileId,
    record::bucket_prefix,
    types::ObjectMeta,
};

/// Most parts of one upload, and the highest number of one.
pub const PARTS_MAX: u16 = 10_000;

const VERSION: u8 = 1;
/// The version of uploads' records with a stamp.
const STAMPED: u8 = 2;
const ID_BYTES: usize = 16;
/// Ends the key within a tree's key; a 0 in the key itself is followed by 255.
const END: [u8; 2] = [0, 0];
/// Behind all uploads of one key, before any longer key.
const BEHIND: [u8; 2] = [0, 1];

/// Names an upload for ever: its time, so that the uploads of one key are listed in the order of
/// their creation, and a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UploadId([u8; ID_BYTES]);

impl UploadId {
    pub(crate) fn new(created_ms: u64, random: u64) -> Self {
        Self((u128::from(created_ms) << 64 | u128::from(random)).to_be_bytes())
    }

    pub(crate) const fn bytes(self) -> [u8; ID_BYTES] {
        self.0
    }

    pub(crate) const fn from_bytes(bytes: [u8; ID_BYTES]) -> Self {
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

/// A value of the tree `uploads`: the metadata of the future object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UploadRecord {
    /// Set by the commit.
    pub(crate) stamp: Stamp,
    pub(crate) meta: ObjectMeta,
}

/// The parts of an object, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The upload that made the object.
    pub(crate) upload: UploadId,
    pub(crate) parts: Vec<ManifestPart>,
}

/// One part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestPart {
    pub(crate) number: u16,
    pub(crate) file: FileId,
    pub(crate) len: u64,
    /// Its headers, such as checksums, as its writer gave them; without its ETag.
    pub(crate) headers: Vec<(String, String)>,
}

/// Parts that no upload or object has any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Garbage {
    /// The parts of an object that was replaced or deleted.
    Manifest(FileId),
    /// The rest of an upload that has ended.
    Upload(UploadId),
}

impl UploadRecord {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut out = vec![STAMPED];
        out.extend_from_slice(&self.stamp.to_bytes());
        put_meta(&mut out, &self.meta)?;
        Ok(out)
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(value);
        let read = |reader: &mut Reader<'_>| {
            let stamp = match reader.u8()? {
                VERSION => Stamp::NONE,
                STAMPED => Stamp::from_bytes(reader.array()?),
                _ => return None,
            };
            let meta = reader.meta()?;
            Some(Self { stamp, meta })
        };
        read(&mut reader)
            .filter(|_| reader.0.is_empty())
            .ok_or_else(|| Error::corrupt("upload record"))
    }
}

impl Manifest {
    /// At most 1.5 MiB: 10,000 parts with a SHA-256 each take 110 bytes each.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.upload.bytes());
        let count = u16::try_from(self.parts.len()).map_err(|_| Error::MetaTooLarge)?;
        out.extend_from_slice(&count.to_be_bytes());
        for part in &self.parts {
            out.extend_from_slice(&part.number.to_be_bytes());
            out.extend_from_slice(&part.file.to_bytes());
            out.extend_from_slice(&part.len.to_be_bytes());
            let count = u8::try_from(part.headers.len()).map_err(|_| Error::MetaTooLarge)?;
            out.push(count);
            for (name, value) in &part.headers {
                put_string(&mut out, name)?;
                put_string(&mut out, value)?;
            }
        }
        Ok(out)
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(value);
        Self::read(&mut reader)
            .filter(|_| reader.0.is_empty())
            .ok_or_else(|| Error::corrupt("manifest"))
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        if reader.u8()? != VERSION {
            return None;
        }
        let upload = UploadId::from_bytes(reader.array()?);
        let count = reader.u16()?;
        let parts = (0..count).map(|_| ManifestPart::read(reader));
        Some(Self {
            upload,
            parts: parts.collect::<Option<_>>()?,
        })
    }
}

impl ManifestPart {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let number = reader.u16()?;
        let file = FileId::from_bytes(reader.array()?);
        let len = reader.u64()?;
        let count = reader.u8()?;
        let headers = (0..count).map(|_| Some((reader.string()?, reader.string()?)));
        Some(Self {
            number,
            file,
            len,
            headers: headers.collect::<Option<_>>()?,
        })
    }
}

impl Garbage {
    pub(crate) fn key(self) -> Vec<u8> {
        match self {
            Self::Manifest(id) => id.to_bytes().to_vec(),
            Self::Upload(id) => id.bytes().to_vec(),
        }
    }

    pub(crate) fn from_key(key: &[u8]) -> Result<Self, Error> {
        let manifest = <[u8; 8]>::try_from(key).map(|id| Self::Manifest(FileId::from_bytes(id)));
        let upload = || <[u8; ID_BYTES]>::try_from(key).map(|id| Self::Upload(UploadId(id)));
        manifest
            .or_else(|_| upload())
            .map_err(|_| Error::corrupt("garbage record"))
    }
}

/// The key of an upload in its tree: by key, then by its id.
pub(crate) fn upload_key(bucket: &str, key: &str, id: UploadId) -> Vec<u8> {
    let mut out = upload_prefix(bucket, key);
    out.extend_from_slice(&END);
    out.extend_from_slice(&id.bytes());
    out
}

/// The prefix of all uploads whose keys begin with `prefix`.
pub(crate) fn upload_prefix(bucket: &str, prefix: &str) -> Vec<u8> {
    let mut out = bucket_prefix(bucket);
    escape(prefix.as_bytes(), &mut out);
    out
}

/// Appends a key, or a prefix of one, so that no [`END`] is inside.
pub(crate) fn escape(key: &[u8], out: &mut Vec<u8>) {
    for byte in key {
        out.push(*byte);
        if *byte == 0 {
            out.push(u8::MAX);
        }
    }
}

/// Greater than every upload of `key`, smaller than those of greater keys.
pub(crate) fn behind_uploads(bucket: &str, key: &str) -> Vec<u8> {
    let mut out = upload_prefix(bucket, key);
    out.extend_from_slice(&BEHIND);
    out
}

/// Splits the tree's key of an upload into key and id.
pub(crate) fn split_upload_key(upload_key: &[u8]) -> Option<(String, UploadId)> {
    let (len, rest) = upload_key.split_first()?;
    let (_, rest) = rest.split_at_checked(usize::from(*len))?;
    let (escaped, id) = rest.split_last_chunk::<ID_BYTES>()?;
    let escaped = escaped.strip_suffix(&END)?;
    Some((unescape(escaped)?, UploadId(*id)))
}

/// The key that [`escape`] has escaped.
pub(crate) fn unescape(escaped: &[u8]) -> Option<String> {
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

/// The key of a part in its tree.
pub(crate) fn part_key(upload: UploadId, number: u16) -> [u8; ID_BYTES + 2] {
    let mut out = [0; ID_BYTES + 2];
    let (id, rest) = out.split_at_mut(ID_BYTES);
    id.copy_from_slice(&upload.bytes());
    rest.copy_from_slice(&number.to_be_bytes());
    out
}

/// The number of a part, by its key in the tree.
pub(crate) fn part_number(part_key: &[u8]) -> Option<u16> {
    let number = part_key.split_last_chunk::<2>()?.1;
    Some(u16::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

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
    fn uploads_are_in_the_order_of_keys_whatever_bytes_are_in_them() {
        let keys = ["a", "a\0", "a\0b", "a\u{1}", "aa", "a\u{10ffff}", "b"];
        let last = UploadId::from_bytes([255; 16]);
        let first = UploadId::from_bytes([0; 16]);
        for pair in keys.windows(2) {
            let greatest = upload_key("bkt", pair[0], last);
            assert!(greatest < behind_uploads("bkt", pair[0]));
            assert!(behind_uploads("bkt", pair[0]) < upload_key("bkt", pair[1], first));
        }
        for key in keys {
            let made = upload_key("bkt", key, last);
            assert_eq!(split_upload_key(&made), Some((key.to_owned(), last)));
        }
        assert_eq!(split_upload_key(b"\x03bkt"), None);
    }

    #[test]
    fn manifests_survive_the_round_trip_and_no_cut_is_taken_for_one() {
        let part = |number: u16| ManifestPart {
            number,
            file: FileId::from_bytes([number as u8; 8]),
            len: u64::from(number) << 40,
            headers: vec![("x-amz-checksum-crc32".into(), "AAAAAA==".into())],
        };
        let manifest = Manifest {
            upload: UploadId::new(1, 2),
            parts: vec![part(1), part(PARTS_MAX)],
        };
        let bytes = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        for len in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let record = UploadRecord {
            stamp: Stamp::NONE,
            meta: ObjectMeta::default(),
        };
        let bytes = record.encode().unwrap();
        assert_eq!(UploadRecord::decode(&bytes).unwrap(), record);
        assert!(UploadRecord::decode(&bytes[1..]).is_err());
    }

    #[test]
    fn garbage_is_told_apart_by_its_key() {
        for garbage in [
            Garbage::Manifest(FileId::from_bytes([7; 8])),
            Garbage::Upload(UploadId::new(3, 4)),
        ] {
            assert_eq!(Garbage::from_key(&garbage.key()).unwrap(), garbage);
        }
        assert!(Garbage::from_key(b"123").is_err());
    }
}
