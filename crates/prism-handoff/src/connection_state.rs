//! All of a client's connection but its socket: what was read and not consumed, what is to be
//! written, the TLS session, and the flow at the switch.
//!
//! Not here: reads and writes that wait for the socket (`connection` and the modules above it).

use std::any::Any;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_proto::Behaviour;
use prism_proto::control::{FlowKey, Owner, Term};
use prism_proto::facts::ClientFacts;
use prism_proto::steering::CommandOutcome;
use prism_sys::tcp::{Restored, ResumeError};

use crate::buffers::{Input, MIN_READ_BYTES, read_once};
use crate::claims::Claimed;
use crate::client_limits::counted_as;
use crate::control::Control;
use crate::guests::Guest;
use crate::newcomers::{Leave, Newcomer};
use crate::records::{OpenedRecords, Records};
use crate::settling::Settling;
use crate::stream::Stream;
use crate::worker::Worker;

/// The largest size of a read. The size doubles while reads fill it.
const MAX_READ_BYTES: usize = 256 << 10;
/// The time limit of reads and writes unless the application sets another.
const DEFAULT_IO_TIMEOUT: Duration = Duration::from_secs(60);

/// A value that an application keeps beside a connection while this is in the process.
pub type Companion = Option<Box<dyn Any>>;

/// All of a connection but its socket.
pub(crate) struct ConnectionState {
    pub(crate) input: Input,
    /// Bytes that an earlier owner has written and no kernel has taken.
    pub(crate) output: Vec<u8>,
    /// The TLS session, if there is one. `output` then holds records.
    pub(crate) tls: Option<Records>,
    pub(crate) flow: FlowKey,
    /// The client, as a proxy has named it that is the other side of the flow.
    pub(crate) proxied: Option<ClientFacts>,
    pub(crate) local: SocketAddr,
    /// The flow's epoch at the switch, after the first command for it.
    pub(crate) epoch: Option<u64>,
    /// The switch has confirmed a command for this connection. Before that, the switch's entry for
    /// its addresses may be a predecessor's.
    pub(crate) confirmed: bool,
    /// The claim to a connection that was accepted here, until it is handed off.
    pub(crate) claimed: Option<Rc<Claimed>>,
    /// The options of the socket, if they are known.
    pub(crate) behaviour: Option<Behaviour>,
    /// When dropped, it ends the task that asks the switch to let packets pass. From then on the
    /// connection's own commands decide.
    pub(crate) settling: Option<Settling>,
    pub(crate) origin: String,
    pub(crate) context: Vec<u8>,
    pub(crate) companion: Companion,
    pub(crate) io_timeout: Duration,
    /// The size of the next read; 0 before the first one.
    pub(crate) read_bytes: usize,
    /// When the first byte since the last read was written.
    pub(crate) wrote_at: Option<Instant>,
    /// Bytes that have left of the present file or stream.
    pub(crate) partial_bytes: u64,
    /// The number of moves since input was last consumed.
    pub(crate) moves: u8,
    /// Whether another process of this host may take it. Default yes.
    pub(crate) may_pass: bool,
    /// `Some` until a request on it has been admitted.
    pub(crate) newcomer: Option<Newcomer>,
    /// `Some` if a request of an unknown caller has been admitted.
    pub(crate) guest: Option<Guest>,
    /// Whether a request on it was authenticated.
    pub(crate) is_known: bool,
    /// Whether it counts among the connections that are open here.
    pub(crate) is_counted: bool,
    pub(crate) worker: Rc<Worker>,
}

impl ConnectionState {
    /// The state of a new connection, which counts as open from now on.
    pub(crate) fn new(
        worker: &Rc<Worker>,
        client: SocketAddr,
        service: SocketAddr,
        local: SocketAddr,
    ) -> Box<Self> {
        let mut state = Box::new(Self {
            input: Input::default(),
            output: Vec::new(),
            tls: None,
            flow: FlowKey {
                client,
                vip: service,
            },
            proxied: None,
            local,
            epoch: None,
            confirmed: false,
            settling: None,
            claimed: None,
            behaviour: None,
            origin: worker.config.name.clone(),
            context: Vec::new(),
            io_timeout: DEFAULT_IO_TIMEOUT,
            read_bytes: 0,
            wrote_at: None,
            partial_bytes: 0,
            moves: 0,
            may_pass: true,
            newcomer: None,
            guest: None,
            is_known: false,
            worker: worker.clone(),
            is_counted: false,
            companion: None,
        });
        state.count(true);
        state
    }

    /// The address that the connection counts for in bounds for one address.
    pub(crate) fn counted_as(&self) -> IpAddr {
        let client = self
            .proxied
            .map_or(self.flow.client, |client| client.address);
        counted_as(client.ip())
    }

    /// The record of this node as the flow's owner.
    pub(crate) fn owner(&self) -> Owner {
        self.worker.config.owner(self.local)
    }

    /// Claims a connection that stays at a listener. The switch finds it by the list of frontends
    /// until then.
    pub(crate) fn claim(&mut self) {
        let worker = &self.worker;
        let is_settled = self.confirmed || self.settling.is_some();
        if worker.config.listen && worker.control.is_some() && !is_settled {
            let claimed = worker.claims.add(self.flow, self.owner(), self.epoch);
            self.hold_in_young_term(&claimed);
            self.claimed = Some(claimed);
        }
    }

