//! The connection to a server, or to a node that answers.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use prism_common::input::Input;
use prism_handoff::{RelayStep, RelayStream};
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

/// The stream to the side that answers, a server or another node: requests go there, and answers
/// come back.
pub trait ServerStream: Input {
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

/// A stream to another node.
pub struct NodeStream {
    /// The stream.
    pub stream: RelayStream,
    /// Whether it had an earlier request.
    pub was_used: bool,
}

impl Input for NodeStream {
    fn buffered(&self) -> &[u8] {
        self.stream.buffered()
    }

    fn consume(&mut self, n: usize) {
        self.stream.consume(n);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        // Bytes that were taken leave meanwhile.
        loop {
            if let RelayStep::Read(read) = self.stream.fill_or_flush().await {
                return read;
            }
        }
    }
}

impl ServerStream for NodeStream {
    fn was_used(&self) -> bool {
        self.was_used
    }

    fn has_unsent(&self) -> bool {
        self.stream.has_unsent()
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step {
        let stream = &mut self.stream;
        if !stream.has_unsent() && !bytes.is_empty() {
            let piece = bytes.get(..SEALED_BYTES).unwrap_or(bytes);
            let written = stream.write(piece).await;
            // Bytes that do not leave at once leave with the next movement.
            let mut leaving = pin!(stream.flush());
            poll_fn(|context| {
                let _ = leaving.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
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
