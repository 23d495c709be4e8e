//! `prism ctl take-over`: has a node of this host start its successor.

use std::io::Write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prism_config::admin_sockets;
use prism_process::ask;
use serde::Deserialize;
use serde_json::json;

use crate::reach::{Common, print_json};

/// The longest wait. A node with a store lets its answers end first.
const TAKEN_OVER_IN: Duration = Duration::from_secs(600);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Replace the process of a node on this host by a new one: another version of the
/// program, another configuration.
///
/// The node starts its program again, with the same arguments. The new process gets the
/// listeners and the clients' connections: none is refused or cut. The old process then
/// ends. If the new process fails, the old one goes on.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TakeOverArgs {
    /// Name of the node.
    name: String,
}

/// A node's answer.
#[derive(Deserialize)]
struct Started {
    pid: u32,
}

/// The process that answers for a node.
#[derive(Deserialize)]
struct Counters {
    pid: u32,
}

pub(crate) fn run(
    args: &TakeOverArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let name = &args.name;
    // A frontend has one socket for each service, and any of them starts the successor of all.
    let sockets = admin_sockets(&common.parts()?, name)?;
    let first = sockets.first().context("the node serves nothing")?;
    let (Started { pid }, _) = ask(first, "start-successor")?;
    if !common.json {
        writeln!(out, "{name}: process {pid} takes over")?;
        out.flush()?;
    }
    let begun = Instant::now();
    while begun.elapsed() < TAKEN_OVER_IN {
        // Nobody answers while one process follows the other.
        let serves = |socket: &PathBuf| {
            let answers = ask::<Counters>(socket, "counters");
            answers.is_ok_and(|(answers, _)| answers.pid == pid)
        };
        if sockets.iter().all(serves) {
            return if common.json {
                print_json(out, &json!({ "node": name, "pid": pid }))
            } else {
                Ok(writeln!(out, "{name}: process {pid} serves")?)
            };
        }
        if !is_alive(pid) {
            bail!(
                "process {pid} has failed, and the former one goes on; the node's log has the reason"
            );
        }
        sleep(LOOK_EVERY);
    }
    bail!("process {pid} does not serve yet; the node's log has the reason")
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}
