//! One worker of a node: accepts clients, imports connections from other
//! nodes, exports them, and speaks to the switch. Everything in it belongs to
//! one thread; what workers share is [`Process`].

mod accept;
mod config;
mod process;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_proto::control::{FlowKey, Owner};
use prism_proto::export::Method;
use prism_sys::tcp::ktls::Offered;
use prism_sys::tcp::{Blank, Freezer, RestoreError};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use crate::claims::Claims;
use crate::closed_sockets::ClosedSockets;
use crate::connection::{Connection, ConnectionState};
use crate::control::Control;
use crate::counters::Counters;
use crate::deferred::DeferredWork;
use crate::leaving::Phase;
use crate::peers::Peers;
use crate::reading::{Input, Spare};
use crate::relay_stream::RelayStream;
use crate::stream::Stream;
use crate::supervise::keep;
use crate::wait_timer::WaitTimer;

use accept::{ClientListener, listen};
pub use config::{EndpointConfig, Transit};
pub use process::Process;

/// Sockets prepared for connections to come, in each worker.
const BLANKS: usize = 8;
/// Where ports of connections that arrive are taken from: below Linux's default
/// ephemeral range.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// The clamp that a handshake over Ethernet ends with.
const USUAL_MSS_BYTES: u16 = 1460;
/// Connections and hand-offs that wait for [`Endpoint::next`].
const MAX_WAITING: usize = 1024;
/// Reads and writes of a new connection go on within this time, unless the
/// application says otherwise.
const DEFAULT_IO_TIMEOUT: Duration = Duration::from_secs(60);

/// What comes to an endpoint.
#[derive(Debug)]
pub enum Incoming {
    /// A client's connection, accepted here or imported.
    Client(Connection),
    /// Another node wants requests answered, and relays them.
    Relay {
        /// The stream, after its handshake.
        stream: RelayStream,
        /// The node's name.
        peer: String,
    },
}

/// One worker of a node.
pub struct Endpoint {
    incoming: mpsc::Receiver<Incoming>,
    shared: Rc<Shared>,
}

/// What an endpoint's tasks and connections share.
pub(crate) struct Shared {
    pub(crate) config: EndpointConfig,
    pub(crate) counters: Arc<Counters>,
    pub(crate) process: Arc<Process>,
    pub(crate) control: Option<Rc<Control>>,
    pub(crate) closed_sockets: Option<Rc<ClosedSockets>>,
    pub(crate) claims: Rc<Claims>,
    pub(crate) peers: Peers,
    pub(crate) deferred: Rc<DeferredWork>,
    pub(crate) incoming: mpsc::Sender<Incoming>,
    /// Imports that wait for the switch.
    pub(crate) importing: Cell<usize>,
    /// Sockets prepared for connections to come.
    blanks: RefCell<Vec<Blank>>,
    pub(crate) spare: Rc<Spare>,
    /// Of the last connection that arrived.
    usual_mss_bytes: Cell<u16>,
    stopping: Notify,
    pub(crate) phase: Cell<Phase>,
    pub(crate) phase_changed: Notify,
    /// Listeners for clients that are open.
    pub(crate) listeners: Cell<usize>,
    pub(crate) listener_closed: Notify,
}

impl Shared {
    /// Clients connect there.
    pub(crate) fn is_service(&self, address: SocketAddr) -> bool {
        let tls = self.config.tls.as_ref();
        address == self.config.service || tls.is_some_and(|tls| tls.address == address)
    }

    pub(crate) fn method(&self) -> Method {
        match self.freezer() {
            Some(_) => self.config.method,
            None => Method::TwoPhase,
        }
    }

    /// The means to silence sockets, if the host has them.
    pub(crate) fn freezer(&self) -> Option<&Freezer> {
        self.control.as_ref()?;
        self.process.freezer()
    }

    /// What the switch is to be told of a socket bound to `local`.
    pub(crate) fn owner(&self, local: SocketAddr) -> Owner {
        Owner {
            addr: local,
            via: self.config.address,
        }
    }

    /// A socket for a connection with `service` that has come.
    pub(crate) fn blank(
        &self,
        service: SocketAddr,
        mss_clamp_bytes: u16,
    ) -> Result<Blank, RestoreError> {
        self.usual_mss_bytes.set(mss_clamp_bytes);
        let mut blanks = self.blanks.borrow_mut();
        let fits = |blank: &Blank| !self.config.listen || blank.bound() == service;
        match blanks.iter().rposition(fits) {
            Some(at) => Ok(blanks.swap_remove(at)),
            None => self.new_blank(service),
        }
    }

