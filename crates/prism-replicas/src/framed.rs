//! The wire format of a change, or of a scope, between nodes: four bytes with the length of
//! its description in JSON, the description, and its bytes.

use std::io;

use prism_service::BodySource;
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

/// Reads a description from the beginning of a body.
pub(crate) async fn read_header<T: DeserializeOwned>(body: &mut impl BodySource) -> io::Result<T> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let len = read_exactly(body, 4).await?;
    let len = len.try_into().map(u32::from_be_bytes).map_err(|_| bad())?;
    let len = usize::try_from(len).map_err(|_| bad())?;
    if len > MAX_HEADER_BYTES {
        return Err(bad());
    }
    let header = read_exactly(body, len).await?;
    serde_json::from_slice(&header).map_err(io::Error::other)
}

/// Reads the next piece of a body of known length: [`PIECE_BYTES`], or the rest.
pub(crate) async fn read_piece(body: &mut impl BodySource) -> io::Result<Vec<u8>> {
    let left = body
        .left_bytes()
        .and_then(|left| usize::try_from(left).ok());
    read_exactly(body, left.map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES))).await
}

async fn read_exactly(body: &mut impl BodySource, len: usize) -> io::Result<Vec<u8>> {
    if body.left_bytes().is_none_or(|left| len as u64 > left) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    let mut read_bytes = 0;
    while let Some(room @ [_, ..]) = bytes.get_mut(read_bytes..) {
        read_bytes += body.read(room).await.map_err(io::Error::other)?;
    }
    Ok(bytes)
}
