//! A client: opens connections on one address and port, one after another,
//! sends numbered requests, checks every byte of the answers.

use fastrand::Rng;
use prism_proto::control::FlowKey;
use prism_proto::import::DEAF_NS;

use crate::app::{Incarnation, Request};
use crate::host::vip;
use crate::scenario::MS;
use crate::tcp::{Fin, Segment, Tcp};
use crate::world::{Event, HOP_NS, Packet, World};

const FIRST_RETRY_NS: u64 = 20 * MS;
const LAST_RETRY_NS: u64 = 640 * MS;
/// More than twice the longest hand-off.
const PATIENCE_NS: u64 = 30_000 * MS;
/// A deaf socket at the frontend may hold the ports of a new connection as long as it
/// is there.
const OPENING_PATIENCE_NS: u64 = DEAF_NS + LAST_RETRY_NS + PATIENCE_NS;

/// The number of a connection that no client has.
const FORGED: u32 = u32::MAX;

enum State {
    Idle,
    Opening { isn: u32 },
    Open(Tcp),
    Finished(Tcp),
}

pub(crate) struct Client {
    pub(crate) flow: FlowKey,
    pub(crate) of: Incarnation,
    connections_left: u32,
    requests_left: u16,
    next_request: u16,
    /// Requests that may be under way at once.
    pipeline: usize,
    /// Half-close behind the last request, or close behind the last answer.
    half_closes: bool,
    /// The end of each awaited answer in the expected stream.
    ends: Vec<usize>,
    expected: Vec<u8>,
    got: usize,
    unwritten: Vec<u8>,
    state: State,
    retry_ns: u64,
    last_progress: u64,
    /// It sends no request before this time.
    pause_until: u64,
}

impl Client {
    pub(crate) fn new(client: usize, rng: &mut Rng) -> Self {
        let port = 50_000 + client as u16;
        let addr = std::net::SocketAddr::from(([192, 0, 2, 1], port));
        Self {
            flow: FlowKey {
                client: addr,
                vip: vip(),
            },
            of: Incarnation { client, number: 0 },
            connections_left: rng.u32(1..4),
            requests_left: 0,
            next_request: 0,
            pipeline: 1,
            half_closes: false,
            ends: Vec::new(),
            expected: Vec::new(),
            got: 0,
            unwritten: Vec::new(),
            state: State::Idle,
            retry_ns: FIRST_RETRY_NS,
            last_progress: 0,
            pause_until: 0,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.connections_left == 0 && matches!(self.state, State::Idle | State::Finished(_))
    }

    /// The connection was closed or given up by this client.
    pub(crate) fn is_over(&self, of: Incarnation) -> bool {
        of != self.of || matches!(self.state, State::Idle | State::Finished(_))
    }

    fn tcp(&mut self) -> Option<&mut Tcp> {
        match &mut self.state {
            State::Open(tcp) | State::Finished(tcp) => Some(tcp),
            _ => None,
        }
    }
}

impl World {
    pub(crate) fn client_opens(&mut self, client: usize) {
        let aborts = self.scenario.aborts && self.rng.u8(0..3) == 0;
        let (isn, pipeline, requests) =
            (self.rng.u32(..), self.rng.usize(1..4), self.rng.u16(1..9));
        let half_closes = self.rng.bool();
        let abort_after = self.rng.u64(0..60 * MS);
        let now = self.now;
        let c = &mut self.clients[client];
        if c.connections_left == 0 {
            return;
        }
        c.connections_left -= 1;
        c.of.number += 1;
        let of = c.of;
        *c = Client {
            requests_left: requests,
            pipeline,
            half_closes,
            state: State::Opening { isn },
            last_progress: now,
            of,
            connections_left: c.connections_left,
            ..Client::new(client, &mut Rng::with_seed(0))
        };
        if aborts && c.connections_left > 0 {
            self.after(abort_after, Event::ClientAborts { client, of });
        }
        self.log(|| format!("client {client} opens {of:?}"));
        self.client_timer(client, of);
    }

    /// Gives the connection up, with a RST or silently, and opens another.
    pub(crate) fn client_aborts(&mut self, client: usize, of: Incarnation) {
        if self.clients[client].is_over(of) {
            return;
        }
        self.log(|| format!("client {client} aborts {of:?}"));
        if self.rng.bool()
            && let Some(tcp) = self.clients[client].tcp()
        {
            let segment = Segment {
                rst: true,
                ..tcp.ack()
            };
            self.client_sends(client, vec![segment]);
        }
        self.client_ends(client);
    }

