//! Values of the trees of uploads in parts, before and after their completion.

use crate::{
    codec::{decode, put_meta, put_pairs, read_meta, read_pairs, read_stamp},
    error::Error,
    layout::FileId,
    types::{ObjectMeta, UploadId},
};
use prism_cluster::replica::Stamp;
use prism_proto::wire::{DecodeError, Reader};

/// The version of manifests.
const VERSION: u8 = 1;
/// The version of uploads' records.
const STAMPED: u8 = 2;

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
        decode(value, "upload record", |reader| {
            reader.version(STAMPED, "version of the record")?;
            Ok(Self {
                stamp: read_stamp(reader)?,
                meta: read_meta(reader)?,
            })
        })
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
            put_pairs(&mut out, &part.headers)?;
        }
        Ok(out)
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        decode(value, "manifest", Self::read)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.version(VERSION, "version of the manifest")?;
        let upload = UploadId::from_bytes(reader.array("upload")?);
        let count = reader.u16("number of parts")?;
        let parts = (0..count).map(|_| ManifestPart::read(reader));
        Ok(Self {
            upload,
            parts: parts.collect::<Result<_, _>>()?,
        })
    }
}

impl ManifestPart {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = reader.u16("number of the part")?;
        let file = FileId::from_bytes(reader.array("file")?);
        let len = reader.u64("length")?;
        let header_count = reader.u8("number of headers")?;
        Ok(Self {
            number,
            file,
            len,
            headers: read_pairs(reader, header_count.into())?,
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
        let upload = || <[u8; 16]>::try_from(key).map(|id| Self::Upload(UploadId::from_bytes(id)));
        manifest
            .or_else(|_| upload())
            .map_err(|_| Error::corrupt("garbage record"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::types::PARTS_MAX;

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
