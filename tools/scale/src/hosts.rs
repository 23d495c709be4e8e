//! Hosts with their threads and links, and the steps of a request over them.

use crate::costs::{self, Table};
use crate::engine::{Engine, JobStep, segments};

/// A host: its threads, and its link to the switch.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedHost {
    pub(crate) threads: Vec<usize>,
    pub(crate) up: usize,
    pub(crate) down: usize,
}

/// Speeds of a link, from the host and to it, in bits a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkSpeed {
    pub(crate) up: f64,
    pub(crate) down: f64,
}

impl LinkSpeed {
    pub(crate) const fn both(bit_s: f64) -> Self {
        Self {
            up: bit_s,
            down: bit_s,
        }
    }
}

/// The switch: its threads, and what it does for a packet.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedSwitch {
    pub(crate) threads: Vec<usize>,
    pub(crate) table: Table,
    /// One run of the program carries a whole transfer, as between hosts of one machine.
    pub(crate) has_offload: bool,
}

/// The steps of one request, and the means to write them down.
pub(crate) struct Path<'p> {
    pub(crate) switch: &'p SimulatedSwitch,
    pub(crate) client: &'p SimulatedHost,
    /// A random number, which chooses the threads.
    pub(crate) pick: usize,
    pub(crate) steps: Vec<JobStep>,
}

impl SimulatedHost {
    pub(crate) fn new(
        engine: &mut Engine,
        machine: usize,
        threads: usize,
        link_bit_s: LinkSpeed,
    ) -> Self {
        Self {
            threads: (0..threads).map(|_| engine.add_thread(machine)).collect(),
            up: engine.add_link(link_bit_s.up),
            down: engine.add_link(link_bit_s.down),
        }
    }
}

impl Path<'_> {
    /// A node serves the request of a client that is connected to it.
    pub(crate) fn serve(&mut self, node: &SimulatedHost, bytes: u64, head_bytes: u64) {
        self.request(node, bytes);
        self.work(node, costs::SERVE.ns(bytes));
        self.answer(node, bytes + head_bytes);
    }

    /// A node hands the connection of such a client to another node, which serves it.
    pub(crate) fn hand_off(&mut self, source: &SimulatedHost, target: &SimulatedHost, bytes: u64) {
        self.request(source, bytes);
        // The source saves the socket; the target builds it and commands the switch.
        self.work(source, costs::move_ns() * 2 / 5);
        self.between(source, target, costs::HAND_OFF_BYTES);
        self.work(target, costs::move_ns() * 3 / 5);
        self.send(target.up, costs::COMMAND_BYTES);
        self.at_switch(self.switch.table.rule_ns);
        self.send(target.down, costs::COMMAND_BYTES);
        self.work(target, costs::SERVE.ns(bytes));
        self.answer(target, bytes + costs::PRISM_HEAD_BYTES);
    }

    /// A node passes the request on, and the answer to the client.
    pub(crate) fn relay(
        &mut self,
        relay: &SimulatedHost,
        owner: &SimulatedHost,
        bytes: u64,
        head_bytes: u64,
    ) {
        let frontend_ns = costs::RELAY_FRONTEND.ns(bytes);
        self.request(relay, bytes);
        self.work(relay, frontend_ns / 2);
        self.between(relay, owner, costs::REQUEST_BYTES);
        self.work(owner, costs::RELAY_BACKEND.ns(bytes));
        self.between(owner, relay, bytes + head_bytes);
        self.work(relay, frontend_ns / 2);
        self.answer(relay, bytes + head_bytes);
    }

    /// A verdict, for which the client does not wait.
    pub(crate) fn verdict(&mut self, target: &SimulatedHost, source: &SimulatedHost) {
        self.between(target, source, costs::VERDICT_BYTES);
    }

    fn request(&mut self, node: &SimulatedHost, bytes: u64) {
        let client = self.client;
        self.work(client, costs::CLIENT.ns(bytes));
        self.send(client.up, costs::REQUEST_BYTES);
        self.at_switch(self.switch.table.to_owner_ns);
        self.send(node.down, costs::REQUEST_BYTES);
    }

    /// The answer, and the client's acknowledgements at the switch: one for two segments.
    fn answer(&mut self, node: &SimulatedHost, bytes: u64) {
        let table = self.switch.table;
        let (out, back) = if self.switch.has_offload {
            (1, 1)
        } else {
            (segments(bytes), segments(bytes).div_ceil(2))
        };
        self.send(node.up, bytes);
        self.at_switch(out as f64 * table.to_client_ns + back as f64 * table.to_owner_ns);
        self.send(self.client.down, bytes);
    }

    fn between(&mut self, from: &SimulatedHost, to: &SimulatedHost, bytes: u64) {
        self.send(from.up, bytes);
        self.send(to.down, bytes);
    }

    fn at_switch(&mut self, ns: f64) {
        self.work_of(&self.switch.threads, ns as u64);
    }

    fn work(&mut self, host: &SimulatedHost, ns: u64) {
        self.work_of(&host.threads, ns);
    }

    /// A host without threads costs nothing: it stands for many.
    fn work_of(&mut self, threads: &[usize], ns: u64) {
        let place = self.pick.checked_rem(threads.len()).unwrap_or(0);
        if let Some(thread) = threads.get(place) {
            self.steps.push(JobStep::Work {
                thread: *thread,
                ns,
            });
        }
    }

    fn send(&mut self, link: usize, bytes: u64) {
        self.steps.push(JobStep::Send { link, bytes });
    }
}
