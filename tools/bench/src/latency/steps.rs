//! From the times of the client and the nodes to steps and their statistics.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use prism_lab::Lab;
use serde::Deserialize;

use super::fetch::{self, Fetch};
use crate::cluster::System;
use crate::plan::Asked;
use crate::rows::Values;
use crate::stats::Stats;

/// One node's record of one hand-off, as the admin socket gives it.
#[derive(Debug, Deserialize)]
struct Record {
    id: u64,
    client_port: u16,
    part: String,
    at_ns: [u64; 7],
}

/// The beginning and the end of a step.
type Step<T> = fn(&T) -> (u64, u64);

/// A hand-off: its beginning at the frontend, and its end at the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HandOff {
    began: u64,
    live: u64,
}

/// Fetches for the seconds of a turn, and gives the time of each step.
pub(super) fn run(asked: &Asked<'_, ()>) -> Result<Values> {
    let is_ours = asked.system == System::Prism;
    let lab = asked.cluster.prism();
    let backends = 0..asked.objects.keys.len();
    let nodes: Vec<String> = backends
        .map(|n| format!("be{n}"))
        .chain(["fe0".to_owned()])
        .collect();
    if is_ours {
        for node in &nodes {
            lab.ask(node, "trace on")?;
        }
    }
    let fetches = fetch::run(asked)?;
    let hand_offs = match is_ours {
        true => hand_offs(lab, &nodes)?,
        false => HashMap::new(),
    };
    let mut values = Values::new();
    let steps: [(&str, Step<Fetch>); 6] = [
        ("connect", |f| (f.began, f.connected)),
        ("handshake", |f| (f.connected, f.asked)),
        ("startup", |f| (f.began, f.first_byte)),
        ("transfer", |f| (f.first_byte, f.last_byte)),
        ("teardown", |f| (f.last_byte, f.closed)),
        ("total", |f| (f.began, f.closed)),
    ];
    for (name, step) in steps {
        note(&mut values, name, fetches.iter().map(step));
    }
    let count = fetches.len();
    values.insert("requests".to_owned(), count as f64);
    if is_ours {
        let moved = fetches.iter();
        let moved = moved.filter_map(|fetch| Some((*fetch, during(fetch, &hand_offs)?)));
        let moved: Vec<(Fetch, HandOff)> = moved.collect();
        // Relayed answers have no such steps.
        ensure!(
            moved.len() * 2 > count,
            "only {} of {count} connections were handed off; the others were relayed",
            moved.len()
        );
        values.insert("handed_off".to_owned(), moved.len() as f64);
        let steps: [(&str, Step<(Fetch, HandOff)>); 3] = [
            ("parse", |(f, h)| (f.asked, h.began)),
            ("hand_off", |(_, h)| (h.began, h.live)),
            ("answer", |(f, h)| (h.live, f.first_byte)),
        ];
        for (name, step) in steps {
            note(&mut values, name, moved.iter().map(step));
        }
    }
    Ok(values)
}

/// Median, 99th percentile, mean and standard deviation of a step.
fn note(values: &mut Values, step: &str, moments: impl Iterator<Item = (u64, u64)>) {
    let took_us = moments.map(|(from, to)| to.saturating_sub(from) as f64 / 1e3);
    let stats = Stats::of(took_us.collect());
    let all = [
        ("us", stats.p50),
        ("p99_us", stats.p99),
        ("mean_us", stats.mean),
        ("stddev_us", stats.stddev),
    ];
    values.extend(all.map(|(unit, value)| (format!("{step}_{unit}"), value)));
}

/// The hand-offs that all nodes noted, by the client's port.
fn hand_offs(lab: &Lab, nodes: &[String]) -> Result<HashMap<u16, Vec<HandOff>>> {
    let mut records = Vec::new();
    for node in nodes {
        let mut answer = lab.ask(node, "trace take")?;
        let of_node = answer
            .get_mut("records")
            .context("the node sent no records")?;
        let of_node: Vec<Record> = serde_json::from_value(of_node.take())?;
        records.extend(of_node);
        lab.ask(node, "trace off")?;
    }
    Ok(join(&records))
}

fn join(records: &[Record]) -> HashMap<u16, Vec<HandOff>> {
    let targets = records.iter().filter(|record| record.part == "target");
    let targets: HashMap<u64, [u64; 7]> = targets.map(|target| (target.id, target.at_ns)).collect();
    let mut by_port: HashMap<u16, Vec<HandOff>> = HashMap::new();
    for source in records.iter().filter(|record| record.part == "source") {
        let target = targets.get(&source.id);
        if let ([began, ..], Some([_, _, _, live, ..])) = (source.at_ns, target) {
            let hand_off = HandOff { began, live: *live };
            by_port
                .entry(source.client_port)
                .or_default()
                .push(hand_off);
        }
    }
    by_port
}

/// The hand-off of a connection, by port and time: ports are reused.
fn during(fetch: &Fetch, hand_offs: &HashMap<u16, Vec<HandOff>>) -> Option<HandOff> {
    let of_port = hand_offs.get(&fetch.port)?.iter();
    let mut within = of_port.filter(|hand_off| {
        fetch.began <= hand_off.began
            && hand_off.began <= hand_off.live
            && hand_off.live <= fetch.last_byte
    });
    within.next().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_off_is_that_of_its_connection_and_its_time() {
        let record = |id, part: &str, at_ns: [u64; 4]| {
            let [a, b, c, d] = at_ns;
            Record {
                id,
                client_port: 10_000,
                part: part.to_owned(),
                at_ns: [a, b, c, d, 0, 0, 0],
            }
        };
        let records = [
            record(1, "source", [110, 111, 112, 113]),
            record(1, "target", [120, 121, 122, 123]),
            record(2, "source", [210, 211, 212, 213]),
            record(2, "target", [220, 221, 222, 223]),
            record(3, "source", [310, 311, 312, 313]),
        ];
        let hand_offs = join(&records);
        let fetch = Fetch {
            port: 10_000,
            began: 200,
            connected: 205,
            asked: 206,
            first_byte: 230,
            last_byte: 240,
            closed: 250,
        };
        let second = HandOff {
            began: 210,
            live: 223,
        };
        assert_eq!(during(&fetch, &hand_offs), Some(second));
        let other = Fetch {
            port: 10_001,
            ..fetch
        };
        assert_eq!(during(&other, &hand_offs), None);
        let later = Fetch {
            began: 300,
            last_byte: 340,
            ..fetch
        };
        assert_eq!(during(&later, &hand_offs), None);
    }
}
