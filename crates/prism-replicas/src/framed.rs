//! The wire format of a change, or of a scope, between nodes: four bytes with the length of
//! its description in JSON, the description, and its bytes.

use std::io;

use prism_service::Input;
use serde::{Serialize, de::DeserializeOwned};

/// Bytes of a body that are written or sent at a time.
pub const PIECE_BYTES: usize = 512 << 10;

/// Longest description of a change: 10,000 parts of 120 bytes in JSON, or 1,000 keys of 1 KiB.
/// JSON writes each byte of a key with up to six.
pub const MAX_HEADER_BYTES: usize = 8 << 20;

/// A description as it precedes its bytes.
pub(crate) fn encode_header(description: &impl Serialize) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(description)?;
    let len = u32::try_from(header.len()).map_err(io::Error::other)?;
    Ok([len.to_be_bytes().as_slice(), &header].concat())
}

/// Reads a description from a body of which `left` bytes are unread.
pub(crate) async fn read_header<T: DeserializeOwned>(
    io: &mut impl Input,
    left: &mut u64,
) -> io::Result<T> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let len = read_exactly(io, 4, left).await?;
    let len = len.try_into().map(u32::from_be_bytes).map_err(|_| bad())?;
    let len = usize::try_from(len).map_err(|_| bad())?;
    if len > MAX_HEADER_BYTES {
        return Err(bad());
    }
    let header = read_exactly(io, len, left).await?;
    serde_json::from_slice(&header).map_err(io::Error::other)
}

/// Reads the next piece of a body of which `left` bytes are unread: at least [`PIECE_BYTES`], or
/// the rest.
pub(crate) async fn read_piece(io: &mut impl Input, left: &mut u64) -> io::Result<Vec<u8>> {
    let mut piece = Vec::new();
    while *left > 0 && piece.len() < PIECE_BYTES {
        read_some(io, usize::MAX, left, &mut piece).await?;
    }
    Ok(piece)
}

async fn read_exactly(io: &mut impl Input, len: usize, left: &mut u64) -> io::Result<Vec<u8>> {
    if len as u64 > *left {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    while bytes.len() < len {
        read_some(io, len - bytes.len(), left, &mut bytes).await?;
    }
    Ok(bytes)
}

/// Appends the bytes of the body that the connection has buffered, at most `max`, to `into`.
/// Waits for some if there are none.
async fn read_some(
    io: &mut impl Input,
    max: usize,
    left: &mut u64,
    into: &mut Vec<u8>,
) -> io::Result<()> {
    if io.buffered().is_empty() && io.fill().await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(max);
    let piece = io.buffered();
    let piece = piece.get(..piece.len().min(most)).unwrap_or_default();
    into.extend_from_slice(piece);
    let taken = piece.len();
    io.consume(taken);
    *left -= taken as u64;
    Ok(())
}
