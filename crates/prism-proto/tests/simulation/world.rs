//! Virtual time, the event queue, faults, and the checks made at every step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use fastrand::Rng;
use prism_proto::control::{FlowKey, Term};
use prism_proto::fence::Fence;
use prism_proto::term::SwitchOfPair;

use crate::app::Incarnation;
use crate::client::Client;
use crate::host::{Host, Work};
use crate::scenario::{MS, Scenario};
use crate::switch::Switch;
use crate::tcp::Segment;
use crate::terms::TermEvent;

/// One hop, in either direction. Data paths keep order.
pub(crate) const HOP_NS: u64 = 10_000;
/// A run that is not over by then hangs.
const END_NS: u64 = 600_000 * MS;

/// A segment between a client and the service.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// For the checks, and to stand for the window check of a real receiver.
    pub(crate) of: Incarnation,
    pub(crate) segment: Segment,
}

#[derive(Debug)]
pub(crate) enum Event {
    ControlAtSwitch {
        host: usize,
        bytes: Vec<u8>,
    },
    ControlAtHost {
        host: usize,
        boot: u32,
        bytes: Vec<u8>,
    },
    FromClient(Packet),
    FromHost {
        host: usize,
        packet: Packet,
    },
    AtHost {
        host: usize,
        packet: Packet,
    },
    AtClient(Packet),
    Frame {
        from: usize,
        to: usize,
        generation: u64,
        bytes: Vec<u8>,
    },
    ChannelGone {
        host: usize,
        peer: usize,
        generation: u64,
    },
    SteeringTimer {
        host: usize,
        boot: u32,
    },
    Work {
        host: usize,
        boot: u32,
        work: Work,
    },
    ClientTimer {
        client: usize,
        of: Incarnation,
    },
    ClientOpens {
        client: usize,
    },
    ClientAborts {
        client: usize,
        of: Incarnation,
    },
    ForgedSyn {
        client: usize,
    },
    ClientGoesOn {
        client: usize,
        of: Incarnation,
    },
    FrontendsChange,
    BreakChannel,
    Crash,
    Leave,
    Term(TermEvent),
}

/// The events of a run, with which a suite shows that it reached its corner cases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) outcomes: BTreeMap<String, u64>,
    pub(crate) requests: u64,
    pub(crate) resets: u64,
    pub(crate) longest_hand_off_ns: u64,
    /// Targets that the switch did not answer.
    pub(crate) given_up: u64,
    /// Terms that have begun, and the ones of them whose nodes were all done in time.
    pub(crate) terms: u64,
    pub(crate) settled: u64,
    /// Packets that a young switch dropped.
    pub(crate) dropped: u64,
}

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    pub(crate) next_id: u64,
    pub(crate) switch: Switch,
    pub(crate) standby: Switch,
    /// No switch works before this time.
    pub(crate) down_until: u64,
    pub(crate) losses_left: usize,
    /// The greatest term that a switch has made.
    pub(crate) last_term: Term,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    /// Generation of the channel between two hosts; a break begins a new one.
    pub(crate) channels: BTreeMap<(usize, usize), u64>,
    pub(crate) served: BTreeSet<(Incarnation, u16)>,
    /// Connections that a crash may have cost.
    pub(crate) excused: BTreeSet<Incarnation>,
    /// The decisions of arbiters: a host owns a flow at an epoch.
    pub(crate) rights: BTreeSet<(usize, FlowKey, u64)>,
    pub(crate) violation: Option<String>,
    pub(crate) tracing: bool,
    pub(crate) stats: Stats,
}

