//! Writes numbers, the chunked transfer coding, and the interim answers.

use std::io::Write as _;
use std::num::NonZeroU64;

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The interim answer to a client that waits long: the server still works on the request
/// (RFC 2518, section 10.1).
pub const PROCESSING: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The size line of a chunk whose data the caller writes by other means, such as `sendfile`,
/// and then [`ChunkHeader::END`]. The size is not zero, as that would end the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// At most 16 digits and CRLF.
    line: [u8; 18],
    len: usize,
}

impl ChunkHeader {
    /// The end of each chunk, behind its data.
    pub const END: &'static [u8] = b"\r\n";

    /// The size line for this many bytes.
    #[must_use]
    pub fn new(size: NonZeroU64) -> Self {
        let mut line = [0u8; 18];
        let room = line.len();
        let mut rest = line.as_mut_slice();
        // This does not fail: 18 bytes hold the longest size line.
        let written = write!(rest, "{size:x}\r\n").map_or(0, |()| room - rest.len());
        Self { line, len: written }
    }

    /// The bytes to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.line.get(..self.len).unwrap_or_default()
    }
}

/// Appends `data` as one chunk. Without data it appends nothing, because an empty chunk would
/// end the body.
pub fn write_chunk(data: &[u8], out: &mut Vec<u8>) {
    let Some(size) = NonZeroU64::new(data.len() as u64) else {
        return;
    };
    out.extend_from_slice(ChunkHeader::new(size).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(ChunkHeader::END);
}

/// A number in decimal digits, without an allocation.
pub(crate) struct Decimal {
    digits: [u8; Self::MOST_DIGITS],
    start: usize,
}

impl Decimal {
    /// The number of digits of `u64::MAX`.
    const MOST_DIGITS: usize = 20;

    pub(crate) fn new(mut number: u64) -> Self {
        let mut digits = [b'0'; Self::MOST_DIGITS];
        let mut start = Self::MOST_DIGITS;
        for digit in digits.iter_mut().rev() {
            *digit += (number % 10) as u8;
            number /= 10;
            start -= 1;
            if number == 0 {
                break;
            }
        }
        Self { digits, start }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.digits.get(self.start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_usual() {
        let powers = (0..20).map(|n| 10_u64.pow(n));
        for number in powers.flat_map(|n| [n - 1, n, n + 1]).chain([u64::MAX]) {
            let decimal = Decimal::new(number);
            assert_eq!(decimal.as_bytes(), number.to_string().as_bytes());
        }
    }
}