    /// A listener's connections have the service's own address. Elsewhere any port
    /// does, as the switch rewrites it: a new one for each connection, so that it
    /// meets neither what is left of itself, when it comes back, nor a predecessor
    /// in TIME_WAIT.
    fn new_blank(&self, service: SocketAddr) -> Result<Blank, RestoreError> {
        let config = &self.config;
        let local = match config.listen {
            true => service,
            false => SocketAddr::new(config.address, fastrand::u16(PORTS)),
        };
        Blank::new(local, self.usual_mss_bytes.get())
    }

    /// Prepares sockets for connections with `service` to come, while nobody waits.
    pub(crate) fn prepare_blanks(&self, service: SocketAddr) {
        let mut blanks = self.blanks.borrow_mut();
        let fits = |blank: &&Blank| !self.config.listen || blank.bound() == service;
        for _ in blanks.iter().filter(fits).count()..BLANKS {
            match self.new_blank(service) {
                Ok(blank) => blanks.push(blank),
                // It will be said of the connection that needs one.
                Err(_) => return,
            }
        }
    }

    /// What the kernel may do for TLS. A socket that it has a key for is got rid of
    /// by the switch's help only, so there has to be one.
    pub(crate) fn kernel_tls(&self) -> Option<&Offered> {
        let control = self.control.as_ref()?;
        let offered = self.config.tls.as_ref()?.kernel.as_ref()?;
        control.is_reachable().then_some(offered)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.counters.connections_open.read() < self.config.max_connections
    }

    pub(crate) fn connection(
        self: &Rc<Self>,
        stream: impl Into<Stream>,
        state: Box<ConnectionState>,
    ) -> Connection {
        Connection {
            stream: Some(stream.into()),
            state,
            wait_timer: WaitTimer::default(),
        }
    }

    /// Takes the place of a connection whose socket is elsewhere for a while.
    pub(crate) fn connection_without_socket(self: &Rc<Self>, like: &ConnectionState) -> Connection {
        Connection {
            stream: None,
            state: self.new_state(like.flow.client, like.flow.vip, like.local),
            wait_timer: WaitTimer::default(),
        }
    }

    /// The parts of a connection around its socket.
    pub(crate) fn new_state(
        self: &Rc<Self>,
        client: SocketAddr,
        service: SocketAddr,
        local: SocketAddr,
    ) -> Box<ConnectionState> {
        let mut state = Box::new(ConnectionState {
            input: Input::default(),
            output: Vec::new(),
            tls: None,
            flow: FlowKey {
                client,
                vip: service,
            },
            local,
            epoch: None,
            confirmed: false,
            settling: None,
            claimed: None,
            behaviour: None,
            origin: self.config.name.clone(),
            context: Vec::new(),
            io_timeout: DEFAULT_IO_TIMEOUT,
            read_bytes: 0,
            has_written: false,
            moves: 0,
            newcomer: None,
            shared: self.clone(),
            is_counted: false,
        });
        state.count(true);
        state
    }

    /// A connection of a listener's, which the switch finds by the list of frontends, is
    /// claimed when it stays.
    pub(crate) fn claim(&self, state: &mut ConnectionState) {
        let is_settled = state.confirmed || state.settling.is_some();
        if self.config.listen && self.control.is_some() && !is_settled {
            let here = self.owner(state.local);
            state.claimed = Some(self.claims.add(state.flow, here, state.epoch));
        }
    }

    /// A connection's socket has just been closed here.
    pub(crate) fn on_closed(&self, state: &ConnectionState) {
        if let (Some(epoch), Some(closed_sockets)) = (state.steered_epoch(), &self.closed_sockets) {
            closed_sockets.watch(state.local, state.flow, epoch);
        }
    }
}

