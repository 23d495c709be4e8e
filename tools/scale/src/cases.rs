//! Cases that were measured, beside their simulation.

use std::fmt::Write as _;

use crate::costs::{
    NGINX_HEAD_BYTES, PRISM_HEAD_BYTES, ROUND_TRIP_US, STEPS, SWITCH_GBIT_S, TABLES,
};
use crate::lab::{Lab, Serving};

const PROXY: Serving = Serving::Relay {
    head_bytes: NGINX_HEAD_BYTES,
};
const RELAY: Serving = Serving::Relay {
    head_bytes: PRISM_HEAD_BYTES,
};

/// How far a simulation may be from what was measured.
#[derive(Debug, Clone, Copy)]
pub enum Tolerance {
    /// The simulated value over the measured one is within 1 and this share.
    Within(f64),
    /// The simulation lacks a part of the cost, so its value is at most the measured one.
    Below,
}

/// The rows of a case, in a file of `bench/results`.
#[derive(Debug, Clone)]
pub struct CaseRows {
    /// The file.
    pub rows: &'static str,
    /// The system.
    pub system: &'static str,
    /// Numbers of their cases.
    pub keys: Vec<(&'static str, u64)>,
    /// The name of the value.
    pub value: &'static str,
}

/// A case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name in the table.
    pub name: String,
    /// Its rows.
    pub source: CaseRows,
    /// The median of the rows.
    pub measured: f64,
    /// The simulated value.
    pub simulated: f64,
    /// The bound of the test.
    pub tolerance: Tolerance,
}

impl Case {
    /// The simulated value over the measured one.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.simulated / self.measured
    }

    /// Whether the simulation reproduces the case.
    #[must_use]
    pub fn holds(&self) -> bool {
        match self.tolerance {
            Tolerance::Within(share) => (self.ratio() - 1.0).abs() <= share,
            Tolerance::Below => self.ratio() <= 1.0,
        }
    }
}

/// Throughput over slow links, in MB/s: system, bytes, measured.
const SLOW: [(&str, Serving, u64, f64); 13] = [
    ("nginx", PROXY, 64, 1.590),
    ("nginx", PROXY, 1_024, 8.725),
    ("nginx", PROXY, 4_096, 10.64),
    ("nginx", PROXY, 16_384, 11.09),
    ("nginx", PROXY, 262_144, 10.78),
    ("nginx", PROXY, 1_048_576, 11.35),
    ("direct", Serving::Direct, 16_384, 57.09),
    ("direct", Serving::Direct, 1_048_576, 59.70),
    ("prism", Serving::HandOff, 4_096, 47.23),
    ("prism", Serving::HandOff, 16_384, 54.26),
    ("prism", Serving::HandOff, 65_536, 56.61),
    ("prism", Serving::HandOff, 262_144, 57.32),
    ("prism", Serving::HandOff, 1_048_576, 57.44),
];
/// Throughput over slow links in MB/s by asked backends, 16 KiB: system, backends, measured.
const BACKENDS: [(&str, Serving, usize, f64); 6] = [
    ("prism", Serving::HandOff, 1, 11.30),
    ("prism", Serving::HandOff, 2, 22.59),
    ("prism", Serving::HandOff, 3, 32.87),
    ("prism", Serving::HandOff, 4, 43.33),
    ("prism", Serving::HandOff, 5, 54.0),
    ("nginx", PROXY, 5, 10.91),
];
/// Requests a second and p50 in µs where processors are the limit: system, bytes, measured.
const PROCESSORS: [(&str, Serving, u64, f64, f64); 9] = [
    ("relay", RELAY, 64, 28_300.0, 3_377.0),
    ("relay", RELAY, 1_024, 25_910.0, 3_801.0),
    ("relay", RELAY, 16_384, 17_770.0, 5_593.0),
    ("relay", RELAY, 32_768, 16_330.0, 5_810.0),
    ("hand-off", Serving::HandOff, 64, 22_220.0, 4_374.0),
    ("hand-off", Serving::HandOff, 1_024, 21_320.0, 4_574.0),
    ("hand-off", Serving::HandOff, 16_384, 17_440.0, 5_503.0),
    ("hand-off", Serving::HandOff, 32_768, 18_290.0, 5_207.0),
    ("hand-off", Serving::HandOff, 65_536, 17_980.0, 5_241.0),
];

/// All cases.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut cases = slow_links();
    cases.extend(processors());
    cases.extend(hand_offs());
    cases.extend(commands());
    cases
}

/// The rows of a jsonl file whose case has this number of bytes.
fn source(rows: &'static str, system: &'static str, bytes: u64, value: &'static str) -> CaseRows {
    CaseRows {
        rows,
        system,
        keys: vec![("bytes", bytes)],
        value,
    }
}

