//! The chunked transfer coding as it is written, and the interim answers.

use std::io::Write as _;

use crate::Headers;
use crate::forward::is_of_the_head;

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends `data` as one chunk. Without data it appends nothing, because an empty chunk would
/// end the body.
pub fn write_chunk(data: &[u8], out: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    // Never an error, because the vector grows.
    let _ = write!(out, "{:x}\r\n", data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends the end of a chunked body with these trailers, except for fields that only a head may
/// have (RFC 9110, section 6.5.1).
pub fn write_last_chunk(trailers: Option<&Headers>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        trailers.write_without(is_of_the_head, out);
    }
    out.extend_from_slice(b"\r\n");
}
