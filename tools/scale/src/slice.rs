//! One switch of a large cluster with its share of nodes and clients, as queues: whether the
//! resource that the arithmetic names is the one that fills up first.

use std::fmt::Write as _;

use crate::engine::{Engine, Event};
use crate::growth::{
    GrownCluster, LONG_BYTES, LONG_SHARE, NODE_BIT_S, NODE_CORES, SHORT_BYTES, SWITCH_BIT_S,
    SWITCH_CORES, table_of,
};
use crate::hosts::{LinkSpeed, Path, SimulatedHost, SimulatedSwitch};

/// Simulated time; its first quarter does not count.
const NS: u64 = 80_000_000;
const SEED: u64 = 12;
/// Loads, in clients of the whole cluster.
const CLIENTS: [f64; 6] = [0.5e8, 1e8, 1.2e8, 1.3e8, 1.35e8, 1.5e8];

/// The slice at one load.
struct Slice {
    engine: Engine,
    random: fastrand::Rng,
    machines: Vec<usize>,
    nodes: Vec<SimulatedHost>,
    switch_machine: usize,
    switch: SimulatedSwitch,
    clients: SimulatedHost,
}

/// The figures of a slice.
struct Shown {
    p50_us: f64,
    p99_us: f64,
    /// The share of requests that had ended by the end.
    ended: f64,
    switch_cores: f64,
    switch_link: f64,
    node_cores: f64,
    node_link: f64,
}

impl Slice {
    fn new(cluster: GrownCluster) -> Self {
        let mut engine = Engine::default();
        let count = (cluster.nodes / cluster.switches) as usize;
        let link = LinkSpeed::both(NODE_BIT_S);
        let mut machines = Vec::new();
        let mut nodes = Vec::new();
        for _ in 0..count {
            let machine = engine.add_machine(NODE_CORES);
            machines.push(machine);
            nodes.push(SimulatedHost::new(&mut engine, machine, NODE_CORES, link));
        }
        let switch_machine = engine.add_machine(SWITCH_CORES);
        let threads = (0..SWITCH_CORES).map(|_| engine.add_thread(switch_machine));
        let threads = threads.collect();
        // Clients cost nothing; their link is the switch's.
        let link = LinkSpeed::both(SWITCH_BIT_S);
        let clients = SimulatedHost::new(&mut engine, switch_machine, 0, link);
        Self {
            engine,
            random: fastrand::Rng::with_seed(SEED),
            machines,
            nodes,
            switch_machine,
            switch: SimulatedSwitch {
                threads,
                table: table_of(cluster.clients / cluster.switches),
                has_offload: false,
            },
            clients,
        }
    }

    /// Requests arrive at random times, each at one random node for another.
    fn run(mut self, cluster: GrownCluster) -> Shown {
        let mean_ns = 1e9 * cluster.switches / cluster.requests_s();
        let mut times_ns = Vec::new();
        let mut begun = 0_u64;
        self.engine.set_timer(0, 0);
        while let Some(event) = self.engine.next_event() {
            let now_ns = self.engine.now_ns();
            if now_ns >= NS {
                break;
            }
            match event {
                Event::Timer(_) => {
                    self.begin();
                    begun += u64::from(now_ns >= NS / 4);
                    let after_ns = -mean_ns * (1.0 - self.random.f64()).ln();
                    self.engine.set_timer(after_ns as u64, 0);
                }
                Event::End { took_ns, .. } if now_ns >= NS / 4 => times_ns.push(took_ns),
                Event::End { .. } => {}
            }
        }
        let engine = &self.engine;
        let count = self.nodes.len() as f64;
        let cores = self
            .machines
            .iter()
            .map(|machine| engine.machine_use(*machine));
        let links = self.nodes.iter().map(|node| engine.link_use(node.up));
        Shown {
            ended: times_ns.len() as f64 / begun.max(1) as f64,
            p50_us: crate::percentile_us(&mut times_ns, 0.5),
            p99_us: crate::percentile_us(&mut times_ns, 0.99),
            switch_cores: engine.machine_use(self.switch_machine),
            switch_link: engine.link_use(self.clients.down),
            node_cores: cores.sum::<f64>() / count,
            node_link: links.sum::<f64>() / count,
        }
    }

    fn begin(&mut self) {
        let count = self.nodes.len();
        let place = self.random.usize(0..count);
        let other = (place + self.random.usize(1..count)) % count;
        let is_long = self.random.f64() < LONG_SHARE;
        let mut path = Path {
            switch: &self.switch,
            client: &self.clients,
            pick: self.random.usize(0..1 << 20),
            steps: Vec::new(),
        };
        let (Some(holder), Some(owner)) = (self.nodes.get(place), self.nodes.get(other)) else {
            return;
        };
        if is_long {
            path.hand_off(holder, owner, LONG_BYTES)
        } else {
            path.relay(holder, owner, SHORT_BYTES, crate::costs::PRISM_HEAD_BYTES)
        }
        let steps = path.steps;
        self.engine.begin(steps);
    }
}

/// The slice of 1,000 nodes and 16 switches at growing loads, as a table.
pub(crate) fn table() -> String {
    let mut text = String::from(
        "| clients (millions) | p50, µs | p99, µs | ended | switch cores | switch link | node cores | node link |\n|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for clients in CLIENTS {
        let cluster = GrownCluster {
            nodes: 1_000.0,
            switches: 16.0,
            clients,
        };
        let shown = Slice::new(cluster).run(cluster);
        let _ = write!(
            text,
            "| {:.0} | {:.0} | {:.0} | {:.2} |",
            clients / 1e6,
            shown.p50_us,
            shown.p99_us,
            shown.ended
        );
        for used in [
            shown.switch_cores,
            shown.switch_link,
            shown.node_cores,
            shown.node_link,
        ] {
            let _ = write!(text, " {:.1} |", used * 100.0);
        }
        text.push('\n');
    }
    text
}
