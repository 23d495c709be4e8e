//! Bodies in the content coding `aws-chunked`: data in chunks, which may be signed, and a checksum
//! behind them.
//!
//! ```text
//! 400;chunk-signature=<64 hex digits> CRLF  1024 bytes of data  CRLF
//! 0;chunk-signature=<64 hex digits> CRLF
//! x-amz-checksum-crc32c:sOO8/Q== CRLF
//! x-amz-trailer-signature:<64 hex digits> CRLF
//! CRLF
//! ```
//!
//! Only the signed forms have signatures. The two lines of trailers are there if
//! `x-amz-content-sha256` says so. All of this is inside the HTTP body; `prism-http` removes the
//! body's own framing. [`crate::BodyDigest`] verifies the checksum.
//!
//! Reference: "Signature Calculations for the Authorization Header:
//! Transferring Payload in Multiple Chunks" and "... Including Trailing
//! Headers" in the Amazon S3 API reference.

mod chain;
mod trailer;

use std::ops::Range;

use prism_http::Headers;

pub use self::chain::Chain;
use self::trailer::Trailers;
use crate::checksum::Algorithm;
use crate::fields::{CONTENT_SHA256, is_digits, parse_hex, single};
use crate::{Code, S3Error};
pub use prism_proto::facts::Seed;

/// The header with the bytes of data of a body in chunks.
pub(crate) const DECODED_LENGTH: &str = "x-amz-decoded-content-length";
/// The header that names the checksum behind a body in chunks.
pub(crate) const TRAILER: &str = "x-amz-trailer";

/// The form of a body in chunks, and the start of its signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streaming {
    /// Whether trailers follow the last chunk.
    pub trailer: bool,
    /// The verifier of the chunks, if they are signed.
    pub chain: Option<Box<Chain>>,
}

/// The form of body that a value of `x-amz-content-sha256` announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) signed: bool,
    pub(crate) trailer: bool,
}

/// Whether a value of `x-amz-content-sha256` announces chunks, of a known form or not.
pub(crate) fn is_announced(value: &[u8]) -> bool {
    value.starts_with(b"STREAMING-")
}

/// Whether the body comes in chunks.
pub(crate) fn is_streaming(headers: &Headers) -> bool {
    headers.get(CONTENT_SHA256).is_some_and(is_announced)
}

impl Form {
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (signed, trailer) = match value {
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => (false, true),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => (true, false),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => (true, true),
            _ => return None,
        };
        Some(Self { signed, trailer })
    }
}

/// The bytes of data that a body in chunks must have.
pub(crate) fn decoded_length(headers: &Headers) -> Result<u64, S3Error> {
    let text = single(headers, DECODED_LENGTH)?.ok_or_else(|| {
        Code::MissingContentLength
            .with_message("A body in chunks needs x-amz-decoded-content-length.")
    })?;
    let length = text.parse().ok().filter(|_| is_digits(text));
    length.ok_or_else(|| invalid("x-amz-decoded-content-length is not a number of bytes"))
}

/// The checksum that `x-amz-trailer` announces, which may be one only.
pub(crate) fn announced_trailer(headers: &Headers) -> Result<Option<Algorithm>, S3Error> {
    let Some(name) = single(headers, TRAILER)? else {
        return Ok(None);
    };
    let name = name.trim().to_ascii_lowercase();
    match Algorithm::from_header(&name) {
        None => Err(invalid("x-amz-trailer must name one checksum header")),
        found => Ok(found),
    }
}

/// Removes the framing of chunks from a body. Its input may be cut anywhere.
#[derive(Debug)]
pub struct StreamDecoder {
    state: State,
    chain: Option<Box<Chain>>,
    trailers: Trailers,
    /// Data bytes still to come.
    left: u64,
}

#[derive(Debug)]
enum State {
    /// The line before a chunk.
    Line(Vec<u8>),
    Data {
        left: u64,
    },
    /// The line end behind the data, and whether its CR has come.
    End {
        cr: bool,
    },
    /// The bytes behind the last chunk.
    Tail(Vec<u8>),
}

impl StreamDecoder {
    /// The longest line of a chunk: 16 digits, `;chunk-signature=`, 64 digits, CR LF.
    const MAX_LINE_BYTES: usize = 16 + 17 + 64 + 2;
    /// Most bytes of trailers. The longest checksum takes 68 bytes, the signature 90.
    const MAX_TAIL_BYTES: usize = 512;

    /// A decoder at the first byte of the body that `headers` announce.
    ///
    /// # Errors
    /// As S3 answers for headers that are missing or malformed.
    pub fn new(streaming: Streaming, headers: &Headers) -> Result<Self, S3Error> {
        Ok(Self {
            state: State::Line(Vec::new()),
            trailers: Trailers {
                announced: announced_trailer(headers)?,
                signed: streaming.trailer && streaming.chain.is_some(),
            },
            chain: streaming.chain,
            left: decoded_length(headers)?,
        })
    }

