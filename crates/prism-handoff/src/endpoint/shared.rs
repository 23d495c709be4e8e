//! The state of one worker that its tasks and connections share.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_proto::control::{FlowKey, Owner};
use prism_proto::export::Method;
use prism_proto::fence::Fence;
use prism_sys::tcp::ktls::Offered;
use prism_sys::tcp::{Blank, Freezer, RestoreError};
use tokio::sync::{Notify, mpsc, watch};

use super::config::{EndpointConfig, of_family};
use super::process::Process;
use crate::buffers::{Input, Spare};
use crate::claims::{Claimed, Claims};
use crate::closed_sockets::ClosedSockets;
use crate::connection::{Connection, ConnectionState};
use crate::control::Control;
use crate::counters::Counters;
use crate::deferred::DeferredWork;
use crate::relay_stream::RelayStream;

/// The number of sockets that each worker prepares for imports.
const BLANKS: usize = 8;
/// The local ports of imported connections, below Linux's default ephemeral range.
pub const LOCAL_PORTS: std::ops::Range<u16> = 20_000..30_000;
/// The MSS clamp of a handshake over Ethernet.
const USUAL_MSS_BYTES: u16 = 1460;
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

/// The phases of a worker's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndpointPhase {
    /// It takes connections from clients and from peers.
    #[default]
    Open,
    /// It takes connections from clients only.
    Leaving,
    /// It takes no connections.
    Deaf,
}

/// The state that an endpoint's tasks and connections share.
pub(crate) struct Shared {
    pub(crate) config: EndpointConfig,
    pub(crate) counters: Arc<Counters>,
    pub(crate) process: Arc<Process>,
    pub(crate) control: Option<Rc<Control>>,
    pub(crate) closed_sockets: Option<Rc<ClosedSockets>>,
    pub(crate) claims: Rc<Claims>,
    pub(crate) deferred: Rc<DeferredWork>,
    pub(crate) incoming: mpsc::Sender<Incoming>,
    /// The number of imports that wait for the switch.
    pub(crate) importing: Cell<usize>,
    /// Sockets that are prepared for imports.
    blanks: RefCell<Vec<Blank>>,
    pub(crate) spare: Rc<Spare>,
    /// The MSS clamp of the last import.
    usual_mss_bytes: Cell<u16>,
    pub(super) stopping: Notify,
    pub(crate) phase: watch::Sender<EndpointPhase>,
    /// Whether no listener accepts.
    pub(crate) pauses: watch::Sender<bool>,
    /// The number of open listeners for clients.
    pub(crate) listeners: watch::Sender<usize>,
}

impl Shared {
    /// The state of a new worker, which opens its sockets to the switch.
    pub(super) fn open(
        config: EndpointConfig,
        process: Arc<Process>,
        incoming: mpsc::Sender<Incoming>,
    ) -> io::Result<Rc<Self>> {
        let counters = process.counters.clone();
        let mut control = None;
        let mut closed_sockets = None;
        if let Some(switch) = &config.switch {
            let opened =
                Control::open(&config.addresses, config.placement, switch, process.clone())?;
            closed_sockets = Some(ClosedSockets::new(opened.clone())?);
            control = Some(opened);
            process.prepare(config.carry_window);
            process.runs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Rc::new(Self {
            config,
            counters,
            process,
            control,
            closed_sockets,
            claims: Rc::default(),
            deferred: Rc::default(),
            incoming,
            importing: Cell::default(),
            blanks: RefCell::default(),
            spare: Rc::default(),
            usual_mss_bytes: Cell::new(USUAL_MSS_BYTES),
            stopping: Notify::new(),
            phase: watch::Sender::default(),
            pauses: watch::Sender::default(),
            listeners: watch::Sender::default(),
        }))
    }

    /// Whether clients connect to `address`.
    pub(crate) fn is_service(&self, address: SocketAddr) -> bool {
        let tls = self.config.tls.as_ref();
        self.config.services.contains(&address)
            || tls.is_some_and(|tls| tls.addresses.contains(&address))
    }