impl Endpoint {
    /// Binds the node's port, where there may be other nodes, and the service
    /// address, where it listens, and starts the tasks of one worker. Call it within a `LocalSet`. Workers of
    /// one process bind the same ports (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// What the kernel says of a socket: an address that is not this host's, a
    /// port that is taken, a missing privilege.
    pub async fn bind(config: EndpointConfig, process: Arc<Process>) -> io::Result<Self> {
        let (incoming_tx, incoming) = mpsc::channel(MAX_WAITING);
        let counters = process.counters.clone();
        let (control, closed_sockets) = match &config.switch {
            Some(switch) => {
                let from = (config.address, config.placement);
                let control = Control::open(from, switch, counters.clone())?;
                let closed_sockets = ClosedSockets::new(control.clone(), counters.clone())?;
                (Some(control), Some(closed_sockets))
            }
            None => (None, None),
        };
        if control.is_some() {
            process.prepare_freezer();
        }
        if config.carry_window && control.is_some() {
            process.prepare_initial_window();
        }
        let nodes = match &config.identity {
            Some(identity) => {
                let listener = listen((config.address, config.peer_port).into())?;
                Some((listener, identity.server()))
            }
            None => None,
        };
        let mut clients = Vec::new();
        if config.listen {
            clients.push((listen(config.service)?, config.service, None));
            if let Some(tls) = &config.tls {
                clients.push((listen(tls.address)?, tls.address, tls.server.clone()));
            }
        }
        let deferred = Rc::new(DeferredWork::default());
        let spare = Rc::new(Spare::default());
        let shared = Rc::new_cyclic(|importer| Shared {
            peers: Peers::new(
                &config.peers,
                config.peer_port,
                config.identity.clone(),
                importer.clone(),
                deferred.clone(),
                &process,
                spare.clone(),
            ),
            deferred,
            config,
            counters,
            process,
            control,
            closed_sockets,
            claims: Rc::default(),
            incoming: incoming_tx,
            importing: Cell::new(0),
            blanks: RefCell::default(),
            spare,
            usual_mss_bytes: Cell::new(USUAL_MSS_BYTES),
            stopping: Notify::new(),
            phase: Cell::default(),
            phase_changed: Notify::new(),
            listeners: Cell::new(clients.len()),
            listener_closed: Notify::new(),
        });
        shared.spawn(nodes, clients);
        Ok(Self { incoming, shared })
    }

    /// The next connection, accepted or imported; `None` after [`Self::stop`].
    pub async fn next(&mut self) -> Option<Incoming> {
        tokio::select! {
            biased;
            next = self.incoming.recv() => next,
            () = self.shared.stopping.notified() => None,
        }
    }

    /// What other tasks of this worker use.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }
}

/// A worker's services, for its tasks.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Rc<Shared>,
}

impl Handle {
    /// This node's name.
    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// Ends [`Endpoint::next`].
    pub fn stop(&self) {
        self.shared.stopping.notify_one();
    }

    /// A stream on which `peer` answers requests, and whether it was used
    /// before (and so may have been closed by the peer meanwhile).
    ///
    /// # Errors
    /// When the peer is unknown or out of reach.
    pub async fn relay(&self, peer: &str) -> Result<(RelayStream, bool), crate::PeerError> {
        // It closes those that it does not hear from.
        if self.is_leaving(peer) {
            return Ok((self.fresh_relay(peer).await?, false));
        }
        self.shared.peers.relay(peer).await
    }

    /// Like [`Self::relay`], but never one that was used before.
    ///
    /// # Errors
    /// As for [`Self::relay`].
    pub async fn fresh_relay(&self, peer: &str) -> Result<RelayStream, crate::PeerError> {
        self.shared.peers.fresh_relay(peer).await
    }

    /// These are the other nodes from now on, instead of those of the configuration.
    pub fn set_peers(&self, peers: &[crate::Peer]) {
        self.shared.peers.set(peers);
    }

    /// Gives back a relay stream that is between two requests.
    pub fn keep_relay(&self, peer: &str, stream: RelayStream) {
        if !self.is_leaving(peer) {
            self.shared.peers.keep_relay(peer, stream);
        }
    }
}

impl Shared {
    fn spawn(
        self: &Rc<Self>,
        nodes: Option<(TcpListener, Arc<rustls::ServerConfig>)>,
        clients: Vec<ClientListener>,
    ) {
        if let Some(control) = self.control.clone() {
            let (clock, lease) = (control.clone(), control.clone());
            let (claims, claimer) = (self.claims.clone(), control.clone());
            keep("commands to the switch", async move || control.run().await);
            keep("the switch's clock", async move || {
                clock.refresh_clock().await
            });
            keep("the lease", async move || lease.keep_lease().await);
            keep("claims", async move || claims.run(&claimer).await);
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
        let deferred = self.deferred.clone();
        keep("deferred", async move || deferred.run().await);
        if let Some((listener, config)) = nodes {
            let shared = self.clone();
            keep("accepting nodes", async move || {
                shared.accept_nodes(&listener, &config).await;
            });
        }
        for listener in clients {
            let (shared, mut listener) = (self.clone(), Some(listener));
            keep("accepting clients", async move || {
                if let Some(open) = &listener {
                    shared.accept_clients(open).await;
                }
                listener = None;
                shared
                    .listeners
                    .set(shared.listeners.get().saturating_sub(1));
                shared.listener_closed.notify_waiters();
            });
        }
    }
}
