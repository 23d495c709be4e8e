//! The sockets and the application of a host: segments in, requests answered
//! or handed on, segments out, and the release of the flow at the end.

use prism_proto::control::{Ops, Owner};
use prism_proto::fence::Fence;
use prism_proto::steering::{Command, CommandOutcome};

use crate::app::{Incarnation, Plan, Request};
use crate::frontends::is_frontend;
use crate::host::{
    Connection, FIRST_RETRY_NS, FRONTEND, IDLE_NS, LAST_RETRY_NS, RELEASE_DEADLINE_NS, Role,
    Waiter, Work,
};
use crate::scenario::MS;
use crate::tcp::{Fin, Segment, Tcp};
use crate::world::{Event, HOP_NS, Packet, World};

impl World {
    pub(crate) fn packet_at_host(&mut self, host: usize, packet: Packet) {
        let flow = self.clients[packet.of.client].flow;
        let has_socket = self.hosts[host].with_socket(&flow).is_some();
        if !has_socket && self.hosts[host].has_frozen(&flow) {
            return;
        }
        if packet.segment.syn && !self.is_challenged(host, &packet) {
            return self.syn_at_host(host, &packet);
        }
        if packet.segment.syn {
            return;
        }
        let Some((id, connection)) = self.hosts[host].with_socket(&flow) else {
            if !packet.segment.rst && !self.is_stranger(host, &flow) {
                let segment = Segment {
                    seq: packet.segment.ack,
                    rst: true,
                    ..Segment::default()
                };
                self.host_sends(host, packet.of, vec![segment]);
            }
            return;
        };
        if connection.of != packet.of {
            // A connection that is being opened resets a wrong acknowledgement. The program of a
            // frontend among several lets none pass.
            let is_wrong = self.scenario.losses > 0 && connection.syn_ack.syn;
            let passes = !self.scenario.is_spread || !self.is_stranger(host, &flow);
            if is_wrong && passes && !packet.segment.rst {
                let segment = Segment {
                    seq: packet.segment.ack,
                    rst: true,
                    ..Segment::default()
                };
                self.host_sends(host, packet.of, vec![segment]);
            }
            return;
        }
        if !connection.live {
            return self.segment_at_import(host, id, &packet.segment);
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
        let is_accepted = std::mem::take(&mut c.syn_ack).syn;
        if is_accepted {
            c.since = now;
        }
        let flow = c.flow;
        let answered = match socket.receive(segment) {
            Ok(answered) => answered.then(|| socket.ack()),
            Err(what) => return self.fail(format!("{what} ({of:?} at host {host})")),
        };
        self.host_sends(host, of, answered.into_iter().collect());
        if is_accepted {
            // The saved state of an older connection will not be rebuilt.
            let all = self.hosts[host].connections.iter_mut();
            for (_, old) in all.filter(|(other, c)| **other != id && c.flow == flow) {
                old.killed = true;
            }
            self.will_claim(host, id);
        }
        self.pump(host, id);
    }

    /// A socket of the flow challenges a SYN (RFC 5961, section 4). A deaf one does not. One that
    /// is being opened repeats its SYN ACK.
    fn is_challenged(&mut self, host: usize, packet: &Packet) -> bool {
        let flow = self.clients[packet.of.client].flow;
        let Some((_, old)) = self.hosts[host].with_socket(&flow) else {
            return false;
        };
        let is_deaf = match &old.role {
            Role::Importing(import) => import.is_silent(),
            Role::Deaf { .. } => true,
            _ => false,
        };
        let (of, ack) = (old.of, old.socket.as_ref().map(Tcp::ack));
        let answer = match of == packet.of && old.syn_ack.syn {
            true => Some(old.syn_ack.clone()),
            false => ack.filter(|_| !is_deaf),
        };
        self.host_sends(host, of, answer.into_iter().collect());
        true
    }

    /// No socket is there.
    fn syn_at_host(&mut self, host: usize, packet: &Packet) {
        let flow = self.clients[packet.of.client].flow;
        // Only the frontend of a flow without an owner accepts a SYN.
        let is_owned = self.switch.table.entry(&flow).is_some();
        let is_elsewhere = !self.scenario.is_spread && self.frontend_of(&flow) != host;
        if self.scenario.fence == Fence::Host && (is_owned || is_elsewhere) {
            return;
        }
        if !is_frontend(host) {
            let refusal = Segment::refusal(&packet.segment);
            return self.host_sends(host, packet.of, vec![refusal]);
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

    pub(crate) fn host_sends(&mut self, host: usize, of: Incarnation, segments: Vec<Segment>) {
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
            // Without the switch's clock, two connections on the same addresses
            // would have the same epochs: relay until it is known.
            if to != host && c.plan != Plan::Serve && c.epoch > 0 {
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
        (c.socket, c.live, c.role, c.claims) = (None, false, Role::Closing, false);
        if !c.commanded {
            self.hosts[host].connections.remove(&id);
            return;
        }
        let (flow, epoch) = (c.flow, c.held.unwrap_or(0).max(c.epoch));
        let held = self.hosts[host].registry.get(&flow).map(|owned| owned.term);
        self.unregister(host, id);
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        c.epoch = epoch;
        c.released_in = c.released_in.or(held);
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
            CommandOutcome::Answered(answer) if self.is_left(host, id, &answer) => {
                self.close(host, id);
            }
            CommandOutcome::Answered(_) => {
                self.hosts[host].connections.remove(&id);
            }
        }
    }
}
