//! A connection to a server, and the connections that a thread keeps open between requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prism_http::Input;
use prism_proxy::{ServerStream, Step};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::pool::Address;

/// Bytes of an answer that are read at first, and that are held at most.
const FIRST_BYTES: usize = 16 << 10;
const MAX_BYTES: usize = 64 << 10;
/// The longest time for which a connection waits for a request. A firewall may forget an idle one
/// without a word, and the next request on it would wait for `answer_timeout_s`.
const MAX_IDLE: Duration = Duration::from_secs(60);

/// A connection to a server. Its buffer lives as long as a request. Nothing outside this file knows
/// what it is made of.
#[derive(Debug)]
pub(crate) struct Server {
    stream: TcpStream,
    input: AnswerBytes,
    /// Bytes that the server gets in front of the request.
    pub(crate) preface: Vec<u8>,
    /// Whether it had an earlier request.
    was_idle: bool,
}

/// A connection that waits for a request or a client, on no thread.
pub(crate) struct ParkedServer {
    stream: std::net::TcpStream,
    input: AnswerBytes,
}

/// Bytes of a server that were read and not consumed.
#[derive(Debug, Default)]
struct AnswerBytes {
    buffer: Vec<u8>,
    /// Bytes at its beginning that were consumed.
    start: usize,
}

impl Server {
    /// Connects to the server at `address` within `limit`.
    ///
    /// # Errors
    /// `TimedOut`, or the kernel's error.
    pub(crate) async fn connect(address: &Address, limit: Duration) -> io::Result<Self> {
        Self::connect_to(address.address, limit).await
    }

    async fn connect_to(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let connecting = tokio::time::timeout(limit, TcpStream::connect(address));
        let stream = connecting.await.map_err(|_| io::ErrorKind::TimedOut)??;
        stream.set_nodelay(true)?;
        Ok(Self::of(stream, false))
    }

    /// The same connection for another request, if the server has left it open and nothing of the
    /// last answer is left.
    pub(crate) fn reused(self) -> Option<Self> {
        let is_clean = self.input.buffered().is_empty() && !is_stale(&self.stream);
        is_clean.then(|| Self::of(self.stream, true))
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

    fn of(stream: TcpStream, was_idle: bool) -> Self {
        Self {
            stream,
            input: AnswerBytes::default(),
            preface: Vec::new(),
            was_idle,
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
            ..Server::of(stream, false)
        })
    }
}

impl Input for Server {
    fn buffered(&self) -> &[u8] {
        self.input.buffered()
    }

    fn consume(&mut self, n: usize) {
        self.input.consume(n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.input.fill(&self.stream).await
    }
}

impl ServerStream for Server {
    fn was_used(&self) -> bool {
        self.was_idle
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step {
        let Self { stream, input, .. } = self;
        tokio::select! {
            biased;
            read = input.fill(stream), if reads => Step::Read(read),
            written = write_some(stream, bytes), if !bytes.is_empty() => Step::Written(written),
            else => Step::Written(Ok(0)),
        }
    }

    async fn end_requests(&mut self) {
        // The server may have ended already.
        let _ = self.stream.shutdown().await;
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(&self.stream)
    }
}

impl AnswerBytes {
    /// The bytes.
    fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Drops the first `n` bytes.
    fn consume(&mut self, n: usize) {
        self.start = self.start.saturating_add(n).min(self.buffer.len());
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
    }

    /// Reads more bytes; 0 at the end. May be cancelled without loss.
    ///
    /// # Errors
    /// `OutOfMemory` if the buffer is full; else the kernel's error.
    async fn fill(&mut self, stream: &TcpStream) -> io::Result<usize> {
        self.make_room()?;
        loop {
            stream.readable().await?;
            match stream.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let held = self.buffer.len();
        let room = self.buffer.capacity();
        if held >= MAX_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // A short answer does not pay for the room of a long one. Neither does a wait for its
        // beginning.
        if held == room {
            let wanted = if room == 0 { FIRST_BYTES } else { MAX_BYTES };
            self.buffer.reserve_exact(wanted.saturating_sub(held));
        }
        Ok(())
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

/// Whether a server has ended an idle connection, or sent something on it.
fn is_stale(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    !matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// The connections of one thread to one address that wait for a request.
#[derive(Default)]
pub(crate) struct Idle(RefCell<VecDeque<Waiting>>);

/// A connection that waits for a request.
struct Waiting {
    stream: TcpStream,
    until: Instant,
}

impl Waiting {
    fn is_usable(&self) -> bool {
        Instant::now() < self.until && !is_stale(&self.stream)
    }
}

impl Idle {
    /// The connection that waits for the shortest time.
    pub(crate) fn take(&self) -> Option<Server> {
        let mut idle = self.0.borrow_mut();
        loop {
            let waiting = idle.pop_back()?;
            if waiting.is_usable() {
                return Some(Server::of(waiting.stream, true));
            }
        }
    }

    /// Keeps a connection on which nothing is left of its last request, with at most `max` others.
    pub(crate) fn keep(&self, server: Server, max: usize) {
        if !server.input.buffered().is_empty() {
            return;
        }
        let mut idle = self.0.borrow_mut();
        while idle.front().is_some_and(|first| !first.is_usable()) || idle.len() > max {
            idle.pop_front();
        }
        if idle.len() < max {
            idle.push_back(Waiting {
                stream: server.stream,
                until: Instant::now() + MAX_IDLE,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_idle_connection_that_the_server_has_ended_is_not_used() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let idle = Idle::default();
            let connect = async || {
                let server = Server::connect_to(address, Duration::from_secs(5)).await;
                (server.unwrap(), listener.accept().await.unwrap().0)
            };
            let (first, one) = connect().await;
            let (second, mut other) = connect().await;
            assert!(!first.was_idle);
            idle.keep(first, 2);
            idle.keep(second, 2);
            other.write_all(b"HTTP/1.1 408 \r\n\r\n").await.unwrap();
            // The loopback delivers at once; the reactor needs a turn.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut taken = idle.take().unwrap();
            assert!(taken.was_idle && idle.take().is_none());
            drop(one);
            assert_eq!(taken.input.fill(&taken.stream).await.unwrap(), 0);
            idle.keep(taken, 0);
            assert!(idle.take().is_none());
            let (third, _open) = connect().await;
            idle.keep(third, 1);
            idle.0.borrow_mut().front_mut().unwrap().until = Instant::now();
            assert!(idle.take().is_none() && idle.0.borrow().is_empty());
            drop(listener);
            let refused = Server::connect_to(address, Duration::from_secs(5)).await;
            assert_eq!(
                refused.err().unwrap().kind(),
                io::ErrorKind::ConnectionRefused
            );
        });
    }
}
