//! `prism ctl scrub`: makes backends of this host compare everything in their stores with
//! its checksums, and prints the faults.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use prism_config::Config;
use serde::{Deserialize, Serialize};

use super::ask;

/// Time between two questions for the progress.
const POLL: Duration = Duration::from_millis(200);

/// Compare everything in the stores of this host's backends with its checksums.
///
/// Prints bytes that differ from what was written. Exits with status 1 if there are any.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ScrubArgs {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/prism/prism.toml")]
    config: PathBuf,
    /// Scrub this backend; may be repeated. Default: all backends that run on this host.
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,
    /// Use this admin socket instead, such as that of `prism serve`.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["config", "node"])]
    socket: Option<PathBuf>,
    /// Most bytes per second that each backend reads; 0 for no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    rate: u64,
    /// Print a JSON array with an object for each backend.
    #[arg(long)]
    json: bool,
}

/// A node's answer to `scrub start`.
#[derive(Deserialize)]
struct Begun {
    run: u64,
}

/// A node's answer to `scrub status`: the present or last run.
#[derive(Serialize, Deserialize)]
struct Status {
    node: String,
    run: u64,
    running: bool,
    started_ms: u64,
    finished_ms: Option<u64>,
    complete: bool,
    error: Option<String>,
    objects: u64,
    files: u64,
    bytes: u64,
    fault_count: u64,
    faults: Vec<Fault>,
}

/// Damage of an object (bucket, key) or of the store itself (path).
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The upload in progress that the part belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    upload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<u16>,
    offset: Option<u64>,
    what: String,
}

pub(super) fn run(args: &ScrubArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let sockets = sockets(args)?;
    let runs: Result<Vec<_>, _> = sockets
        .iter()
        .map(|socket| begin(socket, args.rate))
        .collect();
    let mut found = Vec::new();
    for (socket, run) in sockets.iter().zip(runs?) {
        found.push(finish(socket, run)?);
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?;
    } else {
        for status in &found {
            print(status, out)?;
        }
    }
    out.flush()?;
    let faults: u64 = found.iter().map(|status| status.fault_count).sum();
    let broken = found.iter().any(|status| !status.complete);
    match (faults, broken) {
        (0, false) => Ok(()),
        (0, true) => bail!("a scrub broke off before its end"),
        (faults, _) => bail!("found {faults} faults"),
    }
}

fn sockets(args: &ScrubArgs) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(socket) = &args.socket {
        return Ok(vec![socket.clone()]);
    }
    let config = Config::load(&args.config)?;
    let mut sockets = Vec::new();
    for node in &args.node {
        let known = config
            .node(node)
            .with_context(|| format!("the configuration has no node {node:?}"))?;
        if !known.is_backend() {
            bail!("{node} is not a backend, so it has no store");
        }
        sockets.push(config.admin_socket(node));
    }
    if args.node.is_empty() {
        let all = config
            .backends()
            .map(|node| config.admin_socket(&node.name));
        sockets.extend(all.filter(|socket| socket.exists()));
    }
    if sockets.is_empty() {
        bail!("no backend of {} runs on this host", args.config.display());
    }
    Ok(sockets)
}

fn begin(socket: &Path, rate: u64) -> anyhow::Result<u64> {
    let begun: Begun = ask(socket, &format!("scrub start {rate}"))?;
    Ok(begun.run)
}

/// Waits for the end of a run.
fn finish(socket: &Path, run: u64) -> anyhow::Result<Status> {
    loop {
        let status: Status = ask(socket, "scrub status")?;
        if status.run >= run && !status.running {
            return Ok(status);
        }
        thread::sleep(POLL);
    }
}

fn print(status: &Status, out: &mut impl Write) -> std::io::Result<()> {
    let took_ms = status
        .finished_ms
        .unwrap_or(0)
        .saturating_sub(status.started_ms);
    writeln!(
        out,
        "{}: {} faults; {} objects, {} files, {} bytes read in {:.1} s",
        status.node,
        status.fault_count,
        status.objects,
        status.files,
        status.bytes,
        took_ms as f64 / 1e3,
    )?;
    if let Some(error) = &status.error {
        writeln!(out, "  broken off: {error}")?;
    }
    for fault in &status.faults {
        let place = match (&fault.bucket, &fault.key) {
            (Some(bucket), Some(key)) => format!("{bucket}/{key}"),
            _ => fault.path.clone().unwrap_or_default(),
        };
        let part = fault.part.map(|part| match &fault.upload {
            Some(upload) => format!(" upload {upload} part {part}"),
            None => format!(" part {part}"),
        });
        let offset = fault.offset.map(|at| format!(" at {at}"));
        let (part, offset) = (part.unwrap_or_default(), offset.unwrap_or_default());
        writeln!(out, "  {place}{part}{offset}: {}", fault.what)?;
    }
    Ok(())
}
