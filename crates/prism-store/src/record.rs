//! Values of the trees `objects`, `versions` and `files`. All integers are big-endian, strings
//! carry their length in two bytes.

use prism_cluster::replica::{Bucket, BucketStamp, Phase, Stamp};
use prism_proto::wire::{DecodeError, Reader};

use crate::{
    blocks::crc32c,
    codec::{decode, put_meta, read_meta, read_stamp},
    error::Error,
    layout::FileId,
    types::{BucketInfo, ObjectMeta, VersionId, VersionPlace, Versioning, place},
};

/// The version of files' records.
const VERSION: u8 = 1;
/// The version of objects' records that name no version.
const STAMPED: u8 = 2;
/// The version of objects' records that name a version.
const VERSIONED: u8 = 3;
const KIND_INLINE: u8 = 0;
const KIND_FILE: u8 = 1;
const KIND_PARTS: u8 = 2;
const KIND_MARKER: u8 = 3;
/// The kind of a version's name, in a record that has one.
const NAMED_NULL: u8 = 0;
const NAMED_BY_STAMP: u8 = 1;

/// Versioning and phases, each at the index by which a bucket's record names it.
const VERSIONING: [Versioning; 3] = [
    Versioning::Never,
    Versioning::Enabled,
    Versioning::Suspended,
];
const PHASES: [Phase; 3] = [Phase::Live, Phase::Deleting, Phase::Gone];

/// The place of an object's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// In the tree `inline`, with this CRC32C.
    Inline { id: FileId, crc: u32 },
    /// In a file, described in the tree `files`.
    File { id: FileId },
    /// In several files, named in the tree `manifests`.
    Parts { id: FileId },
    /// No bytes: this version is a delete marker.
    Marker,
}

/// A value of the tree `objects`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The stamp of the last change, set by the commit.
    pub(crate) stamp: Stamp,
    /// None if it was written while its bucket had never kept versions.
    pub(crate) version: Option<VersionId>,
    pub(crate) payload: Payload,
    pub(crate) len: u64,
    pub(crate) meta: ObjectMeta,
}

/// A value of the tree `files`: the checksums, and the object of the file, so that a missing file
/// can be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileRecord {
    pub(crate) len: u64,
    pub(crate) object_key: Vec<u8>,
    pub(crate) crcs: Vec<u32>,
}

/// Bytes to be stored.
pub(crate) enum PutBytes {
    /// The object itself.
    Inline(Vec<u8>),
    /// Encoded [`FileRecord`].
    File(Vec<u8>),
}

impl PutBytes {
    /// The payload of a record for these bytes, which are stored as `id`.
    pub(crate) fn payload(&self, id: FileId) -> Payload {
        match self {
            Self::Inline(bytes) => {
                let crc = crc32c(bytes);
                Payload::Inline { id, crc }
            }
            Self::File(_) => Payload::File { id },
        }
    }
}

impl Record {
    /// A record that gets its stamp and its version's name by its commit.
    pub(crate) fn new(payload: Payload, len: u64, meta: ObjectMeta) -> Self {
        Self {
            stamp: Stamp::NONE,
            version: None,
            payload,
            len,
            meta,
        }
    }

    /// A delete marker.
    pub(crate) fn marker(stamp: Stamp, version: Option<VersionId>, created_ms: u64) -> Self {
        let meta = ObjectMeta {
            created_ms,
            ..ObjectMeta::default()
        };
        Self {
            stamp,
            version,
            ..Self::new(Payload::Marker, 0, meta)
        }
    }

    /// The bytes that its removal gives back at once. Files of parts are collected later.
    pub(crate) fn given_back(&self) -> u64 {
        match self.payload {
            Payload::Parts { .. } => 0,
            _ => self.len,
        }
    }

