//! The body of a request, as far as it was read. An answer in the middle of a body reads on where
//! the service stopped, and so finds the next request.

use std::io;
use std::time::Duration;

use prism_http::{BodyError, BodyFraming, BodyReader, Headers, RequestHead};

/// Longest rest of a refused body that is skipped, so that the connection lives on. A longer rest
/// costs more than a new connection.
pub const MAX_SKIP_BYTES: u64 = 256 << 10;
/// Time for the rest to arrive: 256 KiB at 0.5 Mbit/s.
pub(crate) const MAX_SKIP_TIME: Duration = Duration::from_secs(4);

/// The reason why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyFailure {
    /// It is longer than it may be.
    #[error("the body is too long")]
    TooLong,
    /// Its framing is malformed.
    #[error(transparent)]
    Malformed(#[from] BodyError),
    /// The connection broke.
    #[error(transparent)]
    Connection(#[from] io::Error),
}

impl BodyFailure {
    /// The connection has ended in the middle of the body.
    pub(crate) fn ended() -> Self {
        Self::Connection(io::ErrorKind::UnexpectedEof.into())
    }
}

/// The unread part of a request's body.
#[derive(Debug)]
pub struct RequestBody {
    reader: BodyReader,
    /// The client may wait for `100 Continue` before it sends.
    expects_continue: bool,
    /// Whether a byte of it was read or asked for.
    has_begun: bool,
}

impl RequestBody {
    /// The whole body after `head`; of a chunked one at most `max_bytes`.
    pub(crate) fn new(head: &RequestHead, max_bytes: u64) -> Self {
        Self {
            reader: BodyReader::new(head.framing().into(), max_bytes),
            expects_continue: head.expects_continue(),
            has_begun: false,
        }
    }

    /// A body of which an unknown part was read. No request can be found after it.
    pub(crate) fn unknown() -> Self {
        Self {
            reader: BodyReader::UntilClose { left: 0 },
            expects_continue: false,
            has_begun: true,
        }
    }

    /// Bounds a body in chunks of which nothing was read.
    pub(crate) fn limit(&mut self, max_bytes: u64) {
        if self.is_chunked() && !self.has_begun {
            self.reader = BodyReader::new(BodyFraming::Chunked.into(), max_bytes);
        }
    }

    /// Whether the sender may wait for `100 Continue`.
    pub(crate) fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// The number of unread bytes, if it is known.
    pub fn left(&self) -> Option<u64> {
        self.reader.left()
    }

    /// Whether the body was read to its end.
    pub fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    /// Whether another owner would miss a part of it.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether it comes in chunks, without a declared length.
    pub fn is_chunked(&self) -> bool {
        matches!(self.reader, BodyReader::Chunked(_))
    }

    /// The trailers of a chunked body that has ended.
    pub fn trailers(&self) -> Option<&Headers> {
        self.reader.trailers()
    }

    /// The reader, which parses the next bytes of the connection.
    pub(crate) fn reader(&mut self) -> &mut BodyReader {
        self.has_begun = true;
        &mut self.reader
    }

    /// Whether the sender waits for `100 Continue`. `has_come`: some bytes of it wait to be read.
    pub(crate) fn is_held_back(&self, has_come: bool) -> bool {
        self.expects_continue && !self.has_begun && !has_come
    }

    /// The sender may send the body, and waits for no other invitation.
    pub(crate) fn is_invited(&mut self) {
        self.expects_continue = false;
        self.has_begun = true;
    }

    /// Whether the rest of a body that is not done can be read past, behind an answer that does not
    /// wait for it.
    pub(crate) fn may_be_skipped(&self, has_come: bool) -> bool {
        let may_be_short = match self.left() {
            Some(left) => left <= MAX_SKIP_BYTES,
            None => self.is_chunked() && !self.reader.is_broken(),
        };
        // A sender that was not invited may send its body or its next request.
        may_be_short && !self.is_held_back(has_come)
    }
}