    fn client_ends(&mut self, client: usize) {
        self.clients[client].state = State::Idle;
        let soon = self.rng.u64(0..5 * MS);
        let delay = if self.rng.bool() { 0 } else { soon };
        self.after(delay, Event::ClientOpens { client });
    }

    fn client_sends(&mut self, client: usize, segments: Vec<Segment>) {
        let of = self.clients[client].of;
        for segment in segments {
            if !self.chance(self.scenario.data_loss) {
                self.after(HOP_NS, Event::FromClient(Packet { of, segment }));
            }
        }
    }

    /// Retransmits, and gives up after too long a wait.
    pub(crate) fn client_timer(&mut self, client: usize, of: Incarnation) {
        let now = self.now;
        if self.clients[client].is_over(of) {
            return;
        }
        let patience_ns = match self.clients[client].state {
            State::Opening { .. } => OPENING_PATIENCE_NS,
            _ => PATIENCE_NS,
        };
        if now - self.clients[client].last_progress > patience_ns + self.scenario.young_ns() {
            if !self.excused.contains(&of) {
                return self.fail(format!("I5: {of:?} stands still"));
            }
            return self.client_ends(client);
        }
        let c = &mut self.clients[client];
        let segments = match &c.state {
            State::Opening { isn } => vec![Segment {
                seq: *isn,
                syn: true,
                ..Segment::default()
            }],
            State::Open(tcp) => tcp.retransmit(),
            _ => return,
        };
        let delay = c.retry_ns;
        c.retry_ns = (c.retry_ns * 2).min(LAST_RETRY_NS);
        self.client_sends(client, segments);
        self.after(delay, Event::ClientTimer { client, of });
    }

    pub(crate) fn packet_at_client(&mut self, packet: Packet) {
        let Packet { of, segment } = packet;
        let (client, now) = (of.client, self.now);
        if of != self.clients[client].of {
            return self.stranger_at_client(of, &segment);
        }
        if segment.rst {
            return self.client_was_reset(client);
        }
        let c = &mut self.clients[client];
        if let State::Opening { isn } = c.state {
            if segment.syn {
                c.state = State::Open(Tcp::established(isn, segment.seq));
                c.last_progress = now;
                let ack = c.tcp().map(|tcp| tcp.ack());
                self.client_sends(client, ack.into_iter().collect());
                self.client_goes_on(client);
            }
            return;
        }
        let Some(tcp) = c.tcp() else { return };
        if segment.syn {
            let ack = tcp.ack();
            return self.client_sends(client, vec![ack]);
        }
        let answered = match tcp.receive(&segment) {
            Ok(answers) => answers.then(|| tcp.ack()),
            Err(what) => return self.fail(format!("{what} (at client)")),
        };
        self.client_sends(client, answered.into_iter().collect());
        self.client_checks(client);
        self.client_goes_on(client);
    }

    /// Handles a packet of a connection that this client does not know, or no longer knows. If it
    /// opens another one on the same ports, it resets that one (RFC 9293, 3.10.7.3).
    fn stranger_at_client(&mut self, of: Incarnation, segment: &Segment) {
        let c = &mut self.clients[of.client];
        if self.scenario.losses > 0
            && segment.syn
            && let State::Open(tcp) = &c.state
        {
            // The client challenges the answer to a forged SYN (RFC 5961, section 4).
            let ack = tcp.ack();
            return self.client_sends(of.client, vec![ack]);
        }
        let is_opening = matches!(self.clients[of.client].state, State::Opening { .. });
        if !is_opening || segment.rst || segment.syn {
            return;
        }
        let segment = Segment {
            seq: segment.ack,
            rst: true,
            ..Segment::default()
        };
        if !self.chance(self.scenario.data_loss) {
            self.after(HOP_NS, Event::FromClient(Packet { of, segment }));
        }
    }

    /// A forged SYN arrives with this client's address and port.
    pub(crate) fn forged_syn(&mut self, client: usize) {
        let (flow, of) = (self.clients[client].flow, self.clients[client].of);
        let has_flow = match self.scenario.forges_after_release {
            true => self.switch.table.is_known(&flow),
            false => self.switch.table.entry(&flow).is_some(),
        };
        let is_unknown = !has_flow && !self.is_young();
        if self.clients[client].is_over(of) || is_unknown {
            return;
        }
        let of = Incarnation {
            number: FORGED,
            ..of
        };
        let segment = Segment {
            seq: self.rng.u32(..),
            syn: true,
            ..Segment::default()
        };
        self.log(|| format!("a SYN of client {client} is forged"));
        self.after(HOP_NS, Event::FromClient(Packet { of, segment }));
    }

