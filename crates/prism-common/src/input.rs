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

/// A stream with the bytes that were read of it and not consumed.
#[derive(Debug)]
pub struct BufferedStream<S> {
    stream: S,
    buffer: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> BufferedStream<S> {
    /// A stream of which nothing was read.
    pub const fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
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
        &self.buffer
    }

    fn consume(&mut self, n: usize) {
        self.buffer.drain(..n.min(self.buffer.len()));
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.buffer.reserve(PIECE_BYTES);
        self.stream.read_buf(&mut self.buffer).await
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
