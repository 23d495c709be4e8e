//! The table of ended runs, whose flows the programs end.
//!
//! If its map is full, the oldest entries of the nodes with the most make room. The flows of those
//! runs then age like others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use libbpf_rs::{ErrorKind, MapCore, MapFlags};
use prism_proto::control::RunId;
use prism_sys::clock::monotonic_ns;
use zerocopy::IntoBytes;

use crate::layout::{address, from_bytes, ip_addr, nanos};
use crate::leases::{LeaseChange, RunEnd};
use crate::skel::{SwitchMaps, types};

/// The time for which an ended run is remembered. Its kernel has closed all its sockets by then
/// (TIME_WAIT 60 s, orphans some 100 s).
const REMEMBERED: Duration = Duration::from_mins(10);

/// Most ends that are written before room is made again.
const BATCH: usize = 256;

/// Writes changes to the table, and removes old entries.
pub(crate) fn note_all(maps: &SwitchMaps<'_>, changes: &[LeaseChange]) -> libbpf_rs::Result<()> {
    for batch in changes.chunks(BATCH) {
        if batch
            .iter()
            .any(|change| matches!(change, LeaseChange::Ended { .. }))
        {
            make_room(maps)?;
        }
        batch.iter().try_for_each(|change| note(maps, change))?;
    }
    Ok(())
}

fn note(maps: &SwitchMaps<'_>, change: &LeaseChange) -> libbpf_rs::Result<()> {
    match change {
        LeaseChange::Returned { node, run } => delete(maps, key(*node, *run).as_bytes()),
        LeaseChange::Ended { node, run, end } => {
            let end = match end {
                RunEnd::Died => types::run_end::RUN_DIED,
                RunEnd::Left => types::run_end::RUN_LEFT,
            };
            let value = types::ended_run {
                since_ns: monotonic_ns(),
                end: end.0,
                ..Default::default()
            };
            let key = key(*node, *run);
            (maps.ended_runs).update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
        }
    }
}

/// Removes old entries, and as many others as a batch needs.
fn make_room(maps: &SwitchMaps<'_>) -> libbpf_rs::Result<()> {
    let now = monotonic_ns();
    let mut kept: Vec<EndedRun> = Vec::new();
    for key in maps.ended_runs.keys() {
        let run = EndedRun::read(maps, key);
        if now.saturating_sub(run.since_ns) > nanos(REMEMBERED) {
            delete(maps, &run.key)?
        } else {
            kept.push(run)
        }
    }
    let room = usize::try_from(maps.ended_runs.max_entries()).unwrap_or(usize::MAX);
    let excess = kept.len().saturating_sub(room.saturating_sub(BATCH));
    let surplus = surplus(kept, excess);
    surplus.iter().try_for_each(|run| delete(maps, &run.key))
}

/// An entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EndedRun {
    node: IpAddr,
    since_ns: u64,
    key: Vec<u8>,
}

impl EndedRun {
    fn read(maps: &SwitchMaps<'_>, key: Vec<u8>) -> Self {
        let value = maps.ended_runs.lookup(&key, MapFlags::ANY).ok().flatten();
        let value: types::ended_run = from_bytes(&value.unwrap_or_default());
        let run: types::run_key = from_bytes(&key);
        Self {
            node: address(run.node),
            since_ns: value.since_ns,
            key,
        }
    }
}

/// The `excess` runs that make room: the oldest ones of the nodes that have the most. A node that
/// begins and ends runs without end makes room by its own.
fn surplus(mut runs: Vec<EndedRun>, excess: usize) -> Vec<EndedRun> {
    // Newest first, so that the oldest runs of a node have the greatest numbers.
    runs.sort_unstable_by_key(|run| Reverse(run.since_ns));
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    let numbered = runs.into_iter().map(|run| {
        let number = counts.entry(run.node).or_default();
        *number += 1;
        (*number, run)
    });
    let mut numbered: Vec<(usize, EndedRun)> = numbered.collect();
    numbered.sort_by_key(|(number, _)| Reverse(*number));
    numbered.truncate(excess);
    numbered.into_iter().map(|(_, run)| run).collect()
}

fn delete(maps: &SwitchMaps<'_>, key: &[u8]) -> libbpf_rs::Result<()> {
    match maps.ended_runs.delete(key) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn key(node: IpAddr, run: RunId) -> types::run_key {
    types::run_key {
        node: ip_addr(node),
        run: run.0.to_be(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_with_the_most_ended_runs_makes_room() {
        let run = |node: u8, since_ns: u64| EndedRun {
            node: [node; 4].into(),
            since_ns,
            key: vec![node, since_ns as u8],
        };
        let runs = || {
            let churner = (10..20).map(|since| run(1, since));
            churner.chain([run(2, 1), run(3, 2)]).collect::<Vec<_>>()
        };
        let keys = |excess| -> Vec<Vec<u8>> {
            let surplus = surplus(runs(), excess);
            surplus.into_iter().map(|run| run.key).collect()
        };
        assert_eq!(keys(0), Vec::<Vec<u8>>::new());
        assert_eq!(keys(3), [vec![1, 10], vec![1, 11], vec![1, 12]]);
        assert_eq!(
            keys(9),
            (10..19).map(|since| vec![1, since]).collect::<Vec<_>>()
        );
        assert_eq!(keys(99).len(), runs().len());
    }
}
