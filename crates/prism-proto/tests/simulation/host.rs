//! A host: its sockets, its application, its sender of control commands. What
//! it does in a hand-off is in `driver`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use fastrand::Rng;
use prism_proto::control::{ControlKey, FlowKey, Ops, Owner};
use prism_proto::steering::{Command, CommandId, CommandOutcome, Steering};

use crate::app::{Incarnation, Plan, Request};
use crate::driver::{Exporting, Importing};
use crate::scenario::{MS, Scenario};
use crate::tcp::{Fin, Segment, Tcp};
use crate::world::{Event, HOP_NS, Packet, World};

pub(crate) const FRONTEND: usize = 0;
pub(crate) const KEY_ID: u32 = 7;
const FIRST_RETRY_NS: u64 = 20 * MS;
const LAST_RETRY_NS: u64 = 640 * MS;
/// A socket that hears nothing for so long is closed.
const IDLE_NS: u64 = 40_000 * MS;
const RELEASE_DEADLINE_NS: u64 = 1000 * MS;

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
    let addr = if host == FRONTEND {
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
}

/// Who waits for a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    Clock,
    Export(u64),
    Import(u64),
    Settle(u64),
    Release(u64),
}

pub(crate) enum Role {
    Serving,
    Exporting(Exporting),
    Importing(Importing),
    Closing,
}

pub(crate) struct Connection {
    pub(crate) of: Incarnation,
    pub(crate) flow: FlowKey,
    pub(crate) epoch: u64,
    /// The switch has, or had, an entry for it.
    pub(crate) steered: bool,
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
    syn_ack: Segment,
    timer_armed: bool,
    retry_ns: u64,
    last_heard: u64,
}

impl Connection {
    pub(crate) fn new(of: Incarnation, flow: FlowKey, epoch: u64, now: u64) -> Self {
        Self {
            of,
            flow,
            epoch,
            steered: false,
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
            last_heard: now,
        }
    }
}

