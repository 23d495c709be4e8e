//! A host: its sockets, its application, its sender of control commands. `service`, `exporting`,
//! `importing` and `outcome` say what these do.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use fastrand::Rng;
use prism_proto::announce::Announcer;
use prism_proto::control::{ControlKey, FlowKey, Ops, Owner, Term};
use prism_proto::import::Remains;
use prism_proto::registry::{OwnedFlow, Registry};
use prism_proto::steering::{Command, CommandId, Steering};

use crate::app::{Incarnation, Plan};
use crate::exporting::Exporting;
use crate::frontends::is_frontend;
use crate::importing::Importing;
use crate::leaving::Leaving;
use crate::scenario::{MS, Mutation, Scenario};
use crate::switch::Outage;
use crate::tcp::{Segment, Tcp};
use crate::world::{Event, World};

pub(crate) const FRONTEND: usize = 0;
pub(crate) const KEY_ID: u32 = 7;
pub(crate) const FIRST_RETRY_NS: u64 = 20 * MS;
pub(crate) const LAST_RETRY_NS: u64 = 640 * MS;
/// A socket that hears nothing for this time is closed.
pub(crate) const IDLE_NS: u64 = 40_000 * MS;
pub(crate) const RELEASE_DEADLINE_NS: u64 = 1000 * MS;

pub(crate) fn control_key() -> ControlKey {
    ControlKey::new([3; 16])
}

pub(crate) fn vip() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1], 80))
}

pub(crate) fn addr_of(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], 80))
}

pub(crate) fn owner_record(host: usize) -> Owner {
    let via = addr_of(host).ip();
    let addr = if is_frontend(host) {
        vip()
    } else {
        addr_of(host)
    };
    Owner { addr, via }
}

/// Something that takes a while on one host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Save(u64),
    Rebuild(u64),
    Restore(u64),
    VerdictDeadline(u64),
    Retransmit(u64),
    Idle(u64),
    Silence(u64),
    EndDeaf(u64),
    Ask(u64),
    Leave,
    Claim(u64),
    Lease,
    Done,
}

/// The waiter for a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    Clock,
    Export(u64),
    Import(u64),
    /// With the epoch at which the flow is to be here.
    Settle(u64, u64),
    Release(u64),
    Remains(u64),
    /// With the epoch of the claim.
    Claim(u64, u64),
    /// With the term that the flow is announced to.
    Announce(Term, OwnedFlow),
}

pub(crate) enum Role {
    Serving,
    Exporting(Exporting),
    Importing(Importing),
    /// Given up; the socket only keeps packets from drawing a reset.
    Deaf {
        hand_off: u64,
        remains: Option<Remains>,
    },
    Closing,
}

pub(crate) struct Connection {
    pub(crate) of: Incarnation,
    pub(crate) flow: FlowKey,
    pub(crate) epoch: u64,
    /// The epoch at which the registry has it, and the term of its release.
    pub(crate) held: Option<u64>,
    pub(crate) released_in: Option<Term>,
    /// The switch has, or had, an entry for it.
    pub(crate) steered: bool,
    /// A claim is under way, or to be made again.
    pub(crate) claims: bool,
    /// A command for it was ever sent, so the flow is to be released.
    pub(crate) commanded: bool,
    pub(crate) socket: Option<Tcp>,
    /// The socket can send.
    pub(crate) live: bool,
    /// The socket was reset, or replaced by one of a newer connection.
    pub(crate) killed: bool,
    /// The switch has yet to confirm that packets pass.
    pub(crate) settling: bool,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) plan: Plan,
    pub(crate) next_request: u16,
    pub(crate) role: Role,
    /// Until the client has answered it.
    pub(crate) syn_ack: Segment,
    pub(crate) timer_armed: bool,
    pub(crate) retry_ns: u64,
    pub(crate) since: u64,
    pub(crate) last_heard: u64,
}

impl Connection {
    pub(crate) fn new(of: Incarnation, flow: FlowKey, epoch: u64, now: u64) -> Self {
        Self {
            of,
            flow,
            epoch,
            held: None,
            released_in: None,
            steered: false,
            claims: false,
            commanded: false,
            socket: None,
            live: false,
            killed: false,
            settling: false,
            input: Vec::new(),
            output: Vec::new(),
            plan: Plan::Decide,
            next_request: 0,
            role: Role::Serving,
            syn_ack: Segment::default(),
            timer_armed: false,
            retry_ns: FIRST_RETRY_NS,
            since: now,
            last_heard: now,
        }
    }

    /// The only term in which the next command of its hand-off may count.
    fn bound_to(&self) -> Option<Term> {
        match &self.role {
            Role::Exporting(exporting) => exporting.bound_to(),
            _ => None,
        }
    }

    /// Whether the socket only keeps packets from drawing a reset.
    pub(crate) fn is_mute(&self) -> bool {
        match &self.role {
            Role::Importing(import) => import.is_silent(),
            Role::Deaf { .. } => true,
            _ => self.is_frozen(),
        }
    }

    fn is_frozen(&self) -> bool {
        matches!(&self.role, Role::Exporting(e) if e.is_frozen())
    }
}

