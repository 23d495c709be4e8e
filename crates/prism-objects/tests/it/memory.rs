//! A connection in memory, for tests of services.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use prism_service::{Input, Io};

/// A client that has sent all of its requests, and keeps the answers.
#[derive(Debug, Default)]
pub(crate) struct MemoryIo {
    sent: Vec<u8>,
    /// The number of `sent` bytes that were consumed.
    consumed: usize,
    /// The number of bytes behind these that were read.
    buffered: usize,
    /// Everything that was written.
    pub(crate) written: Vec<u8>,
}

/// Most bytes of one read.
const READ_BYTES: usize = 1 << 10;

impl MemoryIo {
    /// A client that sends `bytes`, and then nothing more.
    pub(crate) fn sending(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            sent: bytes.into(),
            ..Self::default()
        }
    }

    /// The bytes that were not consumed.
    pub(crate) fn unread(&self) -> &[u8] {
        self.sent.get(self.consumed..).unwrap_or_default()
    }
}

impl Input for MemoryIo {
    fn buffered(&self) -> &[u8] {
        self.unread().get(..self.buffered).unwrap_or_default()
    }

    fn consume(&mut self, n: usize) {
        let n = n.min(self.buffered);
        self.consumed += n;
        self.buffered -= n;
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let more = (self.unread().len() - self.buffered).min(READ_BYTES);
        self.buffered += more;
        Ok(more)
    }
}

impl Io for MemoryIo {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written.extend_from_slice(bytes);
        Ok(())
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await
    }

    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset)?;
        self.write_all(&bytes).await
    }
}
