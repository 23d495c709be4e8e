//! From the nodes' notes to steps and statistics.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One end's notes of one hand-off, as the admin socket gives them.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    id: u64,
    target: bool,
    at_ns: [u64; 7],
}

/// One hand-off, seen from both ends: ten moments in their order.
#[derive(Debug)]
pub(super) struct Hop {
    /// Start, blocked, saved, encoded, sent; received, restored, owned, live.
    at_ns: [u64; 9],
    /// When the source had closed its socket, off the client's path.
    verdict_ns: u64,
    closed_ns: u64,
}

/// What lies between one moment of a hop and the next. "transfer" runs from the
/// encoded message to the decoded one, over mutual TLS.
const STEPS: [(&str, usize, usize); 7] = [
    ("block", 0, 1),
    ("save tcp", 1, 2),
    ("encode", 2, 3),
    ("transfer", 3, 5),
    ("restore tcp", 5, 6),
    ("redirect", 6, 7),
    ("go live", 7, 8),
];

/// What is measured once: a hand-off, or a cycle of two.
#[derive(Debug)]
pub(super) struct Cycle {
    start_ns: u64,
    end_ns: u64,
    /// Name and duration in µs.
    pub(super) steps: Vec<(String, f64)>,
}

/// Median, 99th percentile and standard deviation, µs.
#[derive(Debug, Serialize)]
pub(super) struct Stats {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) stddev: f64,
}

impl Stats {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        let rank = |percent: usize| {
            let at = (values.len() * percent).div_ceil(100).saturating_sub(1);
            values.get(at).copied().unwrap_or(0.0)
        };
        Self {
            p50: rank(50),
            p99: rank(99),
            stddev: variance.sqrt(),
        }
    }
}

/// Reads a node's answer to `trace take`.
pub(super) fn parse(answer: &serde_json::Value) -> Result<Vec<Record>> {
    let records = answer.get("records").context("the node sent no records")?;
    Ok(serde_json::from_value(records.clone())?)
}

/// Joins both ends' records, in the order in which the hand-offs began.
pub(super) fn hops(records: Vec<Record>) -> Vec<Hop> {
    let (targets, sources): (Vec<_>, Vec<_>) = records.into_iter().partition(|r| r.target);
    let targets: HashMap<u64, Record> = targets.into_iter().map(|r| (r.id, r)).collect();
    let mut hops: Vec<Hop> = sources
        .into_iter()
        .filter_map(|source| Hop::of(&source, targets.get(&source.id)?))
        .collect();
    hops.sort_by_key(Hop::start_ns);
    hops
}

impl Hop {
    fn of(source: &Record, target: &Record) -> Option<Self> {
        let [start, blocked, saved, encoded, sent, verdict_ns, closed_ns] = source.at_ns;
        let [received, restored, owned, live, ..] = target.at_ns;
        let at_ns = [
            start, blocked, saved, encoded, sent, received, restored, owned, live,
        ];
        // A hand-off that was not finished.
        (!at_ns.contains(&0)).then_some(Self {
            at_ns,
            verdict_ns,
            closed_ns,
        })
    }

    fn start_ns(&self) -> u64 {
        self.at_ns[0]
    }

    fn end_ns(&self) -> u64 {
        self.at_ns[8]
    }

    fn steps(&self, prefix: &str) -> Vec<(String, f64)> {
        let at = |n: usize| self.at_ns.get(n).copied().unwrap_or(0);
        let steps = STEPS
            .iter()
            .map(|(name, from, to)| (format!("{prefix}{name}"), us(at(*from), at(*to))));
        let closing = (
            format!("{prefix}close (off the path)"),
            us(self.verdict_ns, self.closed_ns),
        );
        steps.chain([closing]).collect()
    }
}

impl Cycle {
    pub(super) fn total_us(&self) -> f64 {
        us(self.start_ns, self.end_ns)
    }
}

fn us(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1000.0
}

/// Each hop but the first is one hand-off between backends.
pub(super) fn direct_cycles(hops: Vec<Hop>) -> Vec<Cycle> {
    let hops = hops.iter().skip(1);
    hops.map(|hop| Cycle {
        start_ns: hop.start_ns(),
        end_ns: hop.end_ns(),
        steps: hop.steps(""),
    })
    .collect()
}

/// After the first hop, from the frontend, hops come in pairs: to the frontend
/// and on.
pub(super) fn return_cycles(hops: Vec<Hop>) -> Vec<Cycle> {
    let pairs = hops.get(1..).unwrap_or_default().chunks_exact(2);
    pairs
        .filter_map(|pair| {
            let [back, on] = pair else { return None };
            let mut steps = back.steps("return: ");
            steps.push(("frontend decides".into(), us(back.end_ns(), on.start_ns())));
            steps.extend(on.steps("hand-off: "));
            Some(Cycle {
                start_ns: back.start_ns(),
                end_ns: on.end_ns(),
                steps,
            })
        })
        .collect()
}
