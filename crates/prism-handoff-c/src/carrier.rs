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
            Self::Client(client) => {
                if bytes > 0 {
                    // The program has read a part of what it sent, so it is welcome.
                    client.caller_is_known();
                }
                client.consume(bytes);
            }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used)]
    use std::io::Write;
    use std::sync::Arc;

    use prism_handoff::{Endpoint, Incoming, Process};
    use tokio::task::LocalSet;

    use super::*;
    use crate::config::of_lone_node;

    #[test]
    fn a_client_is_a_newcomer_until_something_of_it_is_consumed() {
        let (config, service) = of_lone_node();
        let config = config.endpoint().unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let process = Arc::new(Process::default());
            let mut endpoint = Endpoint::bind(config, process).await.unwrap();
            let mut client = std::net::TcpStream::connect(service).unwrap();
            client.write_all(b"one").unwrap();
            let Some(Incoming::Client(accepted)) = endpoint.next().await else {
                panic!("no client");
            };
            let mut carrier = Carrier::Client(accepted);
            let is_newcomer = |carrier: &Carrier| match carrier {
                Carrier::Client(client) => client.is_newcomer(),
                Carrier::Relay(_) => false,
            };
            carrier.fill().await.unwrap();
            carrier.consume(0);
            assert!(is_newcomer(&carrier));
            carrier.consume(1);
            assert!(!is_newcomer(&carrier));
        });
    }
}
