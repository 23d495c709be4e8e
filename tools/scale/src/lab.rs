//! The lab of `prism-lab bench`: all hosts on one machine with two cores, and a client with
//! kept connections that each ask for a random object after the other.

use crate::costs::{self, Table};
use crate::engine::{Engine, Event};
use crate::hosts::{LinkSpeed, Path, SimulatedHost, SimulatedSwitch};

/// Cores of the machine, and threads of each node.
const CORES: usize = 2;
/// The least simulated time. The first quarter of all time does not count.
const LEAST_S: f64 = 2.0;
/// The requests of each connection that a link of one server has time for.
const REQUESTS: f64 = 16.0;
const SEED: u64 = 12;

/// How requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    /// Each connection asks one backend for its own objects.
    Direct,
    /// A frontend relays all.
    Relay { head_bytes: u64 },
    /// Connections move to the owner.
    HandOff,
}

/// A case of the benchmarks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lab {
    pub(crate) backends: usize,
    /// Backends whose objects are asked for.
    pub(crate) asked: usize,
    /// The speed of a server's link; the client's has that of all backends.
    pub(crate) link_bit_s: f64,
    pub(crate) connections: usize,
    pub(crate) bytes: u64,
    pub(crate) way: Serving,
}

/// The client's figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) requests_s: f64,
    pub(crate) p50_us: f64,
}

impl Measured {
    /// Bytes of objects a second, in MB.
    pub(crate) fn mb_s(&self, bytes: u64) -> f64 {
        self.requests_s * bytes as f64 / 1e6
    }
}

/// The hosts of a lab, and where the connections are.
struct Run {
    engine: Engine,
    random: fastrand::Rng,
    switch: SimulatedSwitch,
    client: SimulatedHost,
    frontend: SimulatedHost,
    backends: Vec<SimulatedHost>,
    /// The client's connection of each job; a verdict has none.
    connection_of: Vec<Option<usize>>,
    /// The backend at which each connection is; none at the frontend.
    place_of: Vec<Option<usize>>,
}

impl Lab {
    /// Simulates the case.
    pub(crate) fn run(&self) -> Measured {
        let mut run = self.build();
        for connection in 0..self.connections {
            self.ask(&mut run, connection);
        }
        let mut times_ns = Vec::new();
        let wire_bits = (self.connections as u64 * self.bytes * 8) as f64;
        let end_ns = ((REQUESTS * wire_bits / self.link_bit_s).max(LEAST_S) * 1e9) as u64;
        let warm_ns = end_ns / 4;
        while let Some(event) = run.engine.next_event() {
            if run.engine.now_ns() >= end_ns {
                break;
            }
            let Event::End { job, took_ns } = event else {
                continue;
            };
            let Some(connection) = run.connection_of.get(job).copied().flatten() else {
                continue;
            };
            if run.engine.now_ns() >= warm_ns {
                times_ns.push(took_ns);
            }
            self.ask(&mut run, connection);
        }
        Measured {
            requests_s: times_ns.len() as f64 * 1e9 / (end_ns - warm_ns) as f64,
            p50_us: crate::percentile_us(&mut times_ns, 0.5),
        }
    }

    fn build(&self) -> Run {
        let mut engine = Engine::default();
        let machine = engine.add_machine(CORES);
        let link = LinkSpeed::both(self.link_bit_s);
        let all = LinkSpeed::both(self.link_bit_s * self.backends as f64);
        let client = SimulatedHost::new(&mut engine, machine, self.backends, all);
        let node = |engine: &mut Engine| SimulatedHost::new(engine, machine, CORES, link);
        let frontend = node(&mut engine);
        let backends = (0..self.backends).map(|_| node(&mut engine)).collect();
        let rest_us = match self.way {
            Serving::HandOff => costs::MOVING_REST_US,
            Serving::Direct | Serving::Relay { .. } => costs::RELAY_REST_US,
        };
        let switch = SimulatedSwitch {
            threads: vec![engine.add_thread(machine)],
            // The measured rest has the switch's work in it.
            table: Table {
                flows: 0,
                to_client_ns: 0.0,
                to_owner_ns: rest_us * 1e3 / 2.0,
                rule_ns: 0.0,
            },
            has_offload: true,
        };
        Run {
            engine,
            random: fastrand::Rng::with_seed(SEED),
            switch,
            client,
            frontend,
            backends,
            connection_of: Vec::new(),
            place_of: vec![None; self.connections],
        }
    }

    /// Begins the next request of a connection.
    fn ask(&self, run: &mut Run, connection: usize) {
        let owner = match self.way {
            Serving::Direct => connection % self.asked,
            _ => run.random.usize(0..self.asked),
        };
        let Some(target) = run.backends.get(owner) else {
            return;
        };
        let mut path = Path {
            switch: &run.switch,
            client: &run.client,
            pick: connection,
            steps: Vec::new(),
        };
        let place = run.place_of.get(connection).copied().flatten();
        let source = place.and_then(|place| run.backends.get(place));
        let mut verdict = None;
        match self.way {
            Serving::Direct => path.serve(target, self.bytes, costs::NGINX_HEAD_BYTES),
            Serving::Relay { head_bytes } => {
                path.relay(&run.frontend, target, self.bytes, head_bytes);
            }
            Serving::HandOff if place == Some(owner) => {
                path.serve(target, self.bytes, costs::PRISM_HEAD_BYTES);
            }
            Serving::HandOff => {
                let source = source.unwrap_or(&run.frontend);
                path.hand_off(source, target, self.bytes);
                let steps = std::mem::take(&mut path.steps);
                path.verdict(target, source);
                verdict = Some(std::mem::replace(&mut path.steps, steps));
            }
        }
        let steps = path.steps;
        if self.way == Serving::HandOff
            && let Some(place) = run.place_of.get_mut(connection)
        {
            *place = Some(owner);
        }
        let jobs = [
            Some((steps, Some(connection))),
            verdict.map(|steps| (steps, None)),
        ];
        for (steps, connection) in jobs.into_iter().flatten() {
            let job = run.engine.begin(steps);
            if run.connection_of.len() <= job {
                run.connection_of.resize(job + 1, None);
            }
            if let Some(slot) = run.connection_of.get_mut(job) {
                *slot = connection;
            }
        }
    }
}
