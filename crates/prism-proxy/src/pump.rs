//! Bytes between a client and another side, in both directions at the same time: while one side
//! takes nothing, the other direction goes on. Each direction holds at most some 64 KiB beside the
//! bytes that were read and not parsed.

use std::io;

use prism_common::input::Unread;
use prism_service::{Exchange, Moved};

use crate::Step;
use crate::connection::ServerStream;
use crate::forward::Forward;

/// Bytes that are taken from a client at once.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// One movement of bytes.
pub(crate) enum Passage {
    /// The other side has sent so many, or ended.
    FromServer(io::Result<usize>),
    /// The other side has taken some, or will take no more.
    ToServer,
    /// The client has sent so many; 0 at the end of its direction.
    FromClient(usize),
    /// The client has taken some.
    ToClient,
}

impl<X: Exchange, S: ServerStream> Forward<'_, X, S> {
    /// Moves bytes in one direction, whichever is ready first; from the client only if `reads`.
    /// May be cancelled without loss.
    ///
    /// # Errors
    /// The client's connection is broken, also while nothing is to be moved there.
    pub(crate) async fn move_some(&mut self, reads: bool) -> io::Result<Passage> {
        let fills = !self.exchange.has_queued();
        let writes = !self.to_server.is_empty();
        let moving = self.server.write_or_fill(self.to_server.unread(), fills);
        tokio::select! {
            biased;
            step = moving, if fills || writes => match step {
                Step::Read(read) => Ok(Passage::FromServer(read)),
                Step::Written(Ok(written)) => {
                    self.written_bytes += written;
                    self.to_server.consume(written);
                    if self.to_server.is_empty() {
                        // The next use may be long after.
                        self.to_server = Unread::default();
                    }
                    Ok(Passage::ToServer)
                }
                Step::Written(Err(_)) => {
                    // It may have answered before it stopped reading.
                    self.is_deaf = true;
                    self.to_server = Unread::default();
                    Ok(Passage::ToServer)
                }
            },
            moved = self.exchange.write_or_fill(reads) => match moved? {
                Moved::Read(read) => Ok(Passage::FromClient(read)),
                Moved::Written(0) => {
                    self.exchange.flush().await?;
                    Ok(Passage::ToClient)
                }
                Moved::Written(_) => Ok(Passage::ToClient),
            },
        }
    }
}