    /// Whether the sockets of imported connections have the service's own address.
    pub(crate) fn has_service_address(&self) -> bool {
        self.config.listen || self.config.fence == Fence::Host
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
            via: self.address_for(local.ip()).unwrap_or(local.ip()),
        }
    }

    /// This node's address of the family of `peer`.
    pub(crate) fn address_for(&self, peer: IpAddr) -> Option<IpAddr> {
        of_family(&self.config.addresses, peer)
    }

    /// A prepared socket for an import with `service`.
    pub(crate) fn blank(
        &self,
        service: SocketAddr,
        mss_clamp_bytes: u16,
    ) -> Result<Blank, RestoreError> {
        self.usual_mss_bytes.set(mss_clamp_bytes);
        let mut blanks = self.blanks.borrow_mut();
        match blanks.iter().rposition(|blank| self.fits(blank, service)) {
            Some(at) => Ok(blanks.swap_remove(at)),
            None => self.new_blank(service),
        }
    }

    fn fits(&self, blank: &Blank, service: SocketAddr) -> bool {
        if self.has_service_address() {
            blank.bound() == service
        } else {
            blank.bound().is_ipv4() == service.is_ipv4()
        }
    }

    /// A socket for an import. At a listener, and in host mode, it has the service's own address.
    /// Elsewhere the switch rewrites the address, and each connection gets a random port. It then
    /// meets neither its own remains when it comes back, nor a predecessor in TIME_WAIT.
    fn new_blank(&self, service: SocketAddr) -> Result<Blank, RestoreError> {
        let local = if self.has_service_address() {
            service
        } else {
            let own = self.address_for(service.ip());
            let own = own.ok_or(RestoreError::NotLocal(service))?;
            SocketAddr::new(own, fastrand::u16(LOCAL_PORTS))
        };
        Blank::new(local, self.usual_mss_bytes.get())
    }

    /// Prepares sockets for imports with `service`, while no client waits.
    pub(crate) fn prepare_blanks(&self, service: SocketAddr) {
        let mut blanks = self.blanks.borrow_mut();
        let fitting = blanks.iter().filter(|blank| self.fits(blank, service));
        for _ in fitting.count()..BLANKS {
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
        self.counters.connections_open.read() < self.config.clients.connections()
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
            wrote_at: None,
            moves: 0,
            may_pass: true,
            newcomer: None,
            guest: None,
            is_known: false,
            shared: self.clone(),
            is_counted: false,
            companion: None,
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
            let claimed = self.claims.add(state.flow, here, state.epoch);
            self.hold_in_young_term(&claimed);
            state.claimed = Some(claimed);
        }
    }

    /// Claims a connection that another process of this host had, whatever this node's roles are:
    /// the switch has its flow by that process's run. A confirmed epoch is only raised by one, so
    /// it outbids no connection that has replaced this one.
    pub(crate) fn claim_again(&self, state: &mut ConnectionState, since_ns: u64) {
        let since_ns = if state.confirmed { 0 } else { since_ns };
        let is_steered = state.epoch.is_some() || self.config.listen;
        if self.control.is_some() && is_steered {
            let here = self.owner(state.local);
            let claimed = self
                .claims
                .add_again(state.flow, here, state.epoch, since_ns);
            self.hold_in_young_term(&claimed);
            state.claimed = Some(claimed);
        }
    }

    /// The switch confirms no claim before all connections are announced.
    fn hold_in_young_term(&self, claimed: &Claimed) {
        if let Some(control) = self.control.as_ref().filter(|c| c.flows.is_young()) {
            claimed.hold(control);
        }
    }

    /// Called when a connection's socket was closed here.
    pub(crate) fn on_closed(&self, state: &ConnectionState) {
        if let (Some(epoch), Some(closed_sockets)) = (state.steered_epoch(), &self.closed_sockets) {
            let term = state.forget();
            closed_sockets.watch(self.owner(state.local), state.flow, epoch, term);
        }
    }
}