impl World {
    pub(crate) fn new(scenario: Scenario, seed: u64, tracing: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let hosts = (0..scenario.hosts).map(|_| Host::new(&scenario, &mut rng));
        let hosts = hosts.collect();
        let clients = (0..scenario.clients).map(|i| Client::new(i, &mut rng));
        let clients = clients.collect();
        let mut rng_of_clocks = Rng::with_seed(seed ^ 0xc10c);
        let mut world = Self {
            scenario,
            rng,
            now: MS,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_id: 0,
            switch: Switch::new(&scenario, SwitchOfPair::First, &mut rng_of_clocks),
            standby: Switch::new(&scenario, SwitchOfPair::Second, &mut rng_of_clocks),
            down_until: 0,
            losses_left: scenario.losses,
            last_term: Term::NONE,
            hosts,
            clients,
            channels: BTreeMap::new(),
            served: BTreeSet::new(),
            excused: BTreeSet::new(),
            rights: BTreeSet::new(),
            violation: None,
            tracing,
            stats: Stats::default(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.schedule_losses();
        for host in 0..self.hosts.len() {
            self.boot(host);
        }
        for client in 0..self.clients.len() {
            let delay = self.rng.u64(0..20 * MS);
            self.after(delay, Event::ClientOpens { client });
        }
        self.schedule_changes();
        for client in 0..self.clients.len() {
            for _ in 0..self.scenario.forged_syns {
                let delay = self.rng.u64(0..300 * MS);
                self.after(delay, Event::ForgedSyn { client });
            }
        }
        for _ in 0..self.scenario.channel_breaks {
            let delay = self.rng.u64(0..300 * MS);
            self.after(delay, Event::BreakChannel);
        }
        for _ in 0..self.scenario.crashes {
            let delay = self.rng.u64(0..300 * MS);
            self.after(delay, Event::Crash);
        }
        for _ in 0..self.scenario.leaves {
            let delay = self.rng.u64(0..300 * MS);
            self.after(delay, Event::Leave);
        }
    }

    pub(crate) fn after(&mut self, delay_ns: u64, event: Event) {
        self.queue
            .push(Reverse((self.now + delay_ns, self.next_event)));
        self.events.insert(self.next_event, event);
        self.next_event += 1;
    }

    pub(crate) fn chance(&mut self, rate: f64) -> bool {
        rate > 0.0 && self.rng.f64() < rate
    }

    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.log(|| what.clone());
        self.violation.get_or_insert(what);
    }

    pub(crate) fn log(&self, line: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>12.3} ms  {}", self.now as f64 / MS as f64, line());
        }
    }

    /// Runs to the end, or to the first violation.
    pub(crate) fn run(mut self) -> Result<Stats, String> {
        while let Some(Reverse((at, id))) = self.queue.pop() {
            self.now = at;
            if at > END_NS {
                self.fail("I5: the run does not end");
            }
            if let Some(event) = self.events.remove(&id) {
                self.dispatch(event);
                self.check_one_owner();
            }
            if let Some(violation) = self.violation {
                return Err(violation);
            }
        }
        self.check_end();
        match self.violation {
            Some(violation) => Err(violation),
            None => Ok(self.stats),
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::ControlAtSwitch { host, bytes } => self.control_at_switch(host, &bytes),
            Event::ControlAtHost { host, boot, bytes } => self.control_at_host(host, boot, &bytes),
            Event::FromClient(packet) => self.packet_from_client(packet),
            Event::FromHost { host, packet } => self.packet_from_host(host, packet),
            Event::AtHost { host, packet } => self.packet_at_host(host, packet),
            Event::AtClient(packet) => self.packet_at_client(packet),
            Event::Frame {
                from,
                to,
                generation,
                bytes,
            } => {
                self.frame_at_host(from, to, generation, &bytes);
            }
            Event::ChannelGone {
                host,
                peer,
                generation,
            } => {
                self.channel_gone(host, peer, generation);
            }
            Event::SteeringTimer { host, boot } => {
                if self.hosts[host].boot == boot {
                    self.hosts[host].timer_at = None;
                    self.run_steering(host);
                }
            }
            Event::Work { host, boot, work } => {
                if self.hosts[host].boot == boot {
                    self.work(host, work);
                }
            }
            Event::ClientTimer { client, of } => self.client_timer(client, of),
            Event::ClientOpens { client } => self.client_opens(client),
            Event::ClientAborts { client, of } => self.client_aborts(client, of),
            Event::ForgedSyn { client } => self.forged_syn(client),
            Event::ClientGoesOn { client, of } => self.client_wakes(client, of),
            Event::FrontendsChange => self.frontends_change(),
            Event::BreakChannel => {
                let (a, b) = (self.any_host(), self.any_host());
                self.break_channel(a, b);
            }
            Event::Crash => self.crash(),
            Event::Leave => self.leave(),
            Event::Term(event) => self.term_event(event),
        }
    }

    /// I1: at most one host can send on a connection.
    fn check_one_owner(&mut self) {
        let mut live = BTreeSet::new();
        for host in &self.hosts {
            for of in host.live_connections() {
                if !live.insert(of) {
                    self.violation
                        .get_or_insert(format!("I1: {of:?} is live twice"));
                }
            }
        }
    }

    /// I7: in host mode a socket whose state another host may have is live only after the arbiter
    /// has decided so.
    pub(crate) fn check_right(&mut self, host: usize, flow: &FlowKey, epoch: u64) {
        let has_right = self.rights.contains(&(host, *flow, epoch));
        if self.scenario.fence == Fence::Host && !has_right {
            self.fail(format!("I7: host {host} sends without a right"));
        }
    }

    fn check_end(&mut self) {
        for client in 0..self.clients.len() {
            if !self.clients[client].is_done() {
                self.fail(format!("I5: client {client} did not finish"));
            }
            let (flow, had_loss) = (self.clients[client].flow, self.client_had_loss(client));
            if self.switch.table.entry(&flow).is_some() && !had_loss {
                self.fail(format!(
                    "I6: the flow of client {client} was left in the table"
                ));
            }
        }
        let left = self
            .hosts
            .iter()
            .map(|h| h.connections.len())
            .sum::<usize>();
        if left > 0 {
            self.fail(format!("I5: {left} connections were left at hosts"));
        }
    }

    fn client_had_loss(&self, client: usize) -> bool {
        self.excused.iter().any(|of| of.client == client)
    }
}
