//! Demand over capacity of each resource in clusters that nobody has built.

use std::fmt::Write as _;

use crate::costs::{self, TABLES, Table};
use crate::engine::{on_the_wire, segments};

/// Requests of a client in a second.
const REQUESTS_S: f64 = 0.1;
/// The share of requests with a long answer, whose connection moves.
pub(crate) const LONG_SHARE: f64 = 0.4;
/// Bytes of a long answer and of a short one, which is relayed.
pub(crate) const LONG_BYTES: u64 = 64 << 10;
pub(crate) const SHORT_BYTES: u64 = 4 << 10;
/// The life of a connection.
const LIFE_S: f64 = 1_000.0;
/// Cores of a node and of a switch.
pub(crate) const NODE_CORES: usize = 16;
pub(crate) const SWITCH_CORES: usize = 32;
/// Links of a node and of a switch towards clients, each way.
pub(crate) const NODE_BIT_S: f64 = 25e9;
pub(crate) const SWITCH_BIT_S: f64 = 200e9;
/// A round trip between a node and a switch under load.
const ROUND_TRIP_S: f64 = 1e-3;

/// Bounds in the code: `max_flows` (`prism-config`), `MAX_CONNECTIONS` of leases and
/// `MAX_FRONTENDS` (`prism-switch`), `MAX_UNDER_WAY` (`prism-proto`), and the greatest time
/// of a young term.
const MAX_FLOWS: f64 = 67_108_864.0;
const MAX_LEASES: f64 = 16_384.0;
pub(crate) const MAX_FRONTENDS: f64 = 16.0;
const UNDER_WAY: f64 = 64.0;
const YOUNG_S: f64 = 10.0;

/// A cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrownCluster {
    pub(crate) nodes: f64,
    pub(crate) switches: f64,
    pub(crate) clients: f64,
}

/// The resources, in the order of the table's columns.
const RESOURCES: [&str; 9] = [
    "switch cores",
    "switch link",
    "node cores",
    "node link",
    "frontend cores",
    "flows",
    "leases",
    "young term, switch",
    "young term, workers",
];

impl GrownCluster {
    pub(crate) fn requests_s(&self) -> f64 {
        self.clients * REQUESTS_S
    }

    /// Demand over capacity of each of [`RESOURCES`].
    fn uses(&self) -> [f64; 9] {
        let long_s = self.requests_s() * LONG_SHARE;
        let short_s = self.requests_s() - long_s;
        let new_s = self.clients / LIFE_S;
        let flows = self.clients / self.switches;
        let table = table_of(flows);
        let long = LONG_BYTES;
        let short = SHORT_BYTES;
        let core_s = (long_s * packets_ns(table, long)
            + short_s * packets_ns(table, short)
            // A move is one command; a connection is claimed and released.
            + (long_s + 2.0 * new_s) * table.rule_ns)
            / 1e9;
        let wire_bit_s = 8.0 * (long_s * wire(long) + short_s * wire(short));
        let moving_s = (costs::move_ns() + costs::SERVE.ns(long)) as f64 / 1e9;
        let relay_ns = costs::RELAY_FRONTEND.ns(short) + costs::RELAY_BACKEND.ns(short);
        let node_s = long_s * moving_s + short_s * relay_ns as f64 / 1e9;
        // A relayed answer leaves from two nodes.
        let node_bit_s = 8.0 * (long_s * wire(long) + 2.0 * short_s * wire(short));
        let switch_use = core_s / self.switches / SWITCH_CORES as f64;
        // Announcements have the cores that packets leave.
        let left = SWITCH_CORES as f64 * (1.0 - switch_use).max(0.01);
        let accept_s = new_s * (costs::OPEN_US / 1e6 + costs::move_ns() as f64 / 1e9);
        let workers = self.nodes * NODE_CORES as f64;
        let frontends = MAX_FRONTENDS.min(self.nodes);
        [
            switch_use,
            wire_bit_s / self.switches / SWITCH_BIT_S,
            node_s / workers,
            node_bit_s / self.nodes / NODE_BIT_S,
            accept_s / frontends / NODE_CORES as f64,
            flows / MAX_FLOWS,
            workers / MAX_LEASES,
            flows * table.rule_ns / 1e9 / left / YOUNG_S,
            flows / workers / UNDER_WAY * ROUND_TRIP_S / YOUNG_S,
        ]
    }

    /// The resource that is used most.
    fn first_limit(&self) -> (&'static str, f64) {
        let uses = RESOURCES.into_iter().zip(self.uses());
        uses.fold(
            ("", 0.0),
            |most, next| if next.1 > most.1 { next } else { most },
        )
    }
}

/// The costs of the greatest measured table that is not greater.
pub(crate) fn table_of(flows: f64) -> Table {
    let [first, ..] = TABLES;
    let fits = TABLES
        .iter()
        .rev()
        .find(|table| table.flows as f64 <= flows);
    fits.copied().unwrap_or(first)
}

/// Processor time of the switch for a request's packets: the request, the segments of its
/// answer, and an acknowledgement for two of them. Each waits for memory.
fn packets_ns(table: Table, bytes: u64) -> f64 {
    let out = segments(bytes + costs::PRISM_HEAD_BYTES);
    out as f64 * table.to_client_ns + (1 + out.div_ceil(2)) as f64 * table.to_owner_ns
}

fn wire(bytes: u64) -> f64 {
    on_the_wire(bytes + costs::PRISM_HEAD_BYTES) as f64
}

const CLUSTERS: [GrownCluster; 7] = [
    cluster(10.0, 1.0, 1e6),
    cluster(100.0, 2.0, 1e7),
    cluster(1_000.0, 16.0, 1e8),
    cluster(1_000.0, 32.0, 1e8),
    cluster(1_000.0, 16.0, 1.5e8),
    cluster(1_000.0, 32.0, 3e8),
    cluster(4_000.0, 64.0, 1e9),
];

const fn cluster(nodes: f64, switches: f64, clients: f64) -> GrownCluster {
    GrownCluster {
        nodes,
        switches,
        clients,
    }
}

/// The clusters as a table, in percent of each capacity.
pub(crate) fn table() -> String {
    let mut text = String::from("| nodes, switches, clients (millions) |");
    for name in RESOURCES {
        let _ = write!(text, " {name} |");
    }
    let _ = write!(
        text,
        " first limit |\n|---|{}---|\n",
        "---:|".repeat(RESOURCES.len())
    );
    for cluster in CLUSTERS {
        let GrownCluster {
            nodes,
            switches,
            clients,
        } = cluster;
        let _ = write!(text, "| {nodes}, {switches}, {} |", clients / 1e6);
        for used in cluster.uses() {
            let _ = write!(text, " {:.1} |", used * 100.0);
        }
        let _ = writeln!(text, " {} |", cluster.first_limit().0);
    }
    text
}