pub(crate) struct Host {
    pub(crate) boot: u32,
    pub(crate) clock_offset_ns: u64,
    pub(crate) outage: Outage,
    pub(crate) steering: Steering,
    pub(crate) timer_at: Option<u64>,
    pub(crate) waiters: BTreeMap<CommandId, Waiter>,
    pub(crate) registry: Registry,
    pub(crate) announcer: Announcer,
    /// The term that its lease has told.
    pub(crate) noticed: Term,
    pub(crate) connections: BTreeMap<u64, Connection>,
    /// The channel to each peer that this host knows of.
    pub(crate) channels: BTreeMap<usize, u64>,
    /// Set if it is about to stop.
    pub(crate) leaving: Option<Leaving>,
}

impl Host {
    pub(crate) fn new(scenario: &Scenario, rng: &mut Rng) -> Self {
        Self {
            boot: 0,
            clock_offset_ns: rng.u64(0..1 << 50),
            outage: World::random_outage(scenario, rng),
            steering: Steering::new(KEY_ID, control_key(), rng.u64(..)),
            timer_at: None,
            waiters: BTreeMap::new(),
            registry: Registry::default(),
            announcer: Announcer::default(),
            noticed: Term::NONE,
            connections: BTreeMap::new(),
            channels: BTreeMap::new(),
            leaving: None,
        }
    }

    pub(crate) fn live_connections(&self) -> impl Iterator<Item = Incarnation> {
        let live = self
            .connections
            .values()
            .filter(|c| c.live && c.socket.is_some() && !c.syn_ack.syn);
        live.map(|c| c.of)
    }

    /// Connections that do not survive this host.
    pub(crate) fn irreplaceable(&self) -> Vec<Incarnation> {
        let at_source = |c: &&Connection| match &c.role {
            Role::Importing(import) => import.owning,
            Role::Deaf { .. } => false,
            _ => true,
        };
        self.connections
            .values()
            .filter(at_source)
            .map(|c| c.of)
            .collect()
    }

    /// A frozen socket takes all packets of its flow, and does nothing with them.
    pub(crate) fn has_frozen(&self, flow: &FlowKey) -> bool {
        let mut all = self.connections.values();
        all.any(|c| c.flow == *flow && c.is_frozen())
    }

    pub(crate) fn with_socket(&self, flow: &FlowKey) -> Option<(u64, &Connection)> {
        let mut all = self.connections.iter();
        let found = all.find(|(_, c)| c.flow == *flow && c.socket.is_some())?;
        Some((*found.0, found.1))
    }
}

impl World {
    /// Learns the switch's clock.
    pub(crate) fn boot(&mut self, host: usize) {
        let flow = FlowKey {
            client: vip(),
            vip: vip(),
        };
        let (ops, owner) = (Ops::QUERY, Owner::NONE);
        let command = Command {
            ops,
            epoch: 0,
            flow,
            owner,
        };
        self.steer(host, command, 100 * MS, Waiter::Clock);
    }

    pub(crate) fn steer(&mut self, host: usize, command: Command, within_ns: u64, waiter: Waiter) {
        let h = &mut self.hosts[host];
        let now = self.now + h.clock_offset_ns;
        let held = h.registry.get(&command.flow).map(|owned| owned.term);
        let stamp = match waiter {
            Waiter::Release(id) => h.connections.get(&id).and_then(|c| c.released_in),
            _ => held,
        };
        let bound = match waiter {
            Waiter::Export(id) => h.connections.get(&id).and_then(Connection::bound_to),
            _ => None,
        };
        let stamp = bound.or(stamp).unwrap_or(h.steering.term());
        let id = h.steering.start_in(stamp, command, now, now + within_ns);
        if bound.is_some() && self.scenario.mutation != Mutation::DoubtOutlivesTerm {
            h.steering.bind(id);
        }
        h.waiters.insert(id, waiter);
        self.run_steering(host);
    }

    pub(crate) fn control_at_host(&mut self, host: usize, boot: u32, bytes: &[u8]) {
        let bytes = &self.as_heard(host, bytes);
        let h = &mut self.hosts[host];
        let now = self.now + h.clock_offset_ns;
        // An answer to the process before the crash is unexpected, but harmless.
        if h.steering.handle_datagram(bytes, now).is_err() {
            self.fail(format!("an answer that cannot be read (boot {boot})"));
        }
        self.on_term(host);
        self.run_steering(host);
    }

    pub(crate) fn run_steering(&mut self, host: usize) {
        let now = self.now + self.hosts[host].clock_offset_ns;
        self.hosts[host].steering.handle_timeout(now);
        while let Some(datagram) = self.hosts[host].steering.poll_transmit(now) {
            self.send_control(host, || {
                let bytes = datagram.to_vec();
                Event::ControlAtSwitch { host, bytes }
            });
        }
        while let Some((id, outcome)) = self.hosts[host].steering.poll_finished() {
            if let Some(waiter) = self.hosts[host].waiters.remove(&id) {
                self.note(host, waiter, outcome);
                self.steered(host, waiter, outcome);
            }
        }
        let h = &mut self.hosts[host];
        let Some(at) = h.steering.next_timeout_ns() else {
            return;
        };
        if h.timer_at.is_none_or(|timer| at < timer) {
            h.timer_at = Some(at);
            let boot = h.boot;
            self.after(at.saturating_sub(now), Event::SteeringTimer { host, boot });
        }
    }

    pub(crate) fn works(&mut self, host: usize, delay_ns: u64, work: Work) {
        let boot = self.hosts[host].boot;
        self.after(delay_ns, Event::Work { host, boot, work });
    }
}
