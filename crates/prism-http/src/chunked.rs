//! Decodes the chunked transfer coding (RFC 9112 section 7.1), incrementally and in place.
//!
//! Trailers are checked and kept apart from the body.

use crate::body::take_bytes;
use crate::{BodyError, Headers, Step};

/// An incremental decoder, whose input may be cut anywhere.
#[derive(Debug, Clone)]
pub struct ChunkedDecoder {
    state: State,
    /// Data bytes that may still come.
    budget: u64,
    /// Extension bytes that may still come.
    extensions: usize,
}

#[derive(Debug, Clone)]
enum State {
    Size {
        value: u64,
        digits: u8,
    },
    Extension {
        value: u64,
    },
    SizeLf {
        value: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    Trailer(Vec<u8>),
    /// With the trailers.
    Done(Headers),
    /// The end of the body cannot be found any more.
    Failed(BodyError),
}

impl ChunkedDecoder {
    /// Most bytes of all chunk extensions of a body. No client uses extensions; a peer that
    /// sends more makes the reader work without progress.
    pub const MAX_EXTENSION_BYTES: usize = 16 * 1024;
    /// Most bytes of the trailer section, its empty line included.
    pub const MAX_TRAILER_BYTES: usize = 8 * 1024;
    /// Most fields of the trailer section.
    pub const MAX_TRAILERS: usize = 32;
    /// Most digits of a chunk size, leading zeros included: as many as `u64::MAX` has.
    const MAX_SIZE_DIGITS: u8 = 16;

    /// A decoder at the first byte of a body that may have `limit` bytes.
    pub const fn new(limit: u64) -> Self {
        Self {
            state: State::Size {
                value: 0,
                digits: 0,
            },
            budget: limit,
            extensions: Self::MAX_EXTENSION_BYTES,
        }
    }

    /// Whether the last chunk and the trailers have come.
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    /// The trailers; `None` before they have come.
    pub const fn trailers(&self) -> Option<&Headers> {
        match &self.state {
            State::Done(trailers) => Some(trailers),
            _ => None,
        }
    }

    /// Whether the coding was malformed or beyond the limits.
    pub const fn is_broken(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// Reads the next bytes. Each [`Step`] has data of one chunk at most.
    ///
    /// # Errors
    /// If the coding is malformed or beyond the limits. All later calls then fail too.
    pub fn consume(&mut self, input: &[u8]) -> Result<Step, BodyError> {
        let mut at = 0;
        while !self.is_done() {
            if let State::Data { left } = &mut self.state {
                let taken = take_bytes(left, input.len() - at);
                if *left == 0 {
                    self.state = State::DataCr;
                }
                let end = at + taken;
                return Ok(Step {
                    data: at..end,
                    consumed: end,
                    done: false,
                });
            }
            let Some(&byte) = input.get(at) else { break };
            at += 1;
            if let Err(error) = self.take_framing(byte) {
                self.state = State::Failed(error);
                return Err(error);
            }
        }
        Ok(Step {
            data: at..at,
            consumed: at,
            done: self.is_done(),
        })
    }

    /// Takes one byte that is not data.
    fn take_framing(&mut self, byte: u8) -> Result<(), BodyError> {
        match &mut self.state {
            State::Size { value, digits } => {
                if let Some(next) = size_byte(*value, *digits, byte)? {
                    self.state = next;
                }
            }
            State::Extension { value } => {
                let value = *value;
                self.extensions = self
                    .extensions
                    .checked_sub(1)
                    .ok_or(BodyError::ExtensionsTooLong)?;
                match byte {
                    b'\r' => self.state = State::SizeLf { value },
                    0..=8 | 0x0a..=0x1f | 0x7f => return Err(BodyError::ChunkSize),
                    _ => {}
                }
            }
            State::SizeLf { value } => {
                let value = *value;
                expect(byte, b'\n', BodyError::ChunkSize)?;
                self.begin_chunk(value)?;
            }
            State::DataCr => {
                expect(byte, b'\r', BodyError::ChunkEnd)?;
                self.state = State::DataLf;
            }
            State::DataLf => {
                expect(byte, b'\n', BodyError::ChunkEnd)?;
                self.state = State::Size {
                    value: 0,
                    digits: 0,
                };
            }
            State::Trailer(bytes) => {
                if let Some(trailers) = trailer_byte(bytes, byte)? {
                    self.state = State::Done(trailers);
                }
            }
            State::Failed(error) => return Err(*error),
            State::Data { .. } | State::Done(_) => {}
        }
        Ok(())
    }

    fn begin_chunk(&mut self, size: u64) -> Result<(), BodyError> {
        if size == 0 {
            self.state = State::Trailer(Vec::new());
            return Ok(());
        }
        self.budget = self.budget.checked_sub(size).ok_or(BodyError::TooLong)?;
        self.state = State::Data { left: size };
        Ok(())
    }
}

fn size_byte(value: u64, digits: u8, byte: u8) -> Result<Option<State>, BodyError> {
    if let Some(digit) = char::from(byte).to_digit(16) {
        if digits == ChunkedDecoder::MAX_SIZE_DIGITS {
            return Err(BodyError::ChunkSizeOverflow);
        }
        // 16 digits of 4 bits: nothing is shifted out.
        let value = (value << 4) | u64::from(digit);
        return Ok(Some(State::Size {
            value,
            digits: digits + 1,
        }));
    }
    match byte {
        _ if digits == 0 => Err(BodyError::ChunkSize),
        b'\r' => Ok(Some(State::SizeLf { value })),
        b';' => Ok(Some(State::Extension { value })),
        _ => Err(BodyError::ChunkSize),
    }
}

fn expect(byte: u8, expected: u8, error: BodyError) -> Result<(), BodyError> {
    if byte == expected { Ok(()) } else { Err(error) }
}

/// Collects trailers, and checks them at the empty line. Returns them when it has come.
fn trailer_byte(bytes: &mut Vec<u8>, byte: u8) -> Result<Option<Headers>, BodyError> {
    if bytes.len() == ChunkedDecoder::MAX_TRAILER_BYTES {
        return Err(BodyError::TrailersTooLong);
    }
    let after_cr = bytes.last() == Some(&b'\r');
    let line_start = bytes.is_empty() || bytes.ends_with(b"\r\n");
    match byte {
        b'\n' if after_cr => {}
        _ if after_cr => return Err(BodyError::Trailer),
        b' ' | b'\t' if line_start => return Err(BodyError::Trailer),
        b'\r' | b'\t' => {}
        0..=0x1f | 0x7f => return Err(BodyError::Trailer),
        _ => {}
    }
    bytes.push(byte);
    if bytes.as_slice() != b"\r\n" && !bytes.ends_with(b"\r\n\r\n") {
        return Ok(None);
    }
    let mut fields = [httparse::EMPTY_HEADER; ChunkedDecoder::MAX_TRAILERS];
    match httparse::parse_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete((end, fields))) if end == bytes.len() => {
            Ok(Some(Headers::from_parsed(fields, bytes)))
        }
        Err(httparse::Error::TooManyHeaders) => Err(BodyError::TrailersTooLong),
        _ => Err(BodyError::Trailer),
    }
}
