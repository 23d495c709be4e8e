//! A connection to a server.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use prism_http::Input;
use prism_proxy::{ServerStream, Step};
use prism_sys::tcp::TcpInfo;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Bytes of an answer that are read at first, and the number from which on no more are read.
const FIRST_BYTES: usize = 16 << 10;
const MAX_BYTES: usize = 64 << 10;
/// The least room for a read.
const MIN_READ_BYTES: usize = 4 << 10;

/// A connection to a server. Its buffer lives as long as a request. Nothing outside this file knows
/// what it is made of.
#[derive(Debug)]
pub(crate) struct Server {
    stream: TcpStream,
    /// Bytes that were read and not consumed.
    input: BytesMut,
    /// Bytes that the server gets in front of the request.
    pub(crate) preface: Vec<u8>,
    /// The time for which it has waited for its request; `None` if it is new.
    idle_for: Option<Duration>,
}

/// A connection that waits for a request or a client, on no thread.
pub(crate) struct ParkedServer {
    stream: std::net::TcpStream,
    input: BytesMut,
}

impl Server {
    /// Connects to the server at `address` within `limit`.
    ///
    /// # Errors
    /// `TimedOut`, or the kernel's error.
    pub(crate) async fn connect(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let connecting = tokio::time::timeout(limit, TcpStream::connect(address));
        let stream = connecting.await.map_err(|_| io::ErrorKind::TimedOut)??;
        stream.set_nodelay(true)?;
        Ok(Self::of(stream, None))
    }

    /// The same connection for another request, if the server has left it open and nothing of the
    /// last answer is left. It has waited for `idle_for`.
    ///
    /// # Errors
    /// The time after which the server has ended it, as far as that is known.
    pub(crate) fn reused(self, idle_for: Duration) -> Result<Self, Duration> {
        if self.is_clean() && !is_stale(&self.stream) {
            return Ok(Self::of(self.stream, Some(idle_for)));
        }
        let heard_ms = TcpInfo::read(self.stream.as_fd()).map_or(0, |info| info.heard_ms);
        Err(idle_for.saturating_sub(Duration::from_millis(heard_ms.into())))
    }

    /// Whether nothing is left of the last answer.
    pub(crate) fn is_clean(&self) -> bool {
        self.input.is_empty()
    }

    /// Whether the server has ended the idle connection.
    pub(crate) fn is_stale(&self) -> bool {
        is_stale(&self.stream)
    }

    /// The time for which it has waited for its request; `None` if it is new.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        self.idle_for
    }

    /// The address of the server.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Takes the connection from this thread. Another one may get it.
    ///
    /// # Errors
    /// The runtime does not let the socket go.
    pub(crate) fn park(self) -> io::Result<ParkedServer> {
        Ok(ParkedServer {
            stream: self.stream.into_std()?,
            input: self.input,
        })
    }

    fn of(stream: TcpStream, idle_for: Option<Duration>) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            preface: Vec::new(),
            idle_for,
        }
    }
}

impl ParkedServer {
    /// Gives the connection to this thread.
    ///
    /// # Errors
    /// The runtime does not take the socket.
    pub(crate) fn resume(self) -> io::Result<Server> {
        let stream = TcpStream::from_std(self.stream)?;
        Ok(Server {
            input: self.input,
            ..Server::of(stream, None)
        })
    }
}

impl Input for Server {
    fn buffered(&self) -> &[u8] {
        &self.input
    }

    fn consume(&mut self, n: usize) {
        self.input.advance(n.min(self.input.len()));
    }

    async fn fill(&mut self) -> io::Result<usize> {
        fill(&mut self.input, &self.stream).await
    }
}

impl ServerStream for Server {
    fn was_used(&self) -> bool {
        self.idle_for.is_some()
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step {
        let Self { stream, input, .. } = self;
        tokio::select! {
            biased;
            read = fill(input, stream), if reads => Step::Read(read),
            written = write_some(stream, bytes), if !bytes.is_empty() => Step::Written(written),
            else => Step::Written(Ok(0)),
        }
    }

    fn unacknowledged_bytes(&self) -> Option<usize> {
        prism_sys::tcp::info::send_queue_bytes(self.stream.as_fd()).ok()
    }

    async fn end_requests(&mut self) {
        // The server may have ended already.
        let _ = self.stream.shutdown().await;
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(&self.stream)
    }
}

/// Reads more bytes of a server; 0 at the end. May be cancelled without loss.
///
/// # Errors
/// `OutOfMemory` if they are too many; else the kernel's error.
async fn fill(input: &mut BytesMut, stream: &TcpStream) -> io::Result<usize> {
    let held = input.len();
    if held >= MAX_BYTES {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // A short answer does not pay for the room of a long one. Neither does a wait for its
    // beginning.
    if input.capacity() - held < MIN_READ_BYTES {
        let wanted = if held == 0 { FIRST_BYTES } else { MAX_BYTES };
        input.reserve(wanted - held);
    }
    loop {
        stream.readable().await?;
        match stream.try_read_buf(input) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// Writes some of `bytes`. May be cancelled without loss.
///
/// # Errors
/// The kernel's error.
async fn write_some(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return written,
        }
    }
}

/// Whether a server has ended an idle connection, or sent something on it. The socket is asked: the
/// reactor may not have heard of it yet.
fn is_stale(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = rustix::net::recv(stream, &mut [0], flags);
    !matches!(peeked, Err(Errno::WOULDBLOCK))
}