    fn client_was_reset(&mut self, client: usize) {
        let of = self.clients[client].of;
        if self.clients[client].is_over(of) {
            return;
        }
        self.stats.resets += 1;
        if !self.excused.contains(&of) {
            return self.fail(format!("I3: a RST reached the client of {of:?}"));
        }
        self.client_ends(client);
    }

    /// I2 and I3: exactly the expected bytes, and no end before the last.
    fn client_checks(&mut self, client: usize) {
        let now = self.now;
        let c = &mut self.clients[client];
        let Some(tcp) = c.tcp() else { return };
        let (closed, my_fin) = (tcp.peer_closed, tcp.fin);
        let bytes = std::mem::take(&mut tcp.received);
        let wanted = c.expected.get(c.got..c.got + bytes.len());
        if !bytes.is_empty() && wanted != Some(&bytes) {
            let of = c.of;
            return self.fail(format!("I2: {of:?} got a wrong answer"));
        }
        c.got += bytes.len();
        if !bytes.is_empty() {
            (c.last_progress, c.retry_ns) = (now, FIRST_RETRY_NS);
        }
        let got = c.got;
        c.ends.retain(|end| *end > got);
        let complete = c.got == c.expected.len() && c.requests_left == 0;
        if closed && !(complete && my_fin != Fin::Open) {
            self.fail("I3: a FIN that the application did not mean");
        }
    }

    pub(crate) fn client_wakes(&mut self, client: usize, of: Incarnation) {
        if self.clients[client].of == of {
            self.client_goes_on(client);
        }
    }

    /// Whether the client pauses before its next request. It has all answers by then.
    fn client_pauses(&mut self, client: usize) -> bool {
        let (now, max_ns) = (self.now, self.scenario.max_pause_ns);
        let c = &mut self.clients[client];
        if max_ns == 0 || !c.ends.is_empty() || c.requests_left == 0 {
            return false;
        }
        if c.pause_until == 0 {
            let pause = self.rng.u64(0..max_ns);
            c.pause_until = now + pause;
            let of = c.of;
            self.after(pause, Event::ClientGoesOn { client, of });
        }
        let c = &mut self.clients[client];
        let pauses = now < c.pause_until;
        if !pauses {
            (c.pause_until, c.last_progress) = (0, now);
        }
        pauses
    }

    /// Sends requests, writes and closes, as far as it can now.
    fn client_goes_on(&mut self, client: usize) {
        if self.client_pauses(client) {
            return;
        }
        let hosts = self.hosts.len() as u8;
        while self.clients[client].requests_left > 0
            && self.clients[client].ends.len() < self.clients[client].pipeline
        {
            let request = Request {
                id: self.clients[client].next_request,
                target: self.rng.u8(0..hosts),
                by_return: self.rng.bool(),
                answer_bytes: self.rng.u8(..),
                padding_bytes: self.rng.u8(0..80),
            };
            let c = &mut self.clients[client];
            c.requests_left -= 1;
            c.next_request += 1;
            c.unwritten.extend(request.encode());
            c.expected.extend(request.answer(c.of));
            c.ends.push(c.expected.len());
            self.stats.requests += 1;
        }
        let c = &mut self.clients[client];
        let State::Open(tcp) = &mut c.state else {
            return;
        };
        tcp.write(&mut c.unwritten);
        let may_close = c.half_closes || c.ends.is_empty();
        if c.requests_left == 0 && c.unwritten.is_empty() && may_close && tcp.fin == Fin::Open {
            tcp.fin = Fin::Queued;
        }
        let segments = tcp.transmit();
        let over = tcp.fin == Fin::Acknowledged && tcp.peer_closed;
        self.client_sends(client, segments);
        if over {
            self.client_closed(client);
        }
    }

    fn client_closed(&mut self, client: usize) {
        let c = &mut self.clients[client];
        if let State::Open(tcp) = std::mem::replace(&mut c.state, State::Idle) {
            c.state = State::Finished(tcp);
        }
        let of = c.of;
        self.log(|| format!("client {client} has closed {of:?}"));
        let delay = self.rng.u64(0..20 * MS);
        self.after(delay, Event::ClientOpens { client });
    }
}
