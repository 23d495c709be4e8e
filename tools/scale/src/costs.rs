//! Unit costs that were measured. `tests/rows.rs` computes each from its rows again.
//!
//! A file is one of `bench/results`, its command that of `docs/benchmarks.md`. No cost comes
//! from a case that the simulation reproduces.

/// Costs of two lengths, and by a line between and beyond them.
#[derive(Debug, Clone, Copy)]
pub struct CostLine {
    /// Bytes and costs in µs.
    pub points: [(u64, f64); 2],
}

impl CostLine {
    /// The cost of so many bytes, in ns.
    pub(crate) fn ns(self, bytes: u64) -> u64 {
        let [(low, low_us), (high, high_us)] = self.points;
        let slope_us = (high_us - low_us) / (high - low) as f64;
        let us = low_us + slope_us * (bytes as f64 - low as f64);
        (us.max(0.0) * 1e3) as u64
    }
}

/// A relaying frontend, for one request. `2026-11-22-crossover.jsonl`, system `relay`.
pub const RELAY_FRONTEND: CostLine = CostLine {
    points: [(4_096, 30.89), (65_536, 55.72)],
};
/// The backend behind it. The same rows.
pub const RELAY_BACKEND: CostLine = CostLine {
    points: [(4_096, 20.88), (65_536, 53.81)],
};
/// The client, whatever answers it. The same rows.
pub const CLIENT: CostLine = CostLine {
    points: [(4_096, 13.46), (65_536, 28.62)],
};
/// A node that answers from its own memory. `2026-11-22-store.jsonl`, anonymous GETs.
pub const SERVE: CostLine = CostLine {
    points: [(4_096, 10.28), (1_048_576, 122.44)],
};
/// Both nodes, for one request of 4 KiB on a cluster of 5 backends that always hands off.
/// `2026-11-22-crossover.jsonl`, system `hand-off`.
pub const MOVING_REQUEST_US: f64 = 78.4;
/// Time of the two cores that no process has, for one relayed request of 4 KiB: the switch,
/// the kernel's interrupts, and idling. `2026-11-22-crossover.jsonl`, system `relay`.
pub const RELAY_REST_US: f64 = 9.40;
/// The same with hand-offs.
pub const MOVING_REST_US: f64 = 3.92;
/// The share of those requests that move: 4 of 5 keys are at another backend.
pub(crate) const MOVING_SHARE: f64 = 0.8;

/// Processor time of one hand-off at both nodes under load.
pub(crate) fn move_ns() -> u64 {
    let serve_us = SERVE.ns(4_096) as f64 / 1e3;
    ((MOVING_REQUEST_US - serve_us) / MOVING_SHARE * 1e3) as u64
}

/// The switch, by the number of flows in its table. `2026-11-22-flows.jsonl`.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Flows.
    pub flows: u64,
    /// A packet to the client, in ns.
    pub to_client_ns: f64,
    /// A packet to the owner, in ns.
    pub to_owner_ns: f64,
    /// A command in the program, in ns.
    pub rule_ns: f64,
}

/// The smallest table first.
pub const TABLES: [Table; 5] = [
    table(1, 204.0, 177.0, 947.0),
    table(1_000, 304.0, 247.0, 984.0),
    table(10_000, 623.0, 493.0, 1_316.0),
    table(100_000, 752.0, 535.0, 1_484.0),
    table(1_000_000, 828.0, 659.0, 1_451.0),
];

const fn table(flows: u64, to_client_ns: f64, to_owner_ns: f64, rule_ns: f64) -> Table {
    Table {
        flows,
        to_client_ns,
        to_owner_ns,
        rule_ns,
    }
}

/// A command and its answer over a veth pair, with one flow. The same rows.
pub const ROUND_TRIP_US: f64 = 4.172;
/// A packet to the client like the one before. `2026-11-22-switch.jsonl`, 1,514 bytes.
pub const REPEATED_PACKET_NS: f64 = 67.0;
/// One connection through the switch, to the client. The same file.
pub const SWITCH_GBIT_S: f64 = 29.3;

/// Heads of answers over those of objects, of Prism and nginx.
/// `2026-11-23-sweep-unshaped.jsonl`, 64 B.
pub const PRISM_HEAD_BYTES: u64 = 272;
/// nginx's.
pub const NGINX_HEAD_BYTES: u64 = 251;
/// A request of `wrk`: `GET /bench/be0-16384-12 HTTP/1.1` and `Host`, as its script writes it.
pub(crate) const REQUEST_BYTES: u64 = 56;
/// A hand-off without TLS at the client, by the layout in `docs/protocol.md` (2.2): 170 bytes
/// of fixed fields and names, the request as input, a context of as many bytes, a record.
pub(crate) const HAND_OFF_BYTES: u64 = 170 + 2 * REQUEST_BYTES + 22;
/// A verdict with the record's frame (2.1).
pub(crate) const VERDICT_BYTES: u64 = 17 + 22;
/// A command, or its answer (1.1).
pub(crate) const COMMAND_BYTES: u64 = 120;

/// Steps of a hand-off in µs: two runs, from the stop of the client's packets until the new
/// owner is live. The command to the switch is not among them.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// `http` or `https`.
    pub scheme: &'static str,
    /// `direct` or `return`.
    pub mode: &'static str,
    /// The sum of all steps but `modify rule`, as the mean of both runs' p50.
    pub sum_us: f64,
}

impl Steps {
    /// The name of their case in the table.
    #[must_use]
    pub fn case_name(&self) -> String {
        let scheme = self.scheme.to_uppercase();
        format!("hand-off alone, {scheme}, {}: µs", self.mode)
    }
}

/// `2026-11-22-handoff.jsonl`.
pub const STEPS: [Steps; 4] = [
    steps("http", "direct", 18.65),
    steps("http", "return", 30.55),
    steps("https", "direct", 21.11),
    steps("https", "return", 36.86),
];

const fn steps(scheme: &'static str, mode: &'static str, sum_us: f64) -> Steps {
    Steps {
        scheme,
        mode,
        sum_us,
    }
}

/// A new connection, client included. `2026-11-22-connections.jsonl`, 1,000 silent, HTTP.
pub const OPEN_US: f64 = 61.0;
/// Memory of a connection that was served: node and kernel. The same rows, 8,000 served.
pub const CONNECTION_BYTES: f64 = 2_689.0 + 6_577.0;
