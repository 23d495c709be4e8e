//! Finds the end of a body without copying it, for each way to delimit bodies.

use std::ops::Range;

use crate::{BodyError, ChunkedDecoder, Headers, ResponseFraming};

/// The result of one call of `consume`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Step {
    /// Bytes of the body, as a range of the input. It may be empty.
    pub data: Range<usize>,
    /// Bytes of the input that were used, at least `data.end`. They are all of the input,
    /// unless `data` is not empty or `done` is set.
    pub consumed: usize,
    /// Whether the body has ended. The rest of the input is the next message.
    pub done: bool,
}

/// Reads one body. Feed it while [`BodyReader::is_done`] is false. A body of no bytes is done
/// from the start.
///
/// ```
/// use prism_http::{BodyReader, ResponseFraming};
/// let mut reader = BodyReader::new(ResponseFraming::Length(3), u64::MAX);
/// let step = reader.consume(b"abcGET /")?;
/// assert_eq!((step.data, step.consumed, step.done), (0..3, 3, true));
/// # Ok::<(), prism_http::BodyError>(())
/// ```
#[derive(Debug, Clone)]
pub enum BodyReader {
    /// This many bytes are left.
    Length {
        /// Bytes still to come.
        left: u64,
    },
    /// Chunked transfer coding.
    Chunked(ChunkedDecoder),
    /// All bytes until the connection ends.
    UntilClose {
        /// Bytes that may still come.
        left: u64,
    },
}

impl BodyReader {
    /// A reader for this framing (`request.framing().into()` for requests) that gives at most
    /// `limit` bytes of data. It does not apply to a declared length, which is checked with the
    /// head.
    pub fn new(framing: ResponseFraming, limit: u64) -> Self {
        match framing {
            ResponseFraming::None => Self::Length { left: 0 },
            ResponseFraming::Length(left) => Self::Length { left },
            ResponseFraming::Chunked => Self::Chunked(ChunkedDecoder::new(limit)),
            ResponseFraming::UntilClose => Self::UntilClose { left: limit },
        }
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Length { left } => *left == 0,
            Self::Chunked(decoder) => decoder.is_done(),
            Self::UntilClose { .. } => false,
        }
    }

    /// Whether the end of the body cannot be known any more.
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Chunked(decoder) if decoder.is_broken())
    }

    /// The trailers of a chunked body that has ended.
    pub fn trailers(&self) -> Option<&Headers> {
        match self {
            Self::Chunked(decoder) => decoder.trailers(),
            Self::Length { .. } | Self::UntilClose { .. } => None,
        }
    }

    /// Bytes still to come, if that is known.
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Length { left } => Some(*left),
            Self::Chunked(decoder) => decoder.is_done().then_some(0),
            Self::UntilClose { .. } => None,
        }
    }

    /// Reads the next bytes of the connection.
    ///
    /// # Errors
    /// If the body is malformed or too long. The connection must not be used again.
    pub fn consume(&mut self, input: &[u8]) -> Result<Step, BodyError> {
        let (left, has_length) = match self {
            Self::Length { left } => (left, true),
            Self::Chunked(decoder) => return decoder.consume(input),
            Self::UntilClose { left } => (left, false),
        };
        let taken = take_bytes(left, input.len());
        if !has_length && taken < input.len() {
            return Err(BodyError::TooLong);
        }
        Ok(Step {
            data: 0..taken,
            consumed: taken,
            done: has_length && *left == 0,
        })
    }

    /// Reads `bytes` up to the end of the body, for a look at what has come.
    ///
    /// # Errors
    /// As [`Self::consume`].
    pub fn read_past(&mut self, mut bytes: &[u8]) -> Result<(), BodyError> {
        while !bytes.is_empty() && !self.is_done() {
            let consumed = self.consume(bytes)?.consumed;
            bytes = bytes.get(consumed..).unwrap_or_default();
        }
        Ok(())
    }

    /// Notes that the next `bytes` of a body of known length have passed elsewhere, at most those
    /// that are left.
    pub fn skip(&mut self, bytes: u64) {
        if let Self::Length { left } = self {
            *left = left.saturating_sub(bytes);
        }
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// [`BodyError::Truncated`] if the body has not ended.
    pub fn end_of_input(&self) -> Result<(), BodyError> {
        match self {
            Self::UntilClose { .. } => Ok(()),
            _ if self.is_done() => Ok(()),
            _ => Err(BodyError::Truncated),
        }
    }
}

/// Takes as many of the `available` bytes as are `left`.
pub(crate) fn take_bytes(left: &mut u64, available: usize) -> usize {
    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(available);
    *left -= taken as u64;
    taken
}