    /// The value, or [`Error::MetaTooLarge`].
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let (kind, id, crc) = match self.payload {
            Payload::Inline { id, crc } => (KIND_INLINE, id, crc),
            Payload::File { id } => (KIND_FILE, id, 0),
            Payload::Parts { id } => (KIND_PARTS, id, 0),
            Payload::Marker => (KIND_MARKER, FileId::from_bytes([0; 8]), 0),
        };
        let version = match self.version {
            None => STAMPED,
            Some(_) => VERSIONED,
        };
        let mut out = vec![version, kind];
        out.extend_from_slice(&self.stamp.to_bytes());
        match self.version {
            None => {}
            Some(VersionId::Null) => out.push(NAMED_NULL),
            Some(VersionId::Of(stamp)) => {
                out.push(NAMED_BY_STAMP);
                out.extend_from_slice(&stamp.to_bytes());
            }
        }
        out.extend_from_slice(&id.to_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
        out.extend_from_slice(&crc.to_be_bytes());
        put_meta(&mut out, &self.meta)?;
        Ok(out)
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        decode(value, "object record", Self::read)
    }

    /// The record without its metadata.
    pub(crate) fn decode_bare(value: &[u8]) -> Result<Self, Error> {
        let record = Self::read_bare(&mut Reader::new(value));
        record.map_err(|_| Error::corrupt("object record"))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let record = Self::read_bare(reader)?;
        Ok(Self {
            meta: read_meta(reader)?,
            ..record
        })
    }

    fn read_bare(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = reader.u8("version of the record")?;
        let kind = reader.u8("kind")?;
        let stamp = read_stamp(reader)?;
        let version = match version {
            STAMPED => None,
            VERSIONED => Some(match reader.u8("kind of name")? {
                NAMED_NULL => VersionId::Null,
                NAMED_BY_STAMP => VersionId::Of(read_stamp(reader)?),
                _ => return Err(DecodeError::Invalid("kind of name")),
            }),
            _ => return Err(DecodeError::Invalid("version of the record")),
        };
        let id = FileId::from_bytes(reader.array("file")?);
        let len = reader.u64("length")?;
        let crc = reader.u32("checksum")?;
        let payload = match kind {
            KIND_INLINE => Payload::Inline { id, crc },
            KIND_FILE => Payload::File { id },
            KIND_PARTS => Payload::Parts { id },
            KIND_MARKER => Payload::Marker,
            _ => return Err(DecodeError::Invalid("kind")),
        };
        Ok(Self {
            stamp,
            version,
            payload,
            len,
            meta: ObjectMeta::default(),
        })
    }

    /// The file of a part.
    pub(crate) fn file(&self) -> Result<FileId, Error> {
        match self.payload {
            Payload::File { id } => Ok(id),
            _ => Err(Error::corrupt("part without a file")),
        }
    }

    pub(crate) fn id(&self) -> VersionId {
        self.version.unwrap_or(VersionId::Null)
    }

    /// The place of this version, also while it is current.
    pub(crate) fn place(&self) -> VersionPlace {
        place(match self.version {
            Some(VersionId::Of(stamp)) => stamp,
            _ => self.stamp,
        })
    }
}

impl FileRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let key_len = u16::try_from(self.object_key.len()).unwrap_or(u16::MAX);
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.len.to_be_bytes());
        out.extend_from_slice(&key_len.to_be_bytes());
        out.extend_from_slice(&self.object_key);
        for crc in &self.crcs {
            out.extend_from_slice(&crc.to_be_bytes());
        }
        out
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        decode(value, "file record", Self::read)
    }

    /// The length of the file, and the tree's key of its object.
    pub(crate) fn decode_bare(value: &[u8]) -> Result<(u64, &[u8]), Error> {
        let bare = Self::read_bare(&mut Reader::new(value));
        bare.map_err(|_| Error::corrupt("file record"))
    }

    fn read_bare<'v>(reader: &mut Reader<'v>) -> Result<(u64, &'v [u8]), DecodeError> {
        reader.version(VERSION, "version of the record")?;
        let len = reader.u64("length")?;
        let key_len = reader.u16("length of the key")?;
        Ok((len, reader.bytes(usize::from(key_len), "key")?))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (len, object_key) = Self::read_bare(reader)?;
        let object_key = object_key.to_vec();
        let (words, _) = reader.rest().as_chunks::<4>();
        reader.bytes(size_of_val(words), "checksums")?;
        Ok(Self {
            len,
            object_key,
            crcs: words.iter().map(|word| u32::from_be_bytes(*word)).collect(),
        })
    }
}

