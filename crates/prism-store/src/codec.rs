//! The encoding of the trees' values: big-endian integers, and strings behind their length in two
//! bytes. `record` and `uploads` define the values.

use prism_cluster::replica::Stamp;
use prism_proto::wire::{DecodeError, Reader};

use crate::{error::Error, types::ObjectMeta};

/// Longest encoded metadata of one object, in bytes: S3 allows 8 KiB of
/// headers and 2 KiB of user metadata, and 10 tags, which take 5 KiB at most.
pub const META_MAX: usize = 16 * 1024;

/// Appends a string of less than 64 KiB.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) -> Result<(), Error> {
    let len = u16::try_from(text.len()).map_err(|_| Error::MetaTooLarge)?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

pub(crate) fn put_meta(out: &mut Vec<u8>, meta: &ObjectMeta) -> Result<(), Error> {
    let start = out.len();
    out.extend_from_slice(&meta.created_ms.to_be_bytes());
    put_string(out, &meta.etag)?;
    for pairs in [&meta.headers, &meta.user] {
        let count = u16::try_from(pairs.len()).map_err(|_| Error::MetaTooLarge)?;
        out.extend_from_slice(&count.to_be_bytes());
        put_pairs(out, pairs)?;
    }
    if out.len() - start > META_MAX {
        return Err(Error::MetaTooLarge);
    }
    Ok(())
}

/// Appends pairs of strings. Their number stands before them.
pub(crate) fn put_pairs(out: &mut Vec<u8>, pairs: &[(String, String)]) -> Result<(), Error> {
    for (name, value) in pairs {
        put_string(out, name)?;
        put_string(out, value)?;
    }
    Ok(())
}

/// Reads a whole value by `read`.
pub(crate) fn decode<T>(
    value: &[u8],
    what: &str,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, Error> {
    let mut reader = Reader::new(value);
    let found = read(&mut reader);
    let found = found.and_then(|found| reader.finish().map(|()| found));
    found.map_err(|_| Error::corrupt(what))
}

pub(crate) fn read_stamp(reader: &mut Reader<'_>) -> Result<Stamp, DecodeError> {
    reader.array("stamp").map(Stamp::from_bytes)
}

/// Reads what [`put_meta`] wrote.
pub(crate) fn read_meta(reader: &mut Reader<'_>) -> Result<ObjectMeta, DecodeError> {
    let created_ms = reader.u64("time of creation")?;
    let etag = read_string(reader)?;
    let header_count = reader.u16("number of headers")?;
    let headers = read_pairs(reader, header_count)?;
    let user_count = reader.u16("number of user metadata")?;
    Ok(ObjectMeta {
        created_ms,
        etag,
        headers,
        user: read_pairs(reader, user_count)?,
    })
}

pub(crate) fn read_pairs(
    reader: &mut Reader<'_>,
    count: u16,
) -> Result<Vec<(String, String)>, DecodeError> {
    (0..count)
        .map(|_| Ok((read_string(reader)?, read_string(reader)?)))
        .collect()
}

fn read_string(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let len = reader.u16("length of a string")?;
    let bytes = reader.bytes(usize::from(len), "string")?.to_vec();
    String::from_utf8(bytes).map_err(|_| DecodeError::Invalid("string"))
}
