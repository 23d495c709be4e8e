//! One worker of a node: it accepts clients, imports and exports connections, and speaks to the
//! switch. All of it belongs to one thread. Workers share a [`Process`].

mod accept;
mod config;
mod listeners;
mod process;
mod shared;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::control::now_ns;
use crate::copies;
use crate::flows;
use crate::lease;
use crate::peers::{PeerError, Peers};
use crate::relay_stream::RelayStream;
use prism_common::supervise::keep;

use accept::ClientListener;
pub use config::{EndpointConfig, Peer, TlsService, Transit};
pub(crate) use config::{of_family, towards};
pub use listeners::Listeners;
pub use process::Process;
pub(crate) use shared::{EndpointPhase, Shared};
pub use shared::{Incoming, LOCAL_PORTS};

/// The largest number of connections and relay streams that wait for [`Endpoint::next`].
const MAX_WAITING: usize = 1024;
/// The interval of looks whether the switch has answered.
const LOOK_FOR_SWITCH: Duration = Duration::from_millis(2);

/// One worker of a node.
pub struct Endpoint {
    incoming: mpsc::Receiver<Incoming>,
    handle: Handle,
}

impl Endpoint {
    /// Binds the node port and, if the configuration says so, the service address, and starts the
    /// tasks of one worker. Workers of one process bind the same ports (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// The kernel's error: an address that is not this host's, a port that is taken, a missing
    /// privilege.
    ///
    /// # Panics
    /// Outside of a `LocalSet`.
    pub async fn bind(config: EndpointConfig, process: Arc<Process>) -> io::Result<Self> {
        let (incoming_tx, incoming) = mpsc::channel(MAX_WAITING);
        let shared = Shared::open(config, process, incoming_tx)?;
        let config = &shared.config;
        let mut clients = Vec::new();
        if config.listen {
            for service in &config.services {
                clients.extend(ClientListener::open(&shared, *service, None)?);
            }
            if let Some(tls) = &config.tls {
                for service in &tls.addresses {
                    clients.extend(ClientListener::open(&shared, *service, tls.server.clone())?);
                }
            }
        }
        let peers = Peers::new(&shared);
        if let Some(identity) = &config.identity {
            for address in &config.addresses {
                let address = (*address, config.peer_port).into();
                for listener in shared.process.listeners.open(address, None)? {
                    let peers = peers.clone();
                    let identity = identity.clone();
                    keep("accepting nodes", async move || {
                        peers.accept_nodes(&listener, &identity).await;
                    });
                }
            }
        }
        shared.listeners.send_replace(clients.len());
        shared.spawn(clients);
        let handle = Handle { shared, peers };
        Ok(Self { incoming, handle })
    }

    /// The next client connection or relay stream; `None` after [`Handle::stop`].
    pub async fn next(&mut self) -> Option<Incoming> {
        tokio::select! {
            biased;
            next = self.incoming.recv() => next,
            () = self.handle.shared.stopping.notified() => None,
        }
    }

    /// A handle for other tasks of this worker.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.handle.shared.deferred.finish();
    }
}

/// The operations of a worker, for its tasks.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Rc<Shared>,
    pub(crate) peers: Rc<Peers>,
}

impl Handle {
    /// This node's name.
    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// Waits until the switch has answered; no connection moves before. Never ends for a node
    /// without a switch.
    pub async fn switch_answers(&self) {
        let control = self.shared.control.as_ref();
        while control.is_none_or(|control| control.switch_clock_ns().is_none()) {
            tokio::time::sleep(LOOK_FOR_SWITCH).await;
        }
    }

    /// Ends [`Endpoint::next`].
    pub fn stop(&self) {
        self.shared.stopping.notify_one();
    }

    /// A stream on which `peer` answers requests, and whether it was used before. The peer may have
    /// closed a used one meanwhile.
    ///
    /// # Errors
    /// [`PeerError`] if the peer is unknown or out of reach.
    pub async fn relay(&self, peer: &str) -> Result<(RelayStream, bool), PeerError> {
        // A leaving peer closes its idle streams.
        if self.is_leaving(peer) {
            return Ok((self.fresh_relay(peer).await?, false));
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

    /// Whether `peer` has an address of the client's family, without which the connection cannot
    /// move there.
    pub fn has_family_of(&self, peer: &str, client: SocketAddr) -> bool {
        self.peers.has_family_of(peer, client.ip())
    }

    /// Waits for the end of an outage of the switch, until a minute after its beginning. Returns
    /// whether one has ended since `then`.
    pub async fn outlast_outage(&self, then: Instant) -> bool {
        let Some(control) = &self.shared.control else {
            return false;
        };
        if let Some(limit) = control.outages.cut_off_for(now_ns()) {
            let _ = tokio::time::timeout(limit, control.outages.over()).await;
        }
        control.outages.has_ended_since(then)
    }

    /// Replaces the other nodes.
    pub fn set_peers(&self, peers: &[crate::Peer]) {
        self.peers.set(peers);
    }

    /// Gives back a relay stream that is between two requests.
    pub fn keep_relay(&self, peer: &str, stream: RelayStream) {
        if !self.is_leaving(peer) {
            self.peers.keep_relay(peer, stream);
        }
    }
}

impl Shared {
    /// Starts the tasks of the worker.
    fn spawn(self: &Rc<Self>, clients: Vec<ClientListener>) {
        if let Some(control) = self.control.clone() {
            let clock = control.clone();
            let leased = control.clone();
            let taking = control.clone();
            let claims = self.claims.clone();
            let claimer = control.clone();
            let commands = control.clone();
            keep("commands to the switch", async move || commands.run().await);
            let signer = control.clone();
            keep("the node's key", async move || signer.follow_key().await);
            keep("the switch's clock", async move || {
                clock.refresh_clock().await
            });
            keep("the lease", async move || lease::keep(&leased).await);
            keep("the lease for new clients", async move || {
                lease::take_again(&taking).await;
            });
            let unclaimed = claims.clone();
            let announcer = control.clone();
            keep("claims", async move || claims.run(&claimer).await);
            keep("announcements", async move || {
                flows::announce_all(&announcer, &unclaimed).await;
            });
        }
        for index in 0..self.config.switch.as_ref().map_or(0, |s| s.hosts.len()) {
            let shared = self.clone();
            keep("copies of flows", async move || {
                copies::copy_all(&shared, index).await;
            });
        }
        if let Some(closed_sockets) = self.closed_sockets.clone() {
            let watching = closed_sockets.clone();
            keep("closed sockets", async move || watching.run().await);
            keep("releases", async move || closed_sockets.release_all().await);
        }
        if self.control.is_some() && self.process.is_first_to_watch() {
            let process = self.process.clone();
            keep("the freezer", async move || process.watch_freezer().await);
        }
        let shared = self.clone();
        keep("adopting connections", async move || {
            shared.adopt_arrivals().await
        });
        let deferred = self.deferred.clone();
        keep("deferred", async move || deferred.run().await);
        for listener in clients {
            let shared = self.clone();
            let mut listener = Some(listener);
            keep("accepting clients", async move || {
                if let Some(open) = &listener {
                    shared.accept_clients(open).await;
                }
                listener = None;
                let close_one = |open: &mut usize| *open = open.saturating_sub(1);
                shared.listeners.send_modify(close_one);
            });
        }
    }
}
