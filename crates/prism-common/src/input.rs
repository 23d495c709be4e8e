//! Sources of bytes that keep what was read and not used yet.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of one read.
const PIECE_BYTES: usize = 16 << 10;

/// A source of bytes.
pub trait Input {
    /// The bytes that were read and not consumed.
    fn buffered(&self) -> &[u8];

    /// Drops the first `n` buffered bytes.
    fn consume(&mut self, n: usize);

    /// Reads more bytes; 0 at the end. May be cancelled without loss.
    async fn fill(&mut self) -> io::Result<usize>;

    /// Moves buffered bytes to `room`, or reads to it; 0 at the end. May be cancelled without
    /// loss.
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.buffered().is_empty() && self.fill().await? == 0 {
            return Ok(0);
        }
        let read = io::Read::read(&mut self.buffered(), room)?;
        self.consume(read);
        Ok(read)
    }
}

/// Bytes in a buffer, of which the first were consumed. One that was never used has no buffer.
#[derive(Debug, Default)]
pub struct Unread {
    bytes: Vec<u8>,
    start: usize,
}

impl Unread {
    /// Bytes of which none was consumed.
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }

    /// The bytes that were not consumed.
    pub fn unread(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// The same, to be changed in place.
    pub fn unread_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }

    /// Whether all bytes were consumed.
    pub fn is_empty(&self) -> bool {
        self.unread().is_empty()
    }

    /// Consumes the next `n` bytes. The buffer stays, also with the last one.
    pub fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.bytes.len());
        if self.is_empty() {
            self.clear();
        }
    }

    /// Consumes all bytes.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    /// The unread bytes, at the start of a buffer that can grow.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        &mut self.bytes
    }
}

/// A stream with the bytes that were read of it and not consumed.
#[derive(Debug)]
pub struct BufferedStream<S> {
    stream: S,
    buffer: Unread,
}

impl<S: AsyncRead + AsyncWrite + Unpin> BufferedStream<S> {
    /// A stream of which nothing was read.
    pub const fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: Unread::new(Vec::new()),
        }
    }

    /// Writes all bytes, and flushes.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Input for BufferedStream<S> {
    fn buffered(&self) -> &[u8] {
        self.buffer.unread()
    }

    fn consume(&mut self, n: usize) {
        self.buffer.consume(n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let buffer = self.buffer.bytes_mut();
        buffer.reserve(PIECE_BYTES);
        self.stream.read_buf(buffer).await
    }
}

/// The fault of a source whose bytes are passed on, in an error of the connection that gets them.
#[derive(Debug)]
pub struct SourceFault(io::Error);

impl SourceFault {
    /// The error of the connection for this one of its source.
    #[must_use]
    pub fn error(error: io::Error) -> io::Error {
        io::Error::new(error.kind(), Self(error))
    }

    /// Whether an error of a connection is that of its source.
    #[must_use]
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl std::fmt::Display for SourceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the source of the bytes failed: {}", self.0)
    }
}

impl std::error::Error for SourceFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
