//! One worker of a node: it accepts clients, imports and exports connections, and speaks to the
//! switch. All of it belongs to one thread. Workers share a [`Process`].

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

/// The number of sockets that each worker prepares for imports.
const BLANKS: usize = 8;
/// The local ports of imported connections, below Linux's default ephemeral range.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// The MSS clamp of a handshake over Ethernet.
const USUAL_MSS_BYTES: u16 = 1460;
/// The largest number of connections and relay streams that wait for [`Endpoint::next`].
const MAX_WAITING: usize = 1024;
/// The time limit of reads and writes unless the application sets another.
const DEFAULT_IO_TIMEOUT: Duration = Duration::from_secs(60);

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

/// One worker of a node.
pub struct Endpoint {
    incoming: mpsc::Receiver<Incoming>,
    shared: Rc<Shared>,
}

/// The state that an endpoint's tasks and connections share.
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
    /// The number of imports that wait for the switch.
    pub(crate) importing: Cell<usize>,
    /// Sockets that are prepared for imports.
    blanks: RefCell<Vec<Blank>>,
    pub(crate) spare: Rc<Spare>,
    /// The MSS clamp of the last import.
    usual_mss_bytes: Cell<u16>,
    stopping: Notify,
    pub(crate) phase: Cell<Phase>,
    pub(crate) phase_changed: Notify,
    /// The number of open listeners for clients.
    pub(crate) listeners: Cell<usize>,
    pub(crate) listener_closed: Notify,
}

impl Shared {
    /// Whether clients connect to `address`.
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

    /// The freezer, if this host has one.
    pub(crate) fn freezer(&self) -> Option<&Freezer> {
        self.control.as_ref()?;
        self.process.freezer()
    }

    /// The owner record of a socket that is bound to `local`.
    pub(crate) fn owner(&self, local: SocketAddr) -> Owner {
        Owner {
            addr: local,
            via: self.config.address,
        }
    }

    /// A prepared socket for an import with `service`.
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

    /// A socket for an import. At a listener it has the service's own address. Elsewhere the switch
    /// rewrites the address, and each connection gets a random port. It then meets neither its own
    /// remains when it comes back, nor a predecessor in TIME_WAIT.
    fn new_blank(&self, service: SocketAddr) -> Result<Blank, RestoreError> {
        let config = &self.config;
        let local = match config.listen {
            true => service,
            false => SocketAddr::new(config.address, fastrand::u16(PORTS)),
        };
        Blank::new(local, self.usual_mss_bytes.get())
    }

    /// Prepares sockets for imports with `service`, while no client waits.
    pub(crate) fn prepare_blanks(&self, service: SocketAddr) {
        let mut blanks = self.blanks.borrow_mut();
        let fits = |blank: &&Blank| !self.config.listen || blank.bound() == service;
        for _ in blanks.iter().filter(fits).count()..BLANKS {
            match self.new_blank(service) {
                Ok(blank) => blanks.push(blank),
                // The import that needs the socket reports the error.
                Err(_) => return,
            }
        }
    }

    /// The TLS versions and ciphers that the kernel may seal with. Leaving a socket whose kernel
    /// has the key takes the switch, so there must be one.
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

    /// A stand-in for a connection whose socket is elsewhere for a while.
    pub(crate) fn connection_without_socket(self: &Rc<Self>, like: &ConnectionState) -> Connection {
        Connection {
            stream: None,
            state: self.new_state(like.flow.client, like.flow.vip, like.local),
            wait_timer: WaitTimer::default(),
        }
    }

    /// The state of a new connection, which counts as open from now on.
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

    /// Claims a connection that stays at a listener. The switch finds it by the list of frontends
    /// until then.
    pub(crate) fn claim(&self, state: &mut ConnectionState) {
        let is_settled = state.confirmed || state.settling.is_some();
        if self.config.listen && self.control.is_some() && !is_settled {
            let here = self.owner(state.local);
            state.claimed = Some(self.claims.add(state.flow, here, state.epoch));
        }
    }

    /// Called when a connection's socket was closed here.
    pub(crate) fn on_closed(&self, state: &ConnectionState) {
        if let (Some(epoch), Some(closed_sockets)) = (state.steered_epoch(), &self.closed_sockets) {
            closed_sockets.watch(state.local, state.flow, epoch);
        }
    }
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
        let counters = process.counters.clone();
        let (control, closed_sockets) = match &config.switch {
            Some(switch) => {
                let (node, placement) = (config.address, config.placement);
                let control = Control::open(node, placement, switch, counters.clone())?;
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
            clients.push(ClientListener::open(config.service, None)?);
            if let Some(tls) = &config.tls {
                clients.push(ClientListener::open(tls.address, tls.server.clone())?);
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

    /// The next client connection or relay stream; `None` after [`Handle::stop`].
    pub async fn next(&mut self) -> Option<Incoming> {
        tokio::select! {
            biased;
            next = self.incoming.recv() => next,
            () = self.shared.stopping.notified() => None,
        }
    }

    /// A handle for other tasks of this worker.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }
}

/// The operations of a worker, for its tasks.
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

    /// A stream on which `peer` answers requests, and whether it was used before. The peer may have
    /// closed a used one meanwhile.
    ///
    /// # Errors
    /// [`crate::PeerError`] if the peer is unknown or out of reach.
    pub async fn relay(&self, peer: &str) -> Result<(RelayStream, bool), crate::PeerError> {
        // A leaving peer closes its idle streams.
        if self.is_leaving(peer) {
            return Ok((self.fresh_relay(peer).await?, false));
        }
        self.shared.peers.relay(peer).await
    }

    /// [`Self::relay`] with a new stream.
    ///
    /// # Errors
    /// As for [`Self::relay`].
    pub async fn fresh_relay(&self, peer: &str) -> Result<RelayStream, crate::PeerError> {
        self.shared.peers.fresh_relay(peer).await
    }

    /// Replaces the other nodes.
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
