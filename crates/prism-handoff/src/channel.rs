//! Channels between nodes: persistent mutual TLS connections that carry frames
//! (docs/protocol.md, section 2), one per worker and peer, dialled when first
//! needed, unless the peer has dialled already: either end sends hand-offs on it,
//! so that a verdict leaves together with the next hand-off to the same peer.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use prism_proto::node::{FRAME_PREFIX_BYTES, Frame, HandOff, Refusal};
use prism_proto::wire::DecodeError;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot};
use tokio_rustls::{TlsConnector, TlsStream};
use zeroize::{Zeroize, Zeroizing};

use crate::chores::Chores;
use crate::counters::Counters;
use crate::endpoint::Shared;
use crate::pki::{Identity, node_name};

/// How long a dial may take, TCP and TLS.
const DIAL_DEADLINE: Duration = Duration::from_secs(1);
/// After a failed dial, for how long the peer counts as out of reach.
const DIAL_HOLD_OFF: Duration = Duration::from_millis(250);
/// Relay streams kept idle per peer.
const MAX_IDLE_RELAYS: usize = 64;
/// First size of a channel's receive buffer; it grows to one frame at most.
const BUFFER_BYTES: usize = 16 << 10;

/// A node of the cluster, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name, which its certificate carries.
    pub name: String,
    /// Where its node port listens.
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

/// Why a peer was not reached.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The configuration knows no such node.
    #[error("no node is called {0:?}")]
    Unknown(String),
    /// A dial failed just now; none is tried so soon again.
    #[error("node {0} was out of reach just now")]
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

/// A hand-off as it came in, and the channel for its verdict.
pub(crate) struct Arrived {
    pub(crate) hand_off: Box<HandOff>,
    pub(crate) channel: Rc<Channel>,
    pub(crate) at_ns: u64,
}

/// Verdicts under way, by hand-off.
type Verdicts = RefCell<HashMap<u64, oneshot::Sender<Frame>>>;

/// One live channel.
pub(crate) struct Channel {
    pub(crate) peer: String,
    writer: Mutex<WriteHalf<TlsStream<TcpStream>>>,
    /// Frames that leave with the next, or a little later by themselves.
    later: RefCell<Vec<u8>>,
    chores: Rc<Chores>,
    verdicts: Verdicts,
    open: Cell<bool>,
}