    /// Claims a connection that another process of this host had, whatever this node's roles are:
    /// the switch has its flow by that process's run. A confirmed epoch is only raised by one, so
    /// it outbids no connection that has replaced this one.
    pub(crate) fn claim_again(&mut self, since_ns: u64) {
        let worker = &self.worker;
        let since_ns = if self.confirmed { 0 } else { since_ns };
        let is_steered = self.epoch.is_some() || worker.config.listen;
        if worker.control.is_some() && is_steered {
            let here = self.owner();
            let claimed = (worker.claims).add_again(self.flow, here, self.epoch, since_ns);
            self.hold_in_young_term(&claimed);
            self.claimed = Some(claimed);
        }
    }

    /// The switch confirms no claim before all connections are announced.
    fn hold_in_young_term(&self, claimed: &Claimed) {
        let control = self.worker.control.as_ref();
        if let Some(control) = control.filter(|control| control.flows.is_young()) {
            claimed.hold(control);
        }
    }

    /// Called when the socket was closed here. Its flow is released when no packet can follow.
    pub(crate) fn on_closed(&self) {
        let closed_sockets = self.worker.closed_sockets.as_ref();
        if let (Some(epoch), Some(closed_sockets)) = (self.steered_epoch(), closed_sockets) {
            let term = self.forget();
            closed_sockets.watch(self.owner(), self.flow, epoch, term);
        }
    }

    /// The time limit of the next read or write.
    pub(crate) fn wait_time(&self) -> Duration {
        let left = self.newcomer.as_ref().map(Newcomer::time_left);
        left.map_or(self.io_timeout, |left| left.min(self.io_timeout))
    }

    /// The flow's epoch at the switch, if a command for it was sent.
    pub(crate) fn steered_epoch(&self) -> Option<u64> {
        let claimed = self.claimed.as_ref().and_then(|claimed| claimed.epoch());
        let settling = self.settling.as_ref().map(Settling::epoch);
        let epoch = claimed.map_or(self.epoch, |(epoch, _)| Some(epoch));
        let epoch = epoch.max(settling)?;
        let control = self.worker.control.as_ref();
        Some(control.map_or(epoch, |control| control.flows.raised(&self.flow, epoch)))
    }

    /// Notes the outcome of a command for this connection.
    pub(crate) fn note(&mut self, control: &Control, outcome: CommandOutcome, here: Owner) {
        if let Some(epoch) = control.note(outcome, here) {
            self.epoch = Some(epoch);
        }
    }

    /// The connection leaves this worker. Returns the last term in which the switch confirmed the
    /// flow.
    pub(crate) fn forget(&self) -> Option<Term> {
        let control = self.worker.control.as_ref()?;
        control.flows.forget(&self.flow, self.steered_epoch()?)
    }

    /// Makes a restored socket live. The kernel's bytes go between those that were read or written
    /// and those that will be.
    pub(crate) fn go_live(&mut self, restored: Restored) -> Result<Stream, ResumeError> {
        let live = restored.go_live()?;
        from_socket(&mut self.tls, &mut self.input)
            .bytes_mut()
            .extend_from_slice(&live.input);
        self.output.splice(..0, live.output);
        Ok(live.fd.into())
    }

    /// Ends the claim and the settling, and keeps the epoch that they have reached.
    pub(crate) fn end_claim(&mut self) {
        self.epoch = self.steered_epoch();
        self.settling = None;
        if let Some((_, is_held)) = self.claimed.take().and_then(|claimed| claimed.epoch()) {
            self.confirmed = is_held;
        }
    }

    /// Set when it has to give way.
    pub(crate) fn leave(&self) -> Option<&Arc<Leave>> {
        let newcomer = self.newcomer.as_ref().map(Newcomer::leave);
        newcomer.or_else(|| self.guest.as_ref().map(Guest::leave))
    }

    /// Counts it as open here, or as not open here.
    pub(crate) fn count(&mut self, is_here: bool) {
        let open = &self.worker.counters.connections_open;
        match (self.is_counted, is_here) {
            (false, true) => open.add_one(),
            (true, false) => open.sub_one(),
            _ => {}
        }
        self.is_counted = is_here;
    }

    /// Reads once. Also returns whether the socket is empty now.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> io::Result<(usize, bool)> {
        let room = self.read_bytes.max(MIN_READ_BYTES);
        let bytes = from_socket(&mut self.tls, &mut self.input).bytes_mut();
        self.worker.spare.lend(bytes);
        bytes.reserve(room);
        let (n, is_empty) = read_once(socket, bytes)?;
        let filled = n >= room;
        self.read_bytes = if filled { room * 2 } else { room }.min(MAX_READ_BYTES);
        Ok((n, is_empty))
    }

    /// Gives back an empty buffer of at most `most` bytes.
    pub(crate) fn give_back(&mut self, most: usize) {
        let bytes = from_socket(&mut self.tls, &mut self.input).bytes_mut();
        if bytes.is_empty() && bytes.capacity() <= most {
            self.worker.spare.take_back(bytes);
        }
    }

    /// Gives back the buffer at the connection's end.
    pub(crate) fn give_up_input(&mut self) {
        let unread = self.input.unread().len();
        self.input.consume(unread);
        self.give_back(usize::MAX);
    }

    /// Opens the records that were received.
    pub(crate) fn open_records(&mut self) -> io::Result<OpenedRecords> {
        let Some(records) = &mut self.tls else {
            return Ok(OpenedRecords::Data(0));
        };
        let input = self.input.bytes_mut();
        let enough = input.len() + MAX_READ_BYTES;
        let found = records.open(input, enough, &mut self.output)?;
        records.seal_control(&mut self.output)?;
        Ok(found)
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.forget();
        self.count(false);
        self.give_up_input();
    }
}

/// The buffer for the socket's bytes.
pub(crate) fn from_socket<'s>(tls: &'s mut Option<Records>, input: &'s mut Input) -> &'s mut Input {
    match tls {
        Some(records) => &mut records.sealed,
        None => input,
    }
}
