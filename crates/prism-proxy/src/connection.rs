//! The connection to a server, or to a node that answers.

use std::io;

use prism_common::input::Input;
use prism_handoff::{RelayStep, RelayStream};
use tokio::net::TcpStream;

/// A movement of bytes on a connection.
#[derive(Debug)]
pub enum Step {
    /// So many bytes were read; 0 at the end.
    Read(io::Result<usize>),
    /// So many bytes were written, or none will be any more.
    Written(io::Result<usize>),
}

/// The stream to the side that answers, a server or another node: requests go there, and answers
/// come back.
pub trait ServerStream: Input {
    /// Whether it had an earlier request, so that the other side may have ended it.
    fn was_used(&self) -> bool;

    /// Writes some of `bytes`, or reads more if `reads` is set, whichever can be done first. May be
    /// cancelled without loss if the next write begins with the same bytes.
    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step;

    /// Bytes that were written and that the other side's kernel has not acknowledged; `None` if it
    /// is not known.
    fn unacknowledged_bytes(&self) -> Option<usize> {
        None
    }

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
        self.stream.fill().await
    }
}

impl ServerStream for NodeStream {
    fn was_used(&self) -> bool {
        self.was_used
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step {
        match self.stream.write_or_fill(bytes, reads).await {
            RelayStep::Read(read) => Step::Read(read),
            RelayStep::Written(written) => Step::Written(written),
        }
    }

    async fn end_requests(&mut self) {}
}
