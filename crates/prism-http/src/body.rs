//! Finds where a body ends, whatever delimits it, without copying it.

use std::ops::Range;

use crate::{BodyError, ChunkedDecoder, Headers, ResponseFraming};

/// What one call of `consume` found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Step {
    /// Body bytes, as a range of the input. May be empty.
    pub data: Range<usize>,
    /// How many bytes of the input are done with, at least `data.end`. The
    /// rest was not looked at. All of the input, unless `data` is not empty or
    /// `done` is set.
    pub consumed: usize,
    /// The body has ended. What follows in the input is the next message.
    pub done: bool,
}

/// Reads one body. Feed it while [`BodyReader::is_done`] is false; a body of
/// no bytes is done before it is fed.
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
        /// Bytes not yet seen.
        left: u64,
    },
    /// Chunked transfer coding.
    Chunked(ChunkedDecoder),
    /// Everything until the connection ends.
    UntilClose {
        /// Bytes that may still come.
        left: u64,
    },
}

impl BodyReader {
    /// A reader for this framing (`request.framing().into()` for requests)
    /// that gives at most `limit` bytes of data. A declared length is not
    /// compared with it: that is done with the head.
    #[must_use]
    pub fn new(framing: ResponseFraming, limit: u64) -> Self {
        match framing {
            ResponseFraming::None => Self::Length { left: 0 },
            ResponseFraming::Length(left) => Self::Length { left },
            ResponseFraming::Chunked => Self::Chunked(ChunkedDecoder::new(limit)),
            ResponseFraming::UntilClose => Self::UntilClose { left: limit },
        }
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self {
            Self::Length { left } => *left == 0,
            Self::Chunked(decoder) => decoder.is_done(),
            Self::UntilClose { .. } => false,
        }
    }

    /// Whether the end of the body cannot be known any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Chunked(decoder) if decoder.is_broken())
    }

    /// Bytes still to come, where that is known.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Length { left } => Some(*left),
            Self::Chunked(decoder) => decoder.is_done().then_some(0),
            Self::UntilClose { .. } => None,
        }
    }

    /// Looks at the next bytes of the connection.
    ///
    /// # Errors
    /// If the body is malformed or too long. The connection must not be used again.
    pub fn consume(&mut self, input: &[u8]) -> Result<Step, BodyError> {
        match self {
            Self::Length { left } => {
                let taken = take(left, input.len());
                Ok(Step {
                    data: 0..taken,
                    consumed: taken,
                    done: *left == 0,
                })
            }
            Self::Chunked(decoder) => decoder.consume(input),
            Self::UntilClose { left } => {
                let taken = take(left, input.len());
                if taken < input.len() {
                    return Err(BodyError::TooLong);
                }
                Ok(Step {
                    data: 0..taken,
                    consumed: taken,
                    done: false,
                })
            }
        }
    }

    /// Counts bytes that went by without being looked at, as with `splice`.
    ///
    /// # Errors
    /// If the framing cannot do without looking, or more went by than was left.
    pub fn skip(&mut self, bytes: u64) -> Result<(), BodyError> {
        match self {
            Self::Length { left } | Self::UntilClose { left } => {
                *left = left.checked_sub(bytes).ok_or(BodyError::TooLong)?;
                Ok(())
            }
            Self::Chunked(_) if bytes == 0 => Ok(()),
            Self::Chunked(_) => Err(BodyError::ChunkSize),
        }
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// [`BodyError::Truncated`] if the body had not.
    pub fn end_of_input(&self) -> Result<(), BodyError> {
        match self {
            Self::UntilClose { .. } => Ok(()),
            _ if self.is_done() => Ok(()),
            _ => Err(BodyError::Truncated),
        }
    }

    /// The trailer fields of a chunked body; only once it is done.
    #[must_use]
    pub fn trailers(&self) -> Option<&Headers> {
        match self {
            Self::Chunked(decoder) => decoder.trailers(),
            _ => None,
        }
    }
}

/// Takes as much as there is and is left.
pub(crate) fn take(left: &mut u64, available: usize) -> usize {
    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(available);
    *left -= taken as u64;
    taken
}
