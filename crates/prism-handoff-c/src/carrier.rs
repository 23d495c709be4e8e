//! A client's connection or a relay stream: what both can do.

use std::io;

use prism_handoff::{Connection, RelayStream};

pub(crate) enum Carrier {
    Client(Connection),
    Relay(RelayStream),
}

impl Carrier {
    /// Reads more; 0 at the end. Dropping the future loses nothing.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        match self {
            Self::Client(client) => client.fill().await,
            Self::Relay(stream) => stream.fill().await,
        }
    }

    pub(crate) fn buffered(&self) -> &[u8] {
        match self {
            Self::Client(client) => client.buffered(),
            Self::Relay(stream) => stream.buffered(),
        }
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        match self {
            Self::Client(client) => client.consume(bytes),
            Self::Relay(stream) => stream.consume(bytes),
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Client(client) => {
                // The program answers it, so it is welcome.
                client.caller_is_known();
                client.write_all(bytes).await
            }
            Self::Relay(stream) => {
                stream.write(bytes).await?;
                stream.flush().await
            }
        }
    }

    pub(crate) async fn close(self) {
        match self {
            Self::Client(client) => client.close().await,
            Self::Relay(stream) => stream.close().await,
        }
    }
}
