//! The operations of a worker for its application: relay streams, hand-offs, and its peers.
//!
//! Not here: how a worker leaves (`leaving`), and connections for another process (`passing`).

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use prism_proto::facts::Form;
use prism_sys::clock::monotonic_ns;

use crate::client_intake::ClientIntake;
use crate::config::Peer;
use crate::connection::Connection;
use crate::export::{Exported, export};
use crate::lifecycle::Lifecycle;
use crate::peers::{PeerError, Peers};
use crate::relay_stream::RelayStream;
use crate::worker::Worker;

/// The interval of looks whether the switch has answered.
const LOOK_FOR_SWITCH: Duration = Duration::from_millis(2);

/// The operations of a worker, for its tasks.
#[derive(Clone)]
pub struct Handle {
    pub(crate) worker: Rc<Worker>,
    pub(crate) peers: Rc<Peers>,
    pub(crate) lifecycle: Rc<Lifecycle>,
    pub(crate) intake: Rc<ClientIntake>,
}

impl Handle {
    /// This node's name.
    pub fn name(&self) -> &str {
        &self.worker.config.name
    }

    /// Waits until the switch has answered; no connection moves before. Never ends for a node
    /// without a switch.
    pub async fn switch_answers(&self) {
        let control = self.worker.control.as_ref();
        while control.is_none_or(|control| control.switch_clock_ns().is_none()) {
            tokio::time::sleep(LOOK_FOR_SWITCH).await;
        }
    }

    /// Ends [`Endpoint::next`](crate::Endpoint::next).
    pub fn stop(&self) {
        self.lifecycle.stopping.notify_one();
    }

    /// A stream on which `peer` answers requests. The peer may have closed one that was used before
    /// ([`RelayStream::was_used`]).
    ///
    /// # Errors
    /// [`PeerError`] if the peer is unknown or out of reach.
    pub async fn relay(&self, peer: &str) -> Result<RelayStream, PeerError> {
        // A leaving peer closes its idle streams.
        if self.is_leaving(peer) {
            return self.fresh_relay(peer).await;
        }
        self.peers.relay(peer).await
    }

    /// [`Self::relay`] with a new stream.
    ///
    /// # Errors
    /// As for [`Self::relay`].
    pub async fn fresh_relay(&self, peer: &str) -> Result<RelayStream, PeerError> {
        self.peers.fresh_relay(peer).await
    }

    /// Whether `peer` has an address of the client's family, and is not the client's own host. A
    /// connection cannot move elsewhere.
    pub fn has_family_of(&self, peer: &str, client: SocketAddr) -> bool {
        let address = self.peers.address_for(peer, client.ip());
        // Packets of a host to itself do not pass the switch.
        address.is_some_and(|address| address != client.ip())
    }

    /// Waits for the end of an outage of the switch, until a minute after its beginning. Returns
    /// whether one has ended since `then`.
    pub async fn outlast_outage(&self, then: Instant) -> bool {
        let Some(control) = &self.worker.control else {
            return false;
        };
        if let Some(limit) = control.outages.cut_off_for(monotonic_ns()) {
            let _ = tokio::time::timeout(limit, control.outages.over()).await;
        }
        control.outages.has_ended_since(then)
    }

    /// Replaces the other nodes.
    pub fn set_peers(&self, peers: &[Peer]) {
        self.peers.set(peers);
    }

    /// Gives back a relay stream that is between two requests.
    pub fn keep_relay(&self, peer: &str, stream: RelayStream) {
        if !self.is_leaving(peer) {
            self.peers.keep_relay(peer, stream);
        }
    }

    /// Hands `connection` over to `peer`, with the bytes that were read and not consumed,
    /// and with `context` (at most 4 KiB) for the peer's application.
    ///
    /// It ends within some 15 s, the sum of the deadlines of `prism_proto::export` and of a dial.
    /// Run it to its end: if the future is dropped, the connection is closed.
    pub async fn export(&self, connection: Connection, peer: &str, context: &[u8]) -> Exported {
        let in_either_form = |_| context.to_vec();
        self.export_with(connection, peer, in_either_form).await
    }

    /// The same with a context in the form that the peer reads.
    pub async fn export_with(
        &self,
        connection: Connection,
        peer: &str,
        context: impl Fn(Form) -> Vec<u8>,
    ) -> Exported {
        export(&self.worker, &self.peers, connection, peer, context).await
    }

    pub(crate) fn is_leaving(&self, peer: &str) -> bool {
        self.worker.process.is_leaving(peer)
    }
}