pub(crate) struct Host {
    pub(crate) boot: u32,
    clock_offset_ns: u64,
    pub(crate) outage: (u64, u64),
    steering: Steering,
    pub(crate) timer_at: Option<u64>,
    waiters: BTreeMap<CommandId, Waiter>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    /// The channel to each peer that this host knows of.
    pub(crate) channels: BTreeMap<usize, u64>,
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
            connections: BTreeMap::new(),
            channels: BTreeMap::new(),
        }
    }

    pub(crate) fn live_connections(&self) -> impl Iterator<Item = Incarnation> {
        let live = self
            .connections
            .values()
            .filter(|c| c.live && c.socket.is_some());
        live.map(|c| c.of)
    }

    /// Connections that do not survive this host.
    pub(crate) fn irreplaceable(&self) -> Vec<Incarnation> {
        let at_source = |c: &&Connection| match &c.role {
            Role::Importing(import) => import.owning,
            _ => true,
        };
        self.connections
            .values()
            .filter(at_source)
            .map(|c| c.of)
            .collect()
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
        match h.steering.start(command, now, now + within_ns) {
            Ok(id) => h.waiters.insert(id, waiter),
            Err(error) => return self.fail(error.to_string()),
        };
        self.run_steering(host);
    }

    pub(crate) fn control_at_host(&mut self, host: usize, boot: u32, bytes: &[u8]) {
        let h = &mut self.hosts[host];
        let now = self.now + h.clock_offset_ns;
        // An answer to the one before the crash is unexpected, not harmful.
        if h.steering.handle_datagram(bytes, now).is_err() {
            self.fail(format!("an answer that cannot be read (boot {boot})"));
        }
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

    pub(crate) fn packet_at_host(&mut self, host: usize, packet: Packet) {
        let flow = self.clients[packet.of.client].flow;
        if packet.segment.syn {
            return self.syn_at_host(host, &packet);
        }
        let Some((id, connection)) = self.hosts[host].with_socket(&flow) else {
            if !packet.segment.rst {
                let segment = Segment {
                    seq: packet.segment.ack,
                    rst: true,
                    ..Segment::default()
                };
                self.host_sends(host, packet.of, vec![segment]);
            }
            return;
        };
        if connection.of != packet.of || !connection.live {
            return;
        }
        if packet.segment.rst {
            return self.kill(host, id);
        }
        self.segment_at_socket(host, id, &packet.segment);
    }

    fn segment_at_socket(&mut self, host: usize, id: u64, segment: &Segment) {
        let now = self.now;
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let Some(socket) = &mut c.socket else { return };
        let of = c.of;
        (c.last_heard, c.retry_ns) = (now, FIRST_RETRY_NS);
        let answered = match socket.receive(segment) {
            Ok(answered) => answered.then(|| socket.ack()),
            Err(what) => return self.fail(format!("{what} ({of:?} at host {host})")),
        };
        self.host_sends(host, of, answered.into_iter().collect());
        self.pump(host, id);
    }

    fn syn_at_host(&mut self, host: usize, packet: &Packet) {
        if host != FRONTEND {
            return;
        }
        let flow = self.clients[packet.of.client].flow;
        if let Some((id, old)) = self.hosts[host].with_socket(&flow) {
            if old.of == packet.of {
                let again = old.syn_ack.clone();
                return self.host_sends(host, packet.of, vec![again]);
            }
            self.kill(host, id);
        }
        // What was saved of an older connection will not be rebuilt.
        for old in self.hosts[host].connections.values_mut() {
            old.killed |= old.flow == flow;
        }
        let (isn, id) = (self.rng.u32(..), self.new_id());
        let h = &self.hosts[host];
        let epoch = h.steering.switch_clock_ns(self.now + h.clock_offset_ns);
        let mut c = Connection::new(packet.of, flow, epoch.unwrap_or(0), self.now);
        c.socket = Some(Tcp::established(isn, packet.segment.seq));
        c.live = true;
        c.syn_ack = Segment {
            seq: isn,
            syn: true,
            ..Segment::default()
        };
        let segment = c.syn_ack.clone();
        self.hosts[host].connections.insert(id, c);
        self.works(host, IDLE_NS, Work::Idle(id));
        self.host_sends(host, packet.of, vec![segment]);
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn host_sends(&mut self, host: usize, of: Incarnation, segments: Vec<Segment>) {
        for segment in segments {
            let packet = Packet { of, segment };
            self.after(HOP_NS, Event::FromHost { host, packet });
        }
    }

    /// The application and the socket go on as far as they can.
    pub(crate) fn pump(&mut self, host: usize, id: u64) {
        self.serve(host, id);
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let (true, Some(socket)) = (c.live, &mut c.socket) else {
            return;
        };
        if matches!(c.role, Role::Serving) {
            socket.write(&mut c.output);
            let idle = c.input.is_empty() && c.output.is_empty();
            if socket.peer_closed && idle && socket.fin == Fin::Open {
                socket.fin = Fin::Queued;
            }
        }
        let segments = socket.transmit();
        let closed = socket.fin == Fin::Acknowledged && socket.all_written_is_sent();
        let arm = socket.is_outstanding() && !c.timer_armed;
        c.timer_armed |= arm;
        let (of, delay) = (c.of, c.retry_ns);
        self.host_sends(host, of, segments);
        if arm {
            self.works(host, delay, Work::Retransmit(id));
        }
        if closed {
            self.close(host, id);
        }
    }

    /// Answers requests until one is another host's.
    fn serve(&mut self, host: usize, id: u64) {
        loop {
            let Some(c) = self.hosts[host].connections.get_mut(&id) else {
                return;
            };
            let (true, Some(socket), Role::Serving) = (c.live, &mut c.socket, &c.role) else {
                return;
            };
            c.input.append(&mut socket.received);
            let (request, len) = match Request::parse(&c.input) {
                Ok(Some(found)) => found,
                Ok(None) => return,
                Err(what) => return self.fail(format!("{what} (at host {host})")),
            };
            let (of, expected, target) = (c.of, c.next_request, usize::from(request.target));
            if request.id != expected {
                return self.fail(format!("I2: request {} for {expected}", request.id));
            }
            let (to, plan) = match c.plan {
                Plan::HandOn(to) => (usize::from(to), Plan::Serve),
                Plan::Serve => (host, Plan::Serve),
                Plan::Decide if request.by_return && host != FRONTEND && target != FRONTEND => {
                    (FRONTEND, Plan::HandOn(request.target))
                }
                Plan::Decide => (target, Plan::Serve),
            };
            if to != host && c.plan != Plan::Serve && !c.settling {
                return self.start_export(host, id, to, plan);
            }
            c.input.drain(..len);
            c.output.extend(request.answer(of));
            c.next_request += 1;
            c.plan = Plan::Decide;
            if !self.served.insert((of, request.id)) {
                return self.fail(format!("I2: request {} of {of:?} served twice", request.id));
            }
        }
    }

    pub(crate) fn retransmit(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        c.timer_armed = false;
        let (true, Some(socket)) = (c.live, &c.socket) else {
            return;
        };
        let (of, segments) = (c.of, socket.retransmit());
        c.retry_ns = (c.retry_ns * 2).min(LAST_RETRY_NS);
        self.host_sends(host, of, segments);
        self.pump(host, id);
    }

    pub(crate) fn idle(&mut self, host: usize, id: u64) {
        let now = self.now;
        let Some(c) = self.hosts[host].connections.get(&id) else {
            return;
        };
        let left = (c.last_heard + IDLE_NS).saturating_sub(now);
        match (left, &c.role) {
            (0, Role::Serving) => self.kill(host, id),
            (0, Role::Closing) => {}
            _ => self.works(host, left.max(MS), Work::Idle(id)),
        }
    }

    /// The socket is gone, whatever is under way.
    pub(crate) fn kill(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        (c.socket, c.live, c.killed) = (None, false, true);
        if matches!(c.role, Role::Serving) {
            self.close(host, id);
        }
    }

    /// No packet can leave that socket any more: the flow is released.
    pub(crate) fn close(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        (c.socket, c.live, c.role) = (None, false, Role::Closing);
        if !c.commanded {
            self.hosts[host].connections.remove(&id);
            return;
        }
        let command = Command {
            ops: Ops::RELEASE,
            epoch: c.epoch + 1,
            flow: c.flow,
            owner: Owner::NONE,
        };
        self.steer(host, command, RELEASE_DEADLINE_NS, Waiter::Release(id));
    }

    pub(crate) fn released(&mut self, host: usize, id: u64, outcome: CommandOutcome) {
        match outcome {
            CommandOutcome::Unanswered => self.close(host, id),
            CommandOutcome::Answered(_) => {
                self.hosts[host].connections.remove(&id);
            }
        }
    }
}