    /// Reads the next bytes of the body. Returns the data of one chunk at a time, before the
    /// chunk's signature is verified, as a range of the input. The range may be empty. The
    /// bytes up to its end are used.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`, or an error about malformed input. The caller must then drop the
    /// decoder and the data from it.
    pub fn consume(&mut self, input: &[u8]) -> Result<Range<usize>, S3Error> {
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            if let State::Data { left } = &mut self.state {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                *left -= taken as u64;
                let ended = *left == 0;
                if let Some(chain) = &mut self.chain {
                    chain.update(rest.get(..taken).unwrap_or_default());
                }
                if ended {
                    self.end_chunk()?;
                    self.state = State::End { cr: false };
                }
                return Ok(at..at + taken);
            }
            at += self.take_framing(rest)?;
        }
        Ok(at..at)
    }

    /// Ends the HTTP body. Returns the checksum behind the data.
    ///
    /// # Errors
    /// `IncompleteBody` if chunks are missing, `MalformedTrailerError`,
    /// `SignatureDoesNotMatch`.
    pub fn finish(self) -> Result<Option<(Algorithm, Vec<u8>)>, S3Error> {
        let State::Tail(tail) = self.state else {
            return Err(Code::IncompleteBody.into());
        };
        self.trailers.finish(&tail, self.chain)
    }

    /// Reads bytes that are not data, at least one.
    fn take_framing(&mut self, input: &[u8]) -> Result<usize, S3Error> {
        match &mut self.state {
            State::Line(line) => {
                let end = input.iter().position(|b| *b == b'\n');
                let taken = end.map_or(input.len(), |end| end + 1);
                append(line, input.get(..taken), Self::MAX_LINE_BYTES)
                    .ok_or_else(|| invalid("the line before a chunk is too long"))?;
                if end.is_some() {
                    let line = std::mem::take(line);
                    self.begin_chunk(&line)?;
                }
                Ok(taken)
            }
            State::End { cr } => {
                let wanted = if *cr { b'\n' } else { b'\r' };
                if input.first() != Some(&wanted) {
                    return Err(invalid("the data of a chunk is not followed by CRLF"));
                }
                self.state = if *cr {
                    State::Line(Vec::new())
                } else {
                    State::End { cr: true }
                };
                Ok(1)
            }
            State::Tail(tail) => {
                append(tail, Some(input), Self::MAX_TAIL_BYTES)
                    .ok_or_else(|| trailer::malformed("they are too long"))?;
                Ok(input.len())
            }
            // The caller handles data.
            State::Data { .. } => Ok(0),
        }
    }

    fn begin_chunk(&mut self, line: &[u8]) -> Result<(), S3Error> {
        let (size, signature) = parse_line(line)?;
        match (&mut self.chain, signature) {
            (Some(chain), Some(signature)) => chain.begin(signature),
            (None, None) => {}
            (Some(_), None) => return Err(invalid("a chunk is not signed")),
            (None, Some(_)) => return Err(invalid("a chunk is signed, and was not to be")),
        }
        self.left = self.left.checked_sub(size).ok_or_else(wrong_length)?;
        if size > 0 {
            self.state = State::Data { left: size };
            return Ok(());
        }
        if self.left > 0 {
            return Err(wrong_length());
        }
        self.end_chunk()?;
        self.state = State::Tail(Vec::new());
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<(), S3Error> {
        self.chain.as_mut().map_or(Ok(()), |chain| chain.end())
    }
}

/// Appends within a bound.
fn append(to: &mut Vec<u8>, bytes: Option<&[u8]>, max: usize) -> Option<()> {
    let bytes = bytes?;
    (bytes.len() <= max.saturating_sub(to.len())).then(|| to.extend_from_slice(bytes))
}

/// `hex-size[;chunk-signature=hex] CRLF`.
fn parse_line(line: &[u8]) -> Result<(u64, Option<[u8; 32]>), S3Error> {
    let text = line.strip_suffix(b"\r\n");
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    let text = text.ok_or_else(|| invalid("the line before a chunk is malformed"))?;
    let (size, signature) = match text.split_once(';') {
        None => (text, None),
        Some((size, extension)) => {
            let hex = extension.strip_prefix("chunk-signature=");
            let signature = hex.and_then(parse_hex);
            let signature =
                signature.ok_or_else(|| invalid("the signature of a chunk is malformed"))?;
            (size, Some(signature))
        }
    };
    let digits = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
    let size = u64::from_str_radix(size, 16).ok().filter(|_| digits);
    let size = size.ok_or_else(|| invalid("the size of a chunk is malformed"))?;
    Ok((size, signature))
}

fn invalid(what: &str) -> S3Error {
    Code::InvalidRequest.with_message(format!("The request: {what}."))
}

fn wrong_length() -> S3Error {
    Code::IncompleteBody
        .with_message("The chunks do not hold the bytes of x-amz-decoded-content-length.")
}
