//! The connections and relay streams that have come to a worker, as an endpoint yields them.

use crate::connection::Connection;
use crate::relay_stream::RelayStream;

/// An event at an endpoint.
#[derive(Debug)]
pub enum Incoming {
    /// A client's connection, accepted here or imported.
    Client(Connection),
    /// A stream on which another node relays requests.
    Relay {
        /// The stream, after its handshake.
        stream: RelayStream,
        /// The node's name.
        peer: String,
    },
}
