//! A list of entries (type, length, value), to which a release can add one.

use crate::wire::{DecodeError, Put, Reader};

/// Most bytes of the entries of a request.
pub(crate) const MAX_ENTRIES_BYTES: usize = 3 << 10;

/// Appends one entry.
pub(crate) fn put_entry(out: &mut Vec<u8>, kind: u8, put: impl FnOnce(&mut Vec<u8>)) {
    out.put(&[kind]);
    put_sized(out, put);
}

/// Appends bytes behind their number, which is far below 64 Ki.
pub(crate) fn put_sized(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.put(&[0; 2]);
    put(out);
    let len = u16::try_from(out.len() - at - 2).unwrap_or(u16::MAX);
    if let Some(place) = out.get_mut(at..at + 2) {
        place.copy_from_slice(&len.to_be_bytes());
    }
}

/// Reads a list of entries, whose types ascend, and gives each to `take`.
pub(crate) fn read_entries(
    r: &mut Reader<'_>,
    mut take: impl FnMut(u8, &[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let len = usize::from(r.u16("length of the entries")?);
    if len > MAX_ENTRIES_BYTES {
        return Err(DecodeError::TooLong("length of the entries"));
    }
    let mut entries = Reader::new(r.bytes(len, "entries")?);
    let mut last = 0;
    while entries.remaining() > 0 {
        let kind = entries.u8("type of an entry").map_err(|_| cut())?;
        if kind <= last {
            return Err(DecodeError::Invalid("order of the entries"));
        }
        last = kind;
        let len = usize::from(entries.u16("length of an entry").map_err(|_| cut())?);
        // The list is here whole, so an entry that is cut will never be.
        let value = entries.bytes(len, "entry").map_err(|_| cut())?;
        take(kind, value).map_err(|error| match error {
            DecodeError::Truncated(_) => cut(),
            error => error,
        })?;
    }
    Ok(())
}

const fn cut() -> DecodeError {
    DecodeError::Invalid("length of an entry")
}
