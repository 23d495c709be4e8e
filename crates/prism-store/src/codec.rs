//! The encoding of the trees' values: big-endian integers, and strings behind their length in two
//! bytes. `record` and `uploads` define the values.

use prism_cluster::replica::Stamp;

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
    read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
) -> Result<T, Error> {
    let mut reader = Reader(value);
    let found = read(&mut reader).filter(|_| reader.0.is_empty());
    found.ok_or_else(|| Error::corrupt(what))
}

/// The bytes not read yet.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take_bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn stamp(&mut self) -> Option<Stamp> {
        self.array().map(Stamp::from_bytes)
    }

    pub(crate) fn string(&mut self) -> Option<String> {
        let len = self.u16()?;
        String::from_utf8(self.take_bytes(usize::from(len))?.to_vec()).ok()
    }

    /// Reads what [`put_meta`] wrote.
    pub(crate) fn meta(&mut self) -> Option<ObjectMeta> {
        Some(ObjectMeta {
            created_ms: self.u64()?,
            etag: self.string()?,
            headers: self.u16().and_then(|count| self.pairs(count))?,
            user: self.u16().and_then(|count| self.pairs(count))?,
        })
    }

    pub(crate) fn pairs(&mut self, count: u16) -> Option<Vec<(String, String)>> {
        (0..count)
            .map(|_| Some((self.string()?, self.string()?)))
            .collect()
    }
}
