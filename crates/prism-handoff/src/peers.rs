//! A worker's connections to the other nodes: a channel to each, and streams for relaying. A
//! channel is dialled at the first use, unless the peer has dialled one.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Mutex;

use crate::channel::Channel;
use crate::counters::Counters;
use crate::deferred::DeferredWork;
use crate::dial::{break_unread, dial};
use crate::endpoint::{Process, Shared};
use crate::health::Health;
use crate::node_tls::{Purpose, Secured, connect};
use crate::pki::{Identity, node_name};
use crate::probe::Asked;
use crate::reading::Spare;
use crate::relay_stream::RelayStream;

/// The largest number of idle relay streams to each peer.
const MAX_IDLE_RELAYS: usize = 64;
/// A node of the cluster, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name, which its certificate carries.
    pub name: String,
    /// The address of its node port.
    pub address: IpAddr,
}

impl std::str::FromStr for Peer {
    type Err = String;

    /// Reads `NAME=ADDRESS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is not NAME=ADDRESS");
        let (name, address) = text.split_once('=').ok_or_else(fault)?;
        let address = address.parse().map_err(|_| fault())?;
        Ok(Self {
            name: name.into(),
            address,
        })
    }
}

/// The reason why a peer was not reached.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The configuration knows no such node.
    #[error("no node is called {0:?}")]
    Unknown(String),
    /// It is suspect: it did not answer, and no probe has reached it since.
    #[error("node {0} does not answer")]
    HeldOff(String),
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
    peers: RefCell<HashMap<String, SocketAddr>>,
    port: u16,
    /// `None` if there are no other nodes.
    identity: Option<Identity>,
    /// The channel to each, and the number of the peer's failed handshakes when it was opened.
    channels: RefCell<HashMap<String, (Rc<Channel>, u64)>>,
    /// Locks for one dial of a channel at a time to each peer.
    dialling: RefCell<HashMap<String, Rc<Mutex<()>>>>,
    idle_relays: RefCell<BTreeMap<String, Vec<RelayStream>>>,
    pub(crate) importer: Weak<Shared>,
    deferred: Rc<DeferredWork>,
    counters: Arc<Counters>,
    spare: Rc<Spare>,
    pub(crate) health: Arc<Health>,
}

impl Peers {
    pub(crate) fn new(
        peers: &[Peer],
        port: u16,
        identity: Option<Identity>,
        importer: Weak<Shared>,
        deferred: Rc<DeferredWork>,
        process: &Process,
        spare: Rc<Spare>,
    ) -> Self {
        Self {
            peers: RefCell::new(by_name(peers, port)),
            port,
            identity,
            channels: RefCell::default(),
            dialling: RefCell::default(),
            idle_relays: RefCell::default(),
            importer,
            deferred,
            counters: process.counters.clone(),
            spare,
            health: process.health.clone(),
        }
    }

    /// Replaces the other nodes. Connections to a node that has moved or is gone close after their
    /// last use.
    pub(crate) fn set(&self, peers: &[Peer]) {
        let new = by_name(peers, self.port);
        let stays = |name: &String| new.get(name) == self.peers.borrow().get(name);
        self.channels.borrow_mut().retain(|name, _| stays(name));
        self.idle_relays.borrow_mut().retain(|name, _| stays(name));
        self.health
            .keep(&new.keys().map(String::as_str).collect::<HashSet<_>>());
        self.dialling.borrow_mut().retain(|name, _| stays(name));
        *self.peers.borrow_mut() = new;
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.peers.borrow().keys().cloned().collect()
    }

    fn identity(&self, wanted: &str) -> Result<&Identity, PeerError> {
        let identity = self.identity.as_ref();
        identity.ok_or_else(|| PeerError::Unknown(wanted.to_owned()))
    }

    /// The open channel to `name`. One from before an outage is closed, because TCP may take
    /// seconds to repeat what was lost.
    fn open_channel(&self, name: &str) -> Option<Rc<Channel>> {
        let channels = self.channels.borrow();
        let (channel, times_missed) = channels.get(name)?;
        if *times_missed != self.health.times_missed(name) {
            channel.close();
        }
        channel.is_open().then(|| channel.clone())
    }

    fn use_channel(&self, name: &str, channel: Rc<Channel>) {
        let entry = (channel, self.health.times_missed(name));
        self.channels.borrow_mut().insert(name.to_owned(), entry);
    }

    /// The channel to `name`, dialled if there is none.
    pub(crate) async fn channel(&self, name: &str) -> Result<Rc<Channel>, PeerError> {
        self.may_ask(name)?;
        if let Some(channel) = self.open_channel(name) {
            return Ok(channel);
        }
        let dialling = self
            .dialling
            .borrow_mut()
            .entry(name.to_owned())
            .or_default()
            .clone();
        let _one_at_a_time = dialling.lock().await;
        if let Some(channel) = self.open_channel(name) {
            return Ok(channel);
        }
        let channel = self.dial_channel(name).await?;
        self.use_channel(name, channel.clone());
        Ok(channel)
    }

