//! The table of ended runs, whose flows the programs end.
//!
//! If its map is full, the oldest entry makes room. The flows of that run then age like others.

use std::mem::{offset_of, size_of};
use std::net::IpAddr;
use std::time::Duration;

use libbpf_rs::{ErrorKind, MapCore, MapFlags};
use prism_proto::control::RunId;
use prism_sys::clock::monotonic_ns;

use crate::layout::{Block, nanos, u64_at};
use crate::leases::{Change, RunEnd};
use crate::skel::{SwitchMaps, types};

const KEY_BYTES: usize = size_of::<types::run_key>();
const VALUE_BYTES: usize = size_of::<types::ended_run>();
/// The time for which an ended run is remembered. Its kernel has closed all its sockets by then
/// (TIME_WAIT 60 s, orphans some 100 s).
const REMEMBERED: Duration = Duration::from_mins(10);

/// Writes a change to the table, and removes old entries.
pub(crate) fn note(maps: &SwitchMaps<'_>, change: &Change) -> libbpf_rs::Result<()> {
    match change {
        Change::Returned { node, run } => delete(maps, &key(*node, *run)),
        Change::Ended { node, run, end } => {
            make_room(maps)?;
            let end = match end {
                RunEnd::Died => types::run_end::RUN_DIED,
                RunEnd::Left => types::run_end::RUN_LEFT,
            };
            let value = Block::<VALUE_BYTES>::new()
                .put_u64(offset_of!(types::ended_run, since_ns), monotonic_ns())
                .put_u32(offset_of!(types::ended_run, end), end.0);
            maps.ended_runs
                .update(&key(*node, *run), &value.bytes(), MapFlags::ANY)
        }
    }
}

/// Removes old entries, and the oldest one if the table is full.
fn make_room(maps: &SwitchMaps<'_>) -> libbpf_rs::Result<()> {
    let now = monotonic_ns();
    let since = |key: &Vec<u8>| {
        let value = maps.ended_runs.lookup(key, MapFlags::ANY).ok().flatten();
        u64_at(
            &value.unwrap_or_default(),
            offset_of!(types::ended_run, since_ns),
        )
    };
    let mut left: Vec<_> = maps
        .ended_runs
        .keys()
        .map(|key| (since(&key), key))
        .collect();
    left.sort_unstable();
    let full = left.len() >= usize::try_from(maps.ended_runs.max_entries()).unwrap_or(usize::MAX);
    for (n, (since, key)) in left.iter().enumerate() {
        let is_old = now.saturating_sub(*since) > nanos(REMEMBERED);
        if is_old || (full && n == 0) {
            delete(maps, key)?;
        }
    }
    Ok(())
}

fn delete(maps: &SwitchMaps<'_>, key: &[u8]) -> libbpf_rs::Result<()> {
    match maps.ended_runs.delete(key) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn key(node: IpAddr, run: RunId) -> [u8; KEY_BYTES] {
    Block::new()
        .put_ip(offset_of!(types::run_key, node), node)
        .put_port(offset_of!(types::run_key, run), run.0)
        .bytes()
}
