//! CPU time of processes, from `/proc`.

use std::fs;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Unit of CPU times in `/proc`: USER_HZ is 100 on all supported machines.
const TICK: Duration = Duration::from_millis(10);

/// A process that is killed when this is dropped, with its children.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills it, if it still runs.
    pub(crate) fn end(&mut self) {
        // Children first: nginx's workers outlive a master that is killed.
        let pids = family(self.id()).into_iter().rev();
        let pids = pids.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        for pid in pids {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process and its children.
fn family(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace();
    std::iter::once(pid)
        .chain(children.filter_map(|pid| pid.parse().ok()))
        .collect()
}

/// User and system time of a process and its children so far.
pub(crate) fn cpu_of_family(pid: u32) -> Result<Duration> {
    family(pid).into_iter().map(cpu_of).sum()
}

/// User and system time of this process and its children that have ended.
pub(crate) fn cpu_of_client() -> Result<Duration> {
    ticks(&fs::read_to_string("/proc/self/stat")?, 4)
}

/// User and system time of one process.
fn cpu_of(pid: u32) -> Result<Duration> {
    ticks(&fs::read_to_string(format!("/proc/{pid}/stat"))?, 2)
}

/// Fields 14 and 15 of a `stat`, in ticks; with 4, those of ended children too.
fn ticks(stat: &str, fields: usize) -> Result<Duration> {
    let (_, rest) = stat.rsplit_once(')').context("stat of a process")?;
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(fields)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(TICK * u32::try_from(ticks).unwrap_or(u32::MAX))
}