impl Channel {
    /// Takes over a TLS connection; connections that arrive are imported by
    /// `importer`.
    pub(crate) fn start(
        stream: TlsStream<TcpStream>,
        peer: String,
        importer: Weak<Shared>,
        chores: Rc<Chores>,
        counters: Arc<Counters>,
    ) -> Rc<Self> {
        let (reader, writer) = tokio::io::split(stream);
        let channel = Rc::new(Self {
            peer,
            writer: Mutex::new(writer),
            later: RefCell::default(),
            chores,
            verdicts: RefCell::default(),
            open: Cell::new(true),
        });
        let reading = channel.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = reading.read(reader, &importer, &counters).await {
                tracing::info!(peer = reading.peer, %error, "channel ended");
            }
            reading.close();
        });
        channel
    }

    /// Frames can still be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.open.get()
    }

    fn close(&self) {
        self.open.set(false);
        // Whoever waits for a verdict learns that none will come.
        self.verdicts.borrow_mut().clear();
    }

    /// Sends one frame whole, or breaks the channel. Dropped half-way, it closes
    /// the channel too.
    pub(crate) async fn send(&self, frame: &Frame) -> io::Result<()> {
        self.send_encoded(&Zeroizing::new(frame.encode())).await
    }

    /// Sends a frame that nobody waits for: with the next one, or by itself a
    /// little later.
    pub(crate) fn send_later(self: &Rc<Self>, frame: &Frame) {
        let is_first = self.later.borrow().is_empty();
        self.later.borrow_mut().extend_from_slice(&frame.encode());
        if is_first {
            let channel = self.clone();
            self.chores.add(move || channel.send_what_waited());
        }
    }

    fn send_what_waited(self: Rc<Self>) {
        // They may have left with another frame.
        if self.later.borrow().is_empty() {
            return;
        }
        tokio::task::spawn_local(async move {
            if let Err(error) = self.send_encoded(&[]).await {
                // The sources ask the switch instead.
                tracing::debug!(%error, "verdicts not sent");
            }
        });
    }

    /// [`Self::send`] for a frame that is bytes already.
    pub(crate) async fn send_encoded(&self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = self.writer.lock().await;
        if !self.open.get() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        // Secrets of clients' sessions may be in it.
        let mut all = Zeroizing::new(self.later.take());
        let bytes = match all.is_empty() {
            true => bytes,
            false => {
                all.reserve_exact(bytes.len());
                all.extend_from_slice(bytes);
                &all
            }
        };
        if bytes.is_empty() {
            return Ok(());
        }
        let guard = CloseUnlessSent {
            channel: self,
            sent: false,
        };
        writer.write_all(bytes).await?;
        writer.flush().await?;
        guard.disarm();
        Ok(())
    }

    /// The verdict of hand-off `id` will come out of the receiver.
    pub(crate) fn await_verdict(self: &Rc<Self>, id: u64) -> AwaitedVerdict {
        let (sender, receiver) = oneshot::channel();
        self.verdicts.borrow_mut().insert(id, sender);
        AwaitedVerdict {
            id,
            channel: Rc::downgrade(self),
            receiver,
        }
    }

    async fn read(
        self: &Rc<Self>,
        mut reader: ReadHalf<TlsStream<TcpStream>>,
        importer: &Weak<Shared>,
        counters: &Counters,
    ) -> Result<(), ChannelError> {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        loop {
            while let Some(len) = announced_len(&buffer, counters)? {
                let end = FRAME_PREFIX_BYTES + len;
                let Some(bytes) = buffer.get(FRAME_PREFIX_BYTES..end) else {
                    let missing = end - buffer.len();
                    reserve(&mut buffer, missing.min(1 << 20));
                    break;
                };
                self.on_frame(bytes, importer, counters).await?;
                consume(&mut buffer, end);
            }
            if buffer.is_empty() && buffer.capacity() > BUFFER_BYTES * 16 {
                buffer.shrink_to(BUFFER_BYTES);
            }
            if buffer.len() == buffer.capacity() {
                reserve(&mut buffer, BUFFER_BYTES);
            }
            if reader.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn on_frame(
        self: &Rc<Self>,
        bytes: &[u8],
        importer: &Weak<Shared>,
        counters: &Counters,
    ) -> Result<(), ChannelError> {
        let at_ns = crate::control::now_ns();
        match Frame::decode(bytes) {
            Ok(Frame::HandOff(hand_off)) => {
                let arrived = Arrived {
                    hand_off,
                    channel: self.clone(),
                    at_ns,
                };
                if let Some(shared) = importer.upgrade() {
                    crate::import::begin(shared, arrived).await;
                }
                Ok(())
            }
            Ok(Frame::Ask { id }) => self.answer(id, importer).await,
            Ok(
                verdict @ (Frame::Accepted { id }
                | Frame::Refused { id, .. }
                | Frame::Unknown { id }),
            ) => {
                match self.verdicts.borrow_mut().remove(&id) {
                    Some(waiting) => drop(waiting.send(verdict)),
                    None => counters.verdicts_unexpected.add_one(),
                }
                Ok(())
            }
            Err(error) => {
                counters.frames_malformed.add_one();
                tracing::warn!(peer = self.peer, %error, "frame refused");
                match Frame::peek_hand_off_id(bytes) {
                    Some(id) => {
                        let reason = Refusal::Malformed;
                        Ok(self.send(&Frame::Refused { id, reason }).await?)
                    }
                    None => Err(error.into()),
                }
            }
        }
    }
}

impl Channel {
    /// A source asks what became of its hand-off. While that is open there is no
    /// answer, and it asks again.
    async fn answer(&self, id: u64, importer: &Weak<Shared>) -> Result<(), ChannelError> {
        let Some(shared) = importer.upgrade() else {
            return Ok(());
        };
        let frame = match shared.process.given_up.ask(id) {
            Some(true) => Frame::Refused {
                id,
                reason: Refusal::SwitchFailed,
            },
            Some(false) => Frame::Unknown { id },
            None => return Ok(()),
        };
        Ok(self.send(&frame).await?)
    }
}

/// Drops the first `end` bytes, and leaves no copy of them, nor of what moves up:
/// frames carry the secrets of clients' sessions.
fn consume(buffer: &mut Vec<u8>, end: usize) {
    let end = end.min(buffer.len());
    let rest = buffer.len() - end;
    buffer.copy_within(end.., 0);
    buffer.get_mut(rest..).unwrap_or_default().zeroize();
    buffer.truncate(rest);
}

/// Makes room for `more` bytes, and leaves no copy of what was there before.
fn reserve(buffer: &mut Vec<u8>, more: usize) {
    if buffer.capacity() - buffer.len() >= more {
        return;
    }
    let mut larger = Vec::with_capacity((buffer.len() + more).max(2 * buffer.capacity()));
    larger.extend_from_slice(buffer);
    std::mem::replace(buffer, larger).zeroize();
}

/// A frame over the limit ends the channel: nothing behind it can be found.
fn announced_len(buffer: &[u8], counters: &Counters) -> Result<Option<usize>, DecodeError> {
    Frame::announced_len(buffer).inspect_err(|_| counters.frames_malformed.add_one())
}

#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer sent nonsense: {0}")]
    Decode(#[from] DecodeError),
}

struct CloseUnlessSent<'c> {
    channel: &'c Channel,
    sent: bool,
}

