//! The connection that a request came on: the client's own, or the stream of a node that relays.

use std::fs::File;
use std::io;
use std::time::Duration;

use prism_handoff::{Companion, Connection, Moved, RelayStep, RelayStream};
use prism_http::Input;
use tokio::net::TcpStream;

/// A connection: the source of a request and the sink of its answer.
pub trait Io: Input {
    /// Writes all bytes, and flushes.
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Writes all bytes. More follow at once.
    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Sends `len` bytes of a file from `offset` on.
    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()>;

    /// Bytes that left by the last [`Self::send_file`] or [`Self::send_stream`], if it failed.
    fn partial_bytes(&self) -> u64 {
        0
    }

    /// Writes some of `bytes`, or reads more if `reads` is set, whichever can be done first. With
    /// neither it waits until the connection breaks. May be cancelled without loss if the next
    /// write begins with the same bytes. `Written(0)`: only `write_all` can write them now.
    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> io::Result<Moved> {
        match (bytes.is_empty(), reads) {
            (false, _) => Ok(Moved::Written(0)),
            (true, true) => self.fill().await.map(Moved::Read),
            (true, false) => std::future::pending().await,
        }
    }

    /// The place for what a service keeps beside a client's connection. It is dropped when the
    /// connection ends or leaves this process. A relaying node's stream has no such place: its
    /// requests come from many clients.
    fn companion(&mut self) -> Option<&mut Companion> {
        None
    }

    /// Sends `len` bytes that come from `source`, which may be silent for `silence`, if they
    /// need not be copied for that. Returns how many were sent: 0 if they must be copied. A fault
    /// of `source` is a [`SourceFault`](prism_common::input::SourceFault).
    async fn send_stream(
        &mut self,
        _source: &TcpStream,
        _len: u64,
        _silence: Duration,
    ) -> io::Result<u64> {
        Ok(0)
    }
}

impl Io for Connection {
    fn companion(&mut self) -> Option<&mut Companion> {
        Some(Connection::companion(self))
    }

    fn partial_bytes(&self) -> u64 {
        Connection::partial_bytes(self)
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Connection::write_all(self, bytes).await
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        Connection::write_more(self, bytes).await
    }

    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        Connection::send_file(self, file, offset, len).await
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> io::Result<Moved> {
        Connection::write_or_fill(self, bytes, reads).await
    }

    async fn send_stream(
        &mut self,
        source: &TcpStream,
        len: u64,
        silence: Duration,
    ) -> io::Result<u64> {
        Connection::send_stream(self, source, len, silence).await
    }
}

impl Io for RelayStream {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        RelayStream::write(self, bytes).await?;
        self.flush().await
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        RelayStream::write(self, bytes).await
    }

    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        RelayStream::send_file(self, file, offset, len).await
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> io::Result<Moved> {
        if bytes.is_empty() && !reads {
            return Err(self.broken().await);
        }
        match RelayStream::write_or_fill(self, bytes, reads).await {
            RelayStep::Read(read) => read.map(Moved::Read),
            RelayStep::Written(written) => written.map(Moved::Written),
        }
    }
}
