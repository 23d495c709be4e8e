//! From what the client and the nodes noted to steps and their statistics.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use prism_lab::Lab;
use serde::Deserialize;

use super::fetch::{self, Fetch};
use crate::cluster::{Cluster, System};
use crate::objects::Objects;
use crate::rows::Values;

/// One node's notes of one hand-off, as the admin socket gives them.
#[derive(Debug, Deserialize)]
struct Record {
    id: u64,
    client_port: u16,
    part: String,
    at_ns: [u64; 7],
}

/// A hand-off: when the frontend began it, and when the backend had the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HandOff {
    began: u64,
    live: u64,
}

/// Fetches from `system` for `seconds`, and says how long each step took.
pub(super) fn run(
    cluster: &Cluster,
    system: System,
    objects: &Objects,
    seconds: u64,
) -> Result<Values> {
    let is_ours = system == System::Prism;
    let nodes: Vec<String> = (0..objects.keys.len()).map(|n| format!("be{n}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).chain(["fe0"]).collect();
    if is_ours {
        for node in &nodes {
            cluster.prism().ask(node, "trace on")?;
        }
    }
    let fetches = fetch::run(cluster, system, objects, seconds)?;
    let hand_offs = match is_ours {
        true => hand_offs(cluster.prism(), &nodes)?,
        false => HashMap::new(),
    };
    let mut values = Values::new();
    let count = fetches.len();
    note(
        &mut values,
        "connect",
        of(&fetches, |f| (f.began, f.connected)),
    );
    note(
        &mut values,
        "handshake",
        of(&fetches, |f| (f.connected, f.asked)),
    );
    note(
        &mut values,
        "startup",
        of(&fetches, |f| (f.began, f.first_byte)),
    );
    note(
        &mut values,
        "transfer",
        of(&fetches, |f| (f.first_byte, f.last_byte)),
    );
    note(
        &mut values,
        "teardown",
        of(&fetches, |f| (f.last_byte, f.closed)),
    );
    note(&mut values, "total", of(&fetches, |f| (f.began, f.closed)));
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
    values.insert("requests".to_owned(), count as f64);
    if is_ours {
        let moved: Vec<_> = fetches
            .iter()
            .filter_map(|fetch| Some((*fetch, during(fetch, &hand_offs)?)))
            .collect();
        // What was relayed has no such steps.
        ensure!(
            moved.len() * 2 > count,
            "only {} of {count} connections were handed off; the others were relayed",
            moved.len()
        );
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
        values.insert("handed_off".to_owned(), moved.len() as f64);
        let of = |step: fn(&(Fetch, HandOff)) -> (u64, u64)| moved.iter().map(step).collect();
        note(&mut values, "parse", of(|(f, h)| (f.asked, h.began)));
        note(&mut values, "hand_off", of(|(_, h)| (h.began, h.live)));
        note(&mut values, "answer", of(|(f, h)| (h.live, f.first_byte)));
    }
    Ok(values)
}

fn of(fetches: &[Fetch], step: fn(&Fetch) -> (u64, u64)) -> Vec<(u64, u64)> {
    fetches.iter().map(step).collect()
}

/// Median, 99th percentile, mean and standard deviation of a step.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52 ns")]
fn note(values: &mut Values, step: &str, moments: Vec<(u64, u64)>) {
    let took_us = moments.into_iter();
    let took_us = took_us.map(|(from, to)| to.saturating_sub(from) as f64 / 1e3);
    let mut took_us: Vec<f64> = took_us.collect();
    took_us.sort_by(f64::total_cmp);
    let count = took_us.len().max(1) as f64;
    let mean = took_us.iter().sum::<f64>() / count;
    let variance = took_us.iter().map(|us| (us - mean).powi(2)).sum::<f64>() / count;
    let rank = |percent: usize| {
        let at = (took_us.len() * percent).div_ceil(100).saturating_sub(1);
        took_us.get(at).copied().unwrap_or_default()
    };
    values.insert(format!("{step}_us"), rank(50));
    values.insert(format!("{step}_p99_us"), rank(99));
    values.insert(format!("{step}_mean_us"), mean);
    values.insert(format!("{step}_stddev_us"), variance.sqrt());
}

/// What all nodes noted, by the client's port.
fn hand_offs(lab: &Lab, nodes: &[&str]) -> Result<HashMap<u16, Vec<HandOff>>> {
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

/// The hand-off of a connection; ports come again.
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