fn case(name: String, source: CaseRows, measured: f64, simulated: f64, share: f64) -> Case {
    Case {
        name,
        source,
        measured,
        simulated,
        tolerance: Tolerance::Within(share),
    }
}

fn slow_links() -> Vec<Case> {
    let mb_s = |asked, connections, bytes, way| {
        let lab = Lab {
            backends: 5,
            asked,
            link_bit_s: 1e8,
            connections,
            bytes,
            way,
        };
        lab.run().mb_s(bytes)
    };
    let sizes = SLOW.iter().map(|(system, way, bytes, measured)| {
        let name = format!("{system}, slow links, {}: MB/s", size(*bytes));
        let rows = source("2026-11-22-sweep.jsonl", system, *bytes, "mb_s");
        case(name, rows, *measured, mb_s(5, 100, *bytes, *way), 0.10)
    });
    let backends = BACKENDS.iter().map(|(system, way, asked, measured)| {
        let name = format!("{system}, {asked} backends, 16 KiB: MB/s");
        let mut rows = source("2026-11-22-scale.jsonl", system, 16_384, "mb_s");
        rows.keys.push(("asked_backends", *asked as u64));
        case(name, rows, *measured, mb_s(*asked, 120, 16_384, *way), 0.10)
    });
    sizes.chain(backends).collect()
}

fn processors() -> Vec<Case> {
    let file = "2026-11-22-crossover.jsonl";
    let both =
        |(system, way, bytes, requests_s, p50_us): &(&'static str, Serving, u64, f64, f64)| {
            let lab = Lab {
                backends: 5,
                asked: 5,
                link_bit_s: SWITCH_GBIT_S * 1e9,
                connections: 100,
                bytes: *bytes,
                way: *way,
            };
            let simulated = lab.run();
            [
                (
                    "requests/s",
                    "requests_s",
                    (*requests_s, simulated.requests_s),
                ),
                ("p50, µs", "p50_us", (*p50_us, simulated.p50_us)),
            ]
            .map(|(what, value, (measured, simulated))| {
                let name = format!("{system}, fast links, {}: {what}", size(*bytes));
                let rows = source(file, system, *bytes, value);
                case(name, rows, measured, simulated, 0.30)
            })
        };
    PROCESSORS.iter().flat_map(both).collect()
}

/// Hand-offs without other load: the steps, and the command of the switch's own benchmark.
fn hand_offs() -> Vec<Case> {
    let alone = STEPS.iter().zip([22.57, 35.0, 24.96, 41.98]);
    let mut cases: Vec<_> = alone
        .map(|(steps, measured)| {
            let rows = CaseRows {
                keys: Vec::new(),
                ..source("2026-11-22-handoff.jsonl", "prism", 0, "p50_us")
            };
            case(
                steps.case_name(),
                rows,
                measured,
                steps.sum_us + ROUND_TRIP_US,
                0.10,
            )
        })
        .collect();
    let direct_us = cases.first().map_or(0.0, |case| case.simulated);
    let name = "hand-off of a new connection, idle cores: µs".to_owned();
    let rows = source("2026-11-22-latency.jsonl", "prism", 4_096, "hand_off_us");
    cases.push(Case {
        tolerance: Tolerance::Below,
        ..case(name, rows, 109.4, direct_us, 0.0)
    });
    cases
}

/// Round trips of commands over one table from that with one flow.
fn commands() -> Vec<Case> {
    let [first, others @ ..] = TABLES;
    let cases = others.iter().zip([4.490, 4.401, 4.825, 4.569]);
    let cases = cases.map(|(table, measured)| {
        let rows = CaseRows {
            keys: vec![("flows", table.flows)],
            ..source("2026-11-22-flows.jsonl", "switch", 0, "round_trip_us")
        };
        let simulated = ROUND_TRIP_US + (table.rule_ns - first.rule_ns) / 1e3;
        let name = format!("command, {} flows: µs", table.flows);
        case(name, rows, measured, simulated, 0.10)
    });
    cases.collect()
}

/// The cases as a table.
pub(crate) fn table() -> String {
    let mut text = String::from(
        "| case | measured | simulated | ratio | bound |\n|---|---:|---:|---:|---:|\n",
    );
    for case in all() {
        let bound = match case.tolerance {
            Tolerance::Within(share) => format!("± {:.0} %", share * 100.0),
            Tolerance::Below => "at most 1".to_owned(),
        };
        let measured = figure(case.measured);
        let simulated = figure(case.simulated);
        let name = &case.name;
        let ratio = case.ratio();
        let _ = writeln!(
            text,
            "| {name} | {measured} | {simulated} | {ratio:.2} | {bound} |"
        );
    }
    text
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn figure(value: f64) -> String {
    match value {
        1_000.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