/// The value of a bucket's record: time of creation (8), versioning (1), stamp (24), life
/// (24) and phase (1). Documents have a tree of their own.
pub(crate) fn bucket_value(record: &Bucket) -> Vec<u8> {
    let mut value = record.created_ms.to_be_bytes().to_vec();
    value.push(index(&VERSIONING, |v| v.enabled() == record.versions));
    value.extend(record.stamp.to_bytes());
    value.extend(record.life.to_bytes());
    value.push(index(&PHASES, |phase| *phase == record.phase));
    value
}

fn index<T>(table: &[T], is_it: impl Fn(&T) -> bool) -> u8 {
    let index = table.iter().position(is_it).map(u8::try_from);
    index.and_then(Result::ok).unwrap_or(u8::MAX)
}

/// Reads [`bucket_value`].
pub(crate) fn bucket_info(name: &[u8], value: &[u8]) -> Result<BucketInfo, Error> {
    let name = std::str::from_utf8(name).map_err(|_| Error::corrupt("bucket name"))?;
    decode(value, "bucket record", |reader| {
        let created_ms = reader.u64("time of creation")?;
        let versioning = VERSIONING.get(usize::from(reader.u8("versioning")?));
        let stamp = read_stamp(reader)?;
        let life = read_stamp(reader)?;
        let phase = PHASES.get(usize::from(reader.u8("phase")?));
        Ok(BucketInfo {
            name: name.to_owned(),
            created_ms,
            versioning: *versioning.ok_or(DecodeError::Invalid("versioning"))?,
            which: BucketStamp {
                stamp,
                life,
                phase: *phase.ok_or(DecodeError::Invalid("phase"))?,
            },
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::{codec::META_MAX, keys::object_key};

    fn record() -> Record {
        Record {
            stamp: Stamp {
                epoch: 1,
                time_us: 1_700_000_000_123_456,
                origin: 9,
            },
            version: None,
            payload: Payload::Inline {
                id: FileId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]),
                crc: 0xdead_beef,
            },
            len: 5,
            meta: ObjectMeta {
                etag: "5d41402abc4b2a76b9719d911017c592".into(),
                created_ms: 1_700_000_000_123,
                headers: vec![("content-type".into(), "text/plain".into())],
                user: vec![
                    ("colour".into(), "grün".into()),
                    ("empty".into(), String::new()),
                ],
            },
        }
    }

    #[test]
    fn a_record_survives_the_round_trip() {
        let mut record = record();
        assert_eq!(Record::decode(&record.encode().unwrap()).unwrap(), record);
        let id = FileId::from_bytes([9; 8]);
        record.payload = Payload::Parts { id };
        assert_eq!(Record::decode(&record.encode().unwrap()).unwrap(), record);
        for version in [VersionId::Null, VersionId::Of(record.stamp)] {
            record.version = Some(version);
            record.payload = Payload::Marker;
            assert_eq!(Record::decode(&record.encode().unwrap()).unwrap(), record);
        }
    }

    #[test]
    fn every_truncation_and_any_excess_of_a_record_is_refused() {
        let bytes = record().encode().unwrap();
        for len in 0..bytes.len() {
            assert!(Record::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Record::decode(&longer).is_err());
    }

    #[test]
    fn a_file_record_survives_the_round_trip() {
        let record = FileRecord {
            len: 3 << 20,
            object_key: object_key("bucket", "some/key"),
            crcs: vec![1, u32::MAX, 3],
        };
        assert_eq!(FileRecord::decode(&record.encode()).unwrap(), record);
        assert!(FileRecord::decode(&record.encode()[..7]).is_err());
    }

    #[test]
    fn oversized_metadata_is_refused() {
        let mut record = record();
        record.meta.user = vec![("x".into(), "y".repeat(META_MAX))];
        assert!(matches!(record.encode(), Err(Error::MetaTooLarge)));
        record.meta.user = vec![("x".into(), "y".repeat(usize::from(u16::MAX) + 1))];
        assert!(matches!(record.encode(), Err(Error::MetaTooLarge)));
    }
}
