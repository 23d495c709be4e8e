//! From the nodes' notes to steps and statistics.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One node's notes of one hand-off, as the admin socket gives them.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    id: u64,
    part: Part,
    at_ns: [u64; 7],
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
enum Part {
    Source,
    Transit,
    Target,
}

/// One hand-off, seen from all nodes that had a part in it.
#[derive(Debug)]
pub(super) struct Cycle {
    start_ns: u64,
    end_ns: u64,
    /// Name and duration in µs.
    pub(super) steps: Vec<(String, f64)>,
}

/// Median, 99th percentile and standard deviation, µs.
#[derive(Debug, Serialize)]
pub(crate) struct Stats {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) stddev: f64,
}

impl Stats {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
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

/// Joins the records of each hand-off, in the order in which they began: those
/// with a transit, or those without.
pub(super) fn cycles(records: Vec<Record>, with_transit: bool) -> Vec<Cycle> {
    let mut by_id: HashMap<u64, HashMap<Part, [u64; 7]>> = HashMap::new();
    for record in records {
        by_id
            .entry(record.id)
            .or_default()
            .insert(record.part, record.at_ns);
    }
    let mut cycles: Vec<Cycle> = by_id
        .values()
        .filter_map(|parts| {
            let transit = parts.get(&Part::Transit);
            if transit.is_some() != with_transit {
                return None;
            }
            Cycle::of(
                parts.get(&Part::Source)?,
                transit,
                parts.get(&Part::Target)?,
            )
        })
        .collect();
    cycles.sort_by_key(|cycle| cycle.start_ns);
    cycles
}

impl Cycle {
    fn of(source: &[u64; 7], transit: Option<&[u64; 7]>, target: &[u64; 7]) -> Option<Self> {
        let [start, blocked, saved, encoded, sent, closed, _verdict] = *source;
        let [received, restored, owned, live, ..] = *target;
        let mut steps = vec![
            ("block", start, blocked),
            ("save tcp", blocked, saved),
            ("encode", saved, encoded),
        ];
        match transit {
            Some([at_frontend, decided, ..]) => steps.extend([
                ("hand-off to frontend", encoded, *at_frontend),
                ("frontend decides", *at_frontend, *decided),
                ("hand-off to backend", *decided, received),
            ]),
            None => steps.push(("hand-off to backend", encoded, received)),
        }
        steps.extend([
            ("restore tcp", received, restored),
            ("modify rule", restored, owned),
            ("go live", owned, live),
            ("close (off the path)", sent, closed),
        ]);
        // Where a moment is missing the hand-off was not finished.
        let finished = steps.iter().all(|(_, from, to)| *from != 0 && *to != 0);
        finished.then(|| Self {
            start_ns: start,
            end_ns: live,
            steps: steps
                .iter()
                .map(|(name, from, to)| ((*name).to_owned(), us(*from, *to)))
                .collect(),
        })
    }

    pub(super) fn total_us(&self) -> f64 {
        us(self.start_ns, self.end_ns)
    }
}

fn us(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1000.0
}
