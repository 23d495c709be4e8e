//! The connection to a server, or to a node that answers.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use prism_handoff::{RelayStep, RelayStream};
use prism_http::Input;
use tokio::net::TcpStream;

/// Bytes that are sealed at once: fewer than those with which a stream waits until they leave.
const SEALED_BYTES: usize = 48 << 10;

/// A movement of bytes on a connection.
#[derive(Debug)]
pub enum Step {
    /// So many bytes were read; 0 at the end.
    Read(io::Result<usize>),
    /// So many bytes were taken, or none will be any more. 0 is no error: earlier ones have left.
    Written(io::Result<usize>),
}

/// A connection to which requests go and from which answers come.
pub trait Upstream: Input {
    /// Whether it had an earlier request, so that the other side may have ended it.
    fn was_used(&self) -> bool;

    /// Whether bytes that were taken have not left.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Takes some of `bytes`, or reads more if `reads` is set, whichever can be done first. May be
    /// cancelled without loss.
    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step;

    /// Ends the direction of requests, if that is possible.
    async fn end_requests(&mut self);

    /// The socket, if the bytes on it have no other form.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

/// A stream to another node, and whether it was used before.
impl Input for (RelayStream, bool) {
    fn buffered(&self) -> &[u8] {
        self.0.buffered()
    }

    fn consume(&mut self, n: usize) {
        self.0.consume(n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        // Bytes that were taken leave meanwhile.
        loop {
            if let RelayStep::Read(read) = self.0.fill_or_flush().await {
                return read;
            }
        }
    }
}

impl Upstream for (RelayStream, bool) {
    fn was_used(&self) -> bool {
        self.1
    }

    fn has_unsent(&self) -> bool {
        self.0.has_unsent()
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step {
        let stream = &mut self.0;
        if !stream.has_unsent() && !bytes.is_empty() {
            let piece = bytes.get(..SEALED_BYTES).unwrap_or(bytes);
            let written = stream.write(piece).await;
            // What does not leave at once leaves with the next movement.
            let mut leaving = pin!(stream.flush());
            poll_fn(|context| Poll::Ready(drop(leaving.as_mut().poll(context)))).await;
            return Step::Written(written.map(|()| piece.len()));
        }
        if !reads {
            return Step::Written(stream.flush().await.map(|()| 0));
        }
        match stream.fill_or_flush().await {
            RelayStep::Read(read) => Step::Read(read),
            RelayStep::Sent(sent) => Step::Written(sent.map(|()| 0)),
        }
    }

    async fn end_requests(&mut self) {}
}
