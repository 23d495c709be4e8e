//! The connection to a server, or to a node that answers.

use prism_common::input::Input;
use prism_handoff::RelayStream;
use tokio::net::TcpStream;

use crate::Step;

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

impl ServerStream for RelayStream {
    fn was_used(&self) -> bool {
        RelayStream::was_used(self)
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> Step {
        RelayStream::write_or_fill(self, bytes, reads).await
    }

    async fn end_requests(&mut self) {}
}