impl CloseUnlessSent<'_> {
    fn disarm(mut self) {
        self.sent = true;
    }
}

impl Drop for CloseUnlessSent<'_> {
    fn drop(&mut self) {
        if !self.sent {
            self.channel.close();
        }
    }
}

/// Waits for one verdict; forgets it when dropped.
pub(crate) struct AwaitedVerdict {
    id: u64,
    channel: Weak<Channel>,
    receiver: oneshot::Receiver<Frame>,
}

impl AwaitedVerdict {
    /// The verdict, or `None` when the channel broke first.
    pub(crate) async fn wait(mut self) -> Option<Frame> {
        (&mut self.receiver).await.ok()
    }
}

impl Drop for AwaitedVerdict {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.upgrade() {
            channel.verdicts.borrow_mut().remove(&self.id);
        }
    }
}

/// A connection that carries relayed requests.
pub type RelayStream = TlsStream<TcpStream>;

/// One worker's ways to all other nodes.
pub(crate) struct Peers {
    peers: HashMap<String, SocketAddr>,
    /// `None`: there are no other nodes.
    identity: Option<Identity>,
    channels: RefCell<HashMap<String, Rc<Channel>>>,
    dialling: Mutex<()>,
    failed_ns: RefCell<HashMap<String, u64>>,
    idle_relays: RefCell<HashMap<String, Vec<RelayStream>>>,
    importer: Weak<Shared>,
    chores: Rc<Chores>,
    counters: Arc<Counters>,
}

