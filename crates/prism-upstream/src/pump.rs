//! Bytes between a client and a server, in both directions at the same time: while one side takes
//! nothing, the other direction goes on. Each direction holds at most some 64 KiB beside the bytes
//! that were read and not parsed.

use std::io;

use prism_service::{Io, Moved as MovedByClient};

use crate::exchange::Transfer;
use crate::server::{Server, write_some};

/// Bytes that are taken from a client at once.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Bytes on their way to one side. An empty queue has no buffer.
#[derive(Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    /// Bytes at its beginning that have left.
    sent: usize,
}

/// One movement of bytes.
pub(crate) enum Moved {
    /// The server has sent so many, or ended.
    FromServer(io::Result<usize>),
    /// The server has taken some, or will take no more.
    ToServer,
    /// The client has sent so many; 0 at the end of its direction.
    FromClient(usize),
    /// The client has taken some.
    ToClient,
}

impl Queue {
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// The buffer to which bytes are added.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    fn consume(&mut self, n: usize) {
        self.sent += n;
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

impl<I: Io> Transfer<'_, I> {
    /// Moves bytes in one direction, whichever is ready first; from the client only if `reads`.
    /// May be cancelled without loss.
    ///
    /// # Errors
    /// The client's connection is broken, also while nothing is to be moved there.
    pub(crate) async fn move_some(&mut self, reads: bool) -> io::Result<Moved> {
        let Server { stream, input, .. } = &mut *self.server;
        let (to_client, to_server) = (self.to_client.rest(), self.to_server.rest());
        tokio::select! {
            filled = input.fill(stream), if to_client.is_empty() => Ok(Moved::FromServer(filled)),
            written = write_some(stream, to_server), if !to_server.is_empty() => {
                match written {
                    Ok(written) => self.to_server.consume(written),
                    Err(_) => {
                        // It may have answered before it stopped reading.
                        self.is_deaf = true;
                        self.to_server = Queue::default();
                    }
                }
                Ok(Moved::ToServer)
            }
            moved = self.io.write_or_fill(to_client, reads) => match moved? {
                MovedByClient::Read(read) => Ok(Moved::FromClient(read)),
                MovedByClient::Written(0) => self.send_all().await,
                MovedByClient::Written(written) => {
                    self.to_client.consume(written);
                    Ok(Moved::ToClient)
                }
            },
        }
    }

    /// Writes all that waits for the client, and nothing else meanwhile.
    pub(crate) async fn send_all(&mut self) -> io::Result<Moved> {
        self.io.write_all(self.to_client.rest()).await?;
        self.to_client = Queue::default();
        Ok(Moved::ToClient)
    }
}