    /// A new channel that nothing else uses, to the node at `address`.
    pub(crate) async fn fresh_channel(&self, address: IpAddr) -> Result<Rc<Channel>, PeerError> {
        let named = {
            let peers = self.peers.borrow();
            let found = peers.iter().find(|(_, at)| at.ip() == address);
            found.map(|(name, _)| name.clone())
        };
        let name = named.ok_or_else(|| PeerError::Unknown(address.to_string()))?;
        self.dial_channel(&name).await
    }

    async fn dial_channel(&self, name: &str) -> Result<Rc<Channel>, PeerError> {
        let secured = self.dial(name, Purpose::Channel).await?;
        let (importer, deferred) = (self.importer.clone(), self.deferred.clone());
        let counters = self.counters.clone();
        Ok(Channel::start(
            secured,
            name.into(),
            importer,
            deferred,
            counters,
        ))
    }

    /// The address of the node `name`.
    pub(crate) fn address(&self, name: &str) -> Option<IpAddr> {
        self.peers.borrow().get(name).map(SocketAddr::ip)
    }

    /// Uses a channel that the peer has dialled for hand-offs to it, if no other one is open.
    pub(crate) fn adopt(&self, channel: &Rc<Channel>) {
        if self.open_channel(&channel.peer).is_none() {
            self.use_channel(&channel.peer, channel.clone());
        }
    }

    /// A relay stream to `name`, and whether it was used before.
    pub(crate) async fn relay(&self, name: &str) -> Result<(RelayStream, bool), PeerError> {
        self.may_ask(name)?;
        let idle = self
            .idle_relays
            .borrow_mut()
            .get_mut(name)
            .and_then(Vec::pop);
        match idle {
            Some(stream) => Ok((stream, true)),
            // Boxed, because it is rare and large.
            None => {
                let stream = Box::pin(self.fresh_relay(name)).await?;
                Ok((stream, false))
            }
        }
    }

    /// A new relay stream to `name`.
    pub(crate) async fn fresh_relay(&self, name: &str) -> Result<RelayStream, PeerError> {
        let secured = self.dial(name, Purpose::Relay).await?;
        Ok(self.relay_stream(name, secured))
    }

    pub(crate) fn relay_stream(&self, name: &str, secured: Secured) -> RelayStream {
        let asked = Asked {
            name: name.to_owned(),
            shared: self.importer.clone(),
        };
        RelayStream::new(secured, self.spare.clone(), Some(asked))
    }

    /// Refuses to ask a suspect peer.
    fn may_ask(&self, name: &str) -> Result<(), PeerError> {
        if !self.health.is_suspect(name) {
            return Ok(());
        }
        // The task that probed the peer may have ended.
        self.doubt(name);
        Err(PeerError::HeldOff(name.to_owned()))
    }

    /// Notes a completed handshake with `name`.
    pub(crate) fn reached(&self, name: &str) {
        if self.health.reached(name, Instant::now()) {
            tracing::info!(peer = name, "a node answers again");
        }
    }

    /// Closes the idle relay streams to `name`.
    pub(crate) fn forget_relays(&self, name: &str) {
        self.idle_relays.borrow_mut().remove(name);
    }

    /// Keeps a relay stream that is between two requests.
    pub(crate) fn keep_relay(&self, name: &str, stream: RelayStream) {
        let mut idle = self.idle_relays.borrow_mut();
        match idle.get_mut(name) {
            Some(idle) if idle.len() < MAX_IDLE_RELAYS => idle.push(stream),
            Some(_) => {}
            None => drop(idle.insert(name.to_owned(), vec![stream])),
        }
    }

    async fn dial(&self, name: &str, purpose: Purpose) -> Result<Secured, PeerError> {
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
        let identity = self.identity(name)?;
        let config = match purpose {
            Purpose::Channel => identity.client_for_hand_off(),
            Purpose::Relay => identity.client_for_relay(),
        };
        let unknown = || PeerError::Unknown(name.to_owned());
        let address = self.peers.borrow().get(name).copied();
        let address = address.ok_or_else(unknown)?;
        let server_name = node_name(name).map_err(|_| unknown())?;
        let secure = async |tcp| {
            let secured = connect(&config, server_name, tcp).await?;
            if matches!(purpose, Purpose::Channel) {
                break_unread(&secured.tcp)?;
            }
            Ok(secured)
        };
        match dial(address, secure).await {
            Ok(secured) => {
                self.reached(name);
                Ok(secured)
            }
            Err(source) => {
                if self.health.missed(name, source.kind()) {
                    self.counters.peers_suspected.add_one();
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
}

fn by_name(peers: &[Peer], port: u16) -> HashMap<String, SocketAddr> {
    let peers = peers.iter();
    peers
        .map(|p| (p.name.clone(), (p.address, port).into()))
        .collect()
}