impl Peers {
    pub(crate) fn new(
        peers: &[Peer],
        port: u16,
        identity: Option<Identity>,
        importer: Weak<Shared>,
        chores: Rc<Chores>,
        counters: Arc<Counters>,
    ) -> Self {
        let peers = peers
            .iter()
            .map(|p| (p.name.clone(), (p.address, port).into()))
            .collect();
        Self {
            peers,
            identity,
            channels: RefCell::default(),
            dialling: Mutex::new(()),
            failed_ns: RefCell::default(),
            idle_relays: RefCell::default(),
            importer,
            chores,
            counters,
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.peers.keys().map(String::as_str)
    }

    fn identity(&self, wanted: &str) -> Result<&Identity, PeerError> {
        let identity = self.identity.as_ref();
        identity.ok_or_else(|| PeerError::Unknown(wanted.to_owned()))
    }

    fn open_channel(&self, name: &str) -> Option<Rc<Channel>> {
        self.channels
            .borrow()
            .get(name)
            .filter(|c| c.is_open())
            .cloned()
    }

    /// The channel to `name`, dialled if there is none.
    pub(crate) async fn channel(&self, name: &str) -> Result<Rc<Channel>, PeerError> {
        if let Some(channel) = self.open_channel(name) {
            return Ok(channel);
        }
        let _one_at_a_time = self.dialling.lock().await;
        if let Some(channel) = self.open_channel(name) {
            return Ok(channel);
        }
        let config = self.identity(name)?.client_for_hand_off();
        let stream = self.dial(name, config).await?;
        let channel = self.start(stream, name);
        self.channels
            .borrow_mut()
            .insert(name.to_owned(), channel.clone());
        Ok(channel)
    }

    /// A channel that nothing else uses, to the node at `address`.
    pub(crate) async fn fresh_channel(&self, address: IpAddr) -> Result<Rc<Channel>, PeerError> {
        let named = self.peers.iter().find(|(_, at)| at.ip() == address);
        let (name, _) = named.ok_or_else(|| PeerError::Unknown(address.to_string()))?;
        let config = self.identity(name)?.client_for_hand_off();
        let stream = self.dial(name, config).await?;
        Ok(self.start(stream, name))
    }

    fn start(&self, stream: TlsStream<TcpStream>, name: &str) -> Rc<Channel> {
        let (importer, chores) = (self.importer.clone(), self.chores.clone());
        Channel::start(stream, name.into(), importer, chores, self.counters.clone())
    }

    /// Where the node called `name` is.
    pub(crate) fn address(&self, name: &str) -> Option<IpAddr> {
        self.peers.get(name).map(SocketAddr::ip)
    }

    /// Hand-offs to the peer at the other end of `channel`, which it has dialled,
    /// go there, where none is open to it.
    pub(crate) fn adopt(&self, channel: &Rc<Channel>) {
        if self.open_channel(&channel.peer).is_none() {
            self.channels
                .borrow_mut()
                .insert(channel.peer.clone(), channel.clone());
        }
    }

    /// A relay stream to `name`, and whether it has been used before.
    pub(crate) async fn relay(&self, name: &str) -> Result<(RelayStream, bool), PeerError> {
        let idle = self
            .idle_relays
            .borrow_mut()
            .get_mut(name)
            .and_then(Vec::pop);
        match idle {
            Some(stream) => Ok((stream, true)),
            None => self.fresh_relay(name).await.map(|stream| (stream, false)),
        }
    }

    /// A new relay stream to `name`.
    pub(crate) async fn fresh_relay(&self, name: &str) -> Result<RelayStream, PeerError> {
        let config = self.identity(name)?.client_for_relay();
        self.dial(name, config).await
    }

    /// Keeps a relay stream that is between two requests for the next.
    pub(crate) fn keep_relay(&self, name: &str, stream: RelayStream) {
        let mut idle = self.idle_relays.borrow_mut();
        let idle = idle.entry(name.to_owned()).or_default();
        if idle.len() < MAX_IDLE_RELAYS {
            idle.push(stream);
        }
    }

    async fn dial(
        &self,
        name: &str,
        config: Arc<rustls::ClientConfig>,
    ) -> Result<RelayStream, PeerError> {
        let unknown = || PeerError::Unknown(name.to_owned());
        let address = *self.peers.get(name).ok_or_else(unknown)?;
        let server_name = node_name(name).map_err(|_| unknown())?;
        let now_ns = crate::control::now_ns();
        let held_off =
            self.failed_ns.borrow().get(name).is_some_and(|at| {
                u128::from(now_ns.saturating_sub(*at)) < DIAL_HOLD_OFF.as_nanos()
            });
        if held_off {
            return Err(PeerError::HeldOff(name.to_owned()));
        }
        let dialled = tokio::time::timeout(DIAL_DEADLINE, async {
            let tcp = TcpStream::connect(address).await?;
            tune(&tcp)?;
            TlsConnector::from(config).connect(server_name, tcp).await
        });
        let result = dialled
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match result {
            Ok(stream) => {
                self.failed_ns.borrow_mut().remove(name);
                Ok(stream.into())
            }
            Err(source) => {
                self.failed_ns
                    .borrow_mut()
                    .insert(name.to_owned(), crate::control::now_ns());
                Err(PeerError::Dial {
                    name: name.to_owned(),
                    address,
                    source,
                })
            }
        }
    }
}

/// How long a peer may leave data unacknowledged before its channel breaks.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// What every connection between nodes gets: no Nagle, and an end in bounded
/// time when the peer vanishes.
pub(crate) fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = socket2::SockRef::from(tcp);
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(USER_TIMEOUT)
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)
}
