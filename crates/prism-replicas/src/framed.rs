//! The wire format of a change or a thing between nodes: four bytes with the length of its
//! description in JSON, the description, and its bytes.

use std::io;

use prism_service::Input;

/// Bytes of a body that are written or sent at a time.
pub const PIECE_BYTES: usize = 512 << 10;

/// Longest description of a change: 10,000 parts of 120 bytes in JSON, or 1,000
/// keys of 1 KiB, each byte of which JSON writes with up to six.
pub const MAX_HEADER_BYTES: usize = 8 << 20;
/// What precedes the bytes of a change: the length of its description, and that.
pub(crate) fn prefix(header: &[u8]) -> io::Result<Vec<u8>> {
    let len = u32::try_from(header.len()).map_err(io::Error::other)?;
    Ok([&len.to_be_bytes(), header].concat())
}

/// The next bytes that were read and belong to the body, at most `max`.
pub(crate) fn take_piece(io: &mut impl Input, max: usize, left: &mut u64, into: &mut Vec<u8>) {
    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(max);
    let piece = io.buffered();
    let piece = piece.get(..piece.len().min(most)).unwrap_or_default();
    into.extend_from_slice(piece);
    let taken = piece.len();
    io.consume(taken);
    *left -= taken as u64;
}

pub(crate) async fn read_exactly(
    io: &mut impl Input,
    len: usize,
    left: &mut u64,
) -> io::Result<Vec<u8>> {
    if len as u64 > *left {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    while bytes.len() < len {
        if io.buffered().is_empty() && io.fill().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let missing = len - bytes.len();
        take_piece(io, missing, left, &mut bytes);
    }
    Ok(bytes)
}
