//! A worker's connections to the other nodes: a channel to each, and streams for relaying. A
//! channel is dialled at the first use, unless the peer has dialled one.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use prism_proto::health::Health;
use prism_sys::clock::monotonic_ns;
use tokio::sync::Mutex;

use crate::buffers::Spare;
use crate::channel::{Channel, ChannelParts};
use crate::config::{EndpointConfig, Peer, of_family, towards};
use crate::control::Control;
use crate::dial::dial;
use crate::node_tls::{Purpose, Secured, connect};
use crate::relay_stream::RelayStream;
use prism_pki::{Identity, node_name};

/// The largest number of idle relay streams to each peer.
const MAX_IDLE_RELAYS: usize = 64;
/// The interval of probes in the first 30 s. Requests fail until a probe is answered, so a peer
/// that starts again should be found at once.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(30);
/// The interval of later probes. With the last attempt of a dial (225 ms) it bounds the time to
/// find a peer again by half a second.
const PROBE_LATER: Duration = Duration::from_millis(250);

/// The reason why a peer was not reached.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The configuration knows no such node.
    #[error("no node is called {0:?}")]
    Unknown(String),
    /// It is suspect: it did not answer, and no probe has reached it since.
    #[error("node {0} does not answer")]
    HeldOff(String),
    /// It has no address of a family that this node has too.
    #[error("node {0} has no address of a family of this node's; give both one of the same")]
    OtherFamily(String),
    /// TCP or TLS failed.
    #[error("node {name} at {address}: {source}")]
    Dial {
        /// Which.
        name: String,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// One worker's connections to all other nodes.
pub(crate) struct Peers {
    nodes: RefCell<HashMap<String, PeerLinks>>,
    /// This node's addresses, and the node port of all nodes.
    own_addresses: Vec<IpAddr>,
    port: u16,
    identity: Option<Identity>,
    control: Option<Rc<Control>>,
    spare: Rc<Spare>,
    channel_parts: ChannelParts,
}

/// One other node, and the connections to it.
struct PeerLinks {
    /// The address that is dialled; `None` if the nodes have no family in common.
    address: Option<SocketAddr>,
    /// All of its addresses.
    addresses: Vec<IpAddr>,
    /// The channel, and the number of the node's failed handshakes when it was opened.
    channel: Option<(Rc<Channel>, u64)>,
    /// Locked while a channel is dialled.
    dialling: Rc<Mutex<()>>,
    idle_relays: Vec<RelayStream>,
}

impl Peers {
    /// The connections of a new worker, to the nodes of `config`.
    pub(crate) fn new(
        config: &EndpointConfig,
        control: Option<Rc<Control>>,
        spare: Rc<Spare>,
        channel_parts: ChannelParts,
    ) -> Self {
        let peers = Self {
            nodes: RefCell::default(),
            own_addresses: config.addresses.clone(),
            port: config.peer_port,
            identity: config.identity.clone(),
            control,
            spare,
            channel_parts,
        };
        peers.set(&config.peers);
        peers
    }

    /// Replaces the other nodes. Connections to a node that has moved or is gone close after their
    /// last use.
    pub(crate) fn set(&self, peers: &[Peer]) {
        let mut old = self.nodes.take();
        let new = peers.iter().map(|peer| {
            let address = towards(&self.own_addresses, &peer.addresses);
            let address = address.map(|ip| SocketAddr::new(ip, self.port));
            let stays = old
                .remove(&peer.name)
                .filter(|node| node.address == address && node.addresses == peer.addresses);
            let node = stays.unwrap_or_else(|| PeerLinks {
                address,
                addresses: peer.addresses.clone(),
                channel: None,
                dialling: Rc::default(),
                idle_relays: Vec::new(),
            });
            (peer.name.clone(), node)
        });
        let new = new.collect();
        let names = peers.iter().map(|peer| peer.name.as_str());
        self.health().keep(&names.collect::<HashSet<_>>());
        *self.nodes.borrow_mut() = new;
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.nodes.borrow().keys().cloned().collect()
    }

    /// The address of the node `name`.
    pub(crate) fn address(&self, name: &str) -> Option<IpAddr> {
        self.of_node(name, |node| node.address)?
            .map(|address| address.ip())
    }

    /// The address of the node `name` that is of the family of `client`.
    pub(crate) fn address_for(&self, name: &str, client: IpAddr) -> Option<IpAddr> {
        self.of_node(name, |node| of_family(&node.addresses, client))?
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.channel_parts.process.health.lock()
    }

    fn of_node<T>(&self, name: &str, of: impl FnOnce(&mut PeerLinks) -> T) -> Option<T> {
        self.nodes.borrow_mut().get_mut(name).map(of)
    }

    /// The open channel to `name`. One from before an outage is closed, because TCP may take
    /// seconds to repeat what was lost.
    fn open_channel(&self, name: &str) -> Option<Rc<Channel>> {
        let (channel, times_missed) = self.of_node(name, |node| node.channel.clone())??;
        if times_missed != self.health().times_missed(name) {
            channel.close();
        }
        channel.is_open().then_some(channel)
    }

    fn use_channel(&self, name: &str, channel: Rc<Channel>) {
        let entry = (channel, self.health().times_missed(name));
        self.of_node(name, |node| node.channel = Some(entry));
    }

    /// The channel to `name`, dialled if there is none.
    pub(crate) async fn channel(self: &Rc<Self>, name: &str) -> Result<Rc<Channel>, PeerError> {
        self.may_ask(name)?;
        if let Some(channel) = self.open_channel(name) {
            return Ok(channel);
        }
        let dialling = self.of_node(name, |node| node.dialling.clone());
        let dialling = dialling.ok_or_else(|| PeerError::Unknown(name.to_owned()))?;
        let _one_at_a_time = dialling.lock().await;
        if let Some(channel) = self.open_channel(name) {
            return Ok(channel);
        }
        let channel = self.dial_channel(name).await?;
        self.use_channel(name, channel.clone());
        Ok(channel)
    }

    /// A new channel that nothing else uses, to the node at `address`.
    pub(crate) async fn fresh_channel(
        self: &Rc<Self>,
        address: IpAddr,
    ) -> Result<Rc<Channel>, PeerError> {
        let named = {
            let nodes = self.nodes.borrow();
            let found = nodes
                .iter()
                .find(|(_, node)| node.addresses.contains(&address));
            found.map(|(name, _)| name.clone())
        };
        let name = named.ok_or_else(|| PeerError::Unknown(address.to_string()))?;
        self.dial_channel(&name).await
    }

    async fn dial_channel(self: &Rc<Self>, name: &str) -> Result<Rc<Channel>, PeerError> {
        let secured = self.dial(name, Purpose::Channel).await?;
        Ok(self.start_channel(secured, name.into()))
    }

    fn start_channel(&self, secured: Secured, peer: String) -> Rc<Channel> {
        Channel::start(secured, peer, &self.channel_parts)
    }

    /// Starts a channel that the peer has dialled, and uses it for hand-offs to it, if no other one
    /// is open.
    pub(crate) fn adopt(&self, secured: Secured, peer: String) -> Rc<Channel> {
        let channel = self.start_channel(secured, peer);
        if self.open_channel(&channel.peer).is_none() {
            self.use_channel(&channel.peer, channel.clone());
        }
        channel
    }

    /// A relay stream to `name`, which may have been used before.
    pub(crate) async fn relay(self: &Rc<Self>, name: &str) -> Result<RelayStream, PeerError> {
        self.may_ask(name)?;
        match self.of_node(name, |node| node.idle_relays.pop()).flatten() {
            Some(stream) => Ok(stream),
            // Boxed, because it is rare and large.
            None => Box::pin(self.fresh_relay(name)).await,
        }
    }

    /// A new relay stream to `name`.
    pub(crate) async fn fresh_relay(self: &Rc<Self>, name: &str) -> Result<RelayStream, PeerError> {
        let secured = self.dial(name, Purpose::Relay).await?;
        Ok(self.relay_stream(name, secured))
    }

    fn relay_stream(self: &Rc<Self>, name: &str, secured: Secured) -> RelayStream {
        let peers = Rc::downgrade(self);
        let name = name.to_owned();
        let is_lost = move || {
            peers.upgrade().is_some_and(|peers| {
                peers.doubt(&name);
                peers.holds_off(&name)
            })
        };
        RelayStream::new(secured, self.spare.clone(), Some(Box::new(is_lost)))
    }

    /// Whether `name` is suspect. Nobody is while this host may be cut off.
    fn holds_off(&self, name: &str) -> bool {
        let control = self.control.as_ref();
        let is_cut_off =
            |control: &Rc<Control>| control.outages.cut_off_for(monotonic_ns()).is_some();
        self.health().is_suspect(name) && !control.is_some_and(is_cut_off)
    }

    /// Refuses to ask a suspect peer.
    fn may_ask(self: &Rc<Self>, name: &str) -> Result<(), PeerError> {
        if !self.holds_off(name) {
            return Ok(());
        }
        // The task that probed the peer may have ended.
        self.doubt(name);
        Err(PeerError::HeldOff(name.to_owned()))
    }

    /// Notes a completed handshake with `name`.
    pub(crate) fn reached(&self, name: &str) {
        if self.health().reached(name, Instant::now()) {
            tracing::info!(peer = name, "a node answers again");
        }
    }

    /// Closes the idle relay streams to `name`.
    pub(crate) fn forget_relays(&self, name: &str) {
        self.of_node(name, |node| node.idle_relays.clear());
    }

    /// Keeps a relay stream that is between two requests.
    pub(crate) fn keep_relay(&self, name: &str, mut stream: RelayStream) {
        stream.set_used();
        self.of_node(name, |node| {
            if node.idle_relays.len() < MAX_IDLE_RELAYS {
                node.idle_relays.push(stream);
            }
        });
    }

    async fn dial(self: &Rc<Self>, name: &str, purpose: Purpose) -> Result<Secured, PeerError> {
        self.may_ask(name)?;
        let dialled = self.dial_anyway(name, purpose).await;
        if let Err(PeerError::Dial { .. }) = &dialled {
            self.doubt(name);
        }
        dialled
    }

    /// Dials `name`, suspect or not.
    pub(crate) async fn dial_anyway(
        &self,
        name: &str,
        purpose: Purpose,
    ) -> Result<Secured, PeerError> {
        let unknown = || PeerError::Unknown(name.to_owned());
        let identity = self.identity.as_ref().ok_or_else(unknown)?;
        let address = self.of_node(name, |node| node.address);
        let Some(address) = address.ok_or_else(unknown)? else {
            return Err(PeerError::OtherFamily(name.to_owned()));
        };
        let server_name = node_name(name).map_err(|_| unknown())?;
        let secure = async |tcp| connect(identity, purpose, server_name, tcp).await;
        match dial(address, secure).await {
            Ok(secured) => {
                self.reached(name);
                Ok(secured)
            }
            Err(source) => {
                if self.health().missed(name, source.kind()) {
                    self.channel_parts
                        .process
                        .counters
                        .peers_suspected
                        .add_one();
                    tracing::warn!(peer = name, error = %source,
                        "a node does not answer; nothing is asked of it until it does");
                }
                Err(PeerError::Dial {
                    name: name.to_owned(),
                    address,
                    source,
                })
            }
        }
    }

    /// Starts a probe of `name`, unless one is under way.
    pub(crate) fn doubt(self: &Rc<Self>, name: &str) {
        let Some(probe) = self.health().begin_probe(name, Instant::now()) else {
            return;
        };
        let peers = Rc::downgrade(self);
        let name = name.to_owned();
        tokio::task::spawn_local(async move {
            let begun = Instant::now();
            let _probe = probe;
            while let Some(peers) = peers.upgrade() {
                match peers.dial_anyway(&name, Purpose::Relay).await {
                    Err(PeerError::Dial { .. }) => {}
                    Ok(secured) => {
                        let stream = peers.relay_stream(&name, secured);
                        return peers.keep_relay(&name, stream);
                    }
                    Err(
                        PeerError::Unknown(_) | PeerError::HeldOff(_) | PeerError::OtherFamily(_),
                    ) => return,
                }
                drop(peers);
                tokio::time::sleep(if begun.elapsed() < SOON {
                    PROBE_EVERY
                } else {
                    PROBE_LATER
                })
                .await;
            }
        });
    }
}
