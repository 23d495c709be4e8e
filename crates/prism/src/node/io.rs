//! One way to answer, whether the client's own connection is here or another
//! node relays for it.

use std::cell::RefCell;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use prism_handoff::{Connection, RelayStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes read from a file, or from a node, at a time.
const COPY_BYTES: usize = 256 << 10;
/// Room that a relay's buffer has at first.
const RELAY_BYTES: usize = 16 << 10;
/// Buffers of relays that a worker keeps.
const RELAYS_KEPT: usize = 16;

/// Buffers that relays have left, for those to come.
#[derive(Default)]
pub(super) struct Rooms(RefCell<Vec<Vec<u8>>>);

impl Rooms {
    pub(super) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    pub(super) fn leave(&self, room: Vec<u8>) {
        let mut rooms = self.0.borrow_mut();
        if room.capacity() <= 2 * RELAY_BYTES && rooms.len() < RELAYS_KEPT {
            rooms.push(room);
        }
    }
}

/// Where bytes come from.
pub(crate) trait Input {
    /// Bytes read and not consumed.
    fn buffered(&self) -> &[u8];
    /// Drops the first `n` of them.
    fn consume(&mut self, n: usize);
    /// Reads more; 0 at the end. May be cancelled without loss.
    async fn fill(&mut self) -> io::Result<usize>;

    /// Moves what is buffered to `room`, or reads to it; 0 at the end. May be
    /// cancelled without loss.
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.buffered().is_empty() && self.fill().await? == 0 {
            return Ok(0);
        }
        let read = io::Read::read(&mut self.buffered(), room)?;
        self.consume(read);
        Ok(read)
    }
}

/// Whom a request came from and its answer goes to.
pub(crate) trait Io: Input {
    /// Writes all, and lets it leave.
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Writes all, with more to follow at once.
    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Sends a part of a file.
    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()>;
}

impl Input for Connection {
    fn buffered(&self) -> &[u8] {
        Connection::buffered(self)
    }

    fn consume(&mut self, n: usize) {
        Connection::consume(self, n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        Connection::fill(self).await
    }

    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        Connection::read(self, room).await
    }
}

impl Io for Connection {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Connection::write_all(self, bytes).await
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        Connection::write_more(self, bytes).await
    }

    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        Connection::send_file(self, file, offset, len).await
    }
}

/// Either of those that a request comes from. What answers is compiled once, for this.
pub(crate) enum Asker<'a> {
    Client(&'a mut Connection),
    Node(&'a mut RelayIo),
}

impl Input for Asker<'_> {
    fn buffered(&self) -> &[u8] {
        match self {
            Self::Client(io) => Input::buffered(*io),
            Self::Node(io) => io.buffered(),
        }
    }

    fn consume(&mut self, n: usize) {
        match self {
            Self::Client(io) => Input::consume(*io, n),
            Self::Node(io) => io.consume(n),
        }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        match self {
            Self::Client(io) => Input::fill(*io).await,
            Self::Node(io) => io.fill().await,
        }
    }

    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Client(io) => Input::read(*io, room).await,
            Self::Node(io) => Input::read(*io, room).await,
        }
    }
}

impl Io for Asker<'_> {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Client(io) => Io::write_all(*io, bytes).await,
            Self::Node(io) => io.write_all(bytes).await,
        }
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Client(io) => Io::write_more(*io, bytes).await,
            Self::Node(io) => io.write_more(bytes).await,
        }
    }

    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        match self {
            Self::Client(io) => Io::send_file(*io, file, offset, len).await,
            Self::Node(io) => io.send_file(file, offset, len).await,
        }
    }
}

/// A relay connection, at either end.
pub(crate) struct RelayIo {
    pub(crate) stream: RelayStream,
    buffer: Vec<u8>,
    start: usize,
    /// Each read and write goes on within this time.
    timeout: Duration,
}

impl RelayIo {
    pub(crate) fn new(stream: RelayStream, timeout: Duration) -> Self {
        Self::with_room(stream, timeout, Vec::new())
    }

    /// With a buffer that another one has left.
    pub(crate) fn with_room(stream: RelayStream, timeout: Duration, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self {
            stream,
            buffer,
            start: 0,
            timeout,
        }
    }

    /// The stream, and the buffer.
    pub(crate) fn into_parts(self) -> (RelayStream, Vec<u8>) {
        (self.stream, self.buffer)
    }

    /// From here on each read and write goes on within this time.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Nothing is left of an earlier message.
    pub(crate) fn is_clean(&self) -> bool {
        self.buffered().is_empty()
    }

    async fn in_time<T>(
        timeout: Duration,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let mut work = pin!(work);
        // Most that is written or read is so at once, and needs no timer.
        let at_once = poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
        if let Poll::Ready(result) = at_once.await {
            return result;
        }
        match tokio::time::timeout(timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Input for RelayIo {
    fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.buffer.len());
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        if self.buffered().len() >= COPY_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.reserve(RELAY_BYTES);
        Self::in_time(self.timeout, self.stream.read_buf(&mut self.buffer)).await
    }
}

impl Io for RelayIo {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_more(bytes).await?;
        Self::in_time(self.timeout, self.stream.flush()).await
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        // In pieces, so that the time limit is one of progress.
        for piece in bytes.chunks(COPY_BYTES) {
            Self::in_time(self.timeout, self.stream.write_all(piece)).await?;
        }
        Ok(())
    }

    async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        let (mut at, end) = (offset, offset.saturating_add(len));
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(len).unwrap_or(COPY_BYTES))];
        while at < end {
            let want = usize::try_from(end - at)
                .unwrap_or(COPY_BYTES)
                .min(buffer.len());
            let part = buffer.get_mut(..want).unwrap_or_default();
            let n = file.read_at(part, at)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let part = buffer.get(..n).unwrap_or_default();
            self.write_more(part).await?;
            at += n as u64;
        }
        Self::in_time(self.timeout, self.stream.flush()).await
    }
}
