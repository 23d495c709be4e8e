//! From the times of the client and the nodes to steps and their statistics.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use super::fetch::{self, Fetch};
use crate::cluster::System;
use crate::plan::Asked;
use crate::rows::Values;
use crate::stats::Stats;
use crate::trace::{self, Part, Record};

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
    if is_ours {
        trace::start(asked.cluster)?;
    }
    let fetches = fetch::run(asked)?;
    let hand_offs = match is_ours {
        true => join(&trace::take(asked.cluster)?),
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

/// The hand-offs of all records, by the client's port.
fn join(records: &[Record]) -> HashMap<u16, Vec<HandOff>> {
    let targets = records.iter().filter(|record| record.part == Part::Target);
    let targets: HashMap<u64, [u64; 7]> = targets.map(|target| (target.id, target.at_ns)).collect();
    let mut by_port: HashMap<u16, Vec<HandOff>> = HashMap::new();
    for source in records.iter().filter(|record| record.part == Part::Source) {
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
        let record = |id, part, at_ns: [u64; 4]| {
            let [a, b, c, d] = at_ns;
            Record {
                id,
                client_port: 10_000,
                part,
                at_ns: [a, b, c, d, 0, 0, 0],
            }
        };
        let records = [
            record(1, Part::Source, [110, 111, 112, 113]),
            record(1, Part::Target, [120, 121, 122, 123]),
            record(2, Part::Source, [210, 211, 212, 213]),
            record(2, Part::Target, [220, 221, 222, 223]),
            record(3, Part::Source, [310, 311, 312, 313]),
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
