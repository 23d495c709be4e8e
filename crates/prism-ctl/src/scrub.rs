//! `prism ctl scrub`: makes backends of this host compare everything in their stores with
//! its checksums, and prints the faults.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use prism_process::ask;
use serde::Deserialize;
use serde_json::Value;

use crate::progress::{Pace, Progress};
use crate::reach::{Common, print_json};
use crate::table::bytes;

/// Time between two questions for the progress.
const POLL: Duration = Duration::from_millis(200);
/// A scrub that is over within this time shows no progress.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// Compare everything in the stores of this host's backends with its checksums.
///
/// Prints bytes that differ from what was written. Exits with status 1 if there are any.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ScrubArgs {
    /// Scrub this backend; may be repeated. Default: all backends that run on this host.
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,
    /// Use this admin socket instead, such as that of `prism serve`.
    #[arg(long, value_name = "PATH", conflicts_with = "node")]
    socket: Option<PathBuf>,
    /// Most bytes per second that each backend reads; 0 for no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    rate: u64,
}

/// The fields of a node's counters that are looked at.
#[derive(Deserialize)]
struct Counters {
    store: Option<StoreCounters>,
}

#[derive(Deserialize)]
struct StoreCounters {
    bytes_used: u64,
}

/// A node's answer to `scrub start`.
#[derive(Deserialize)]
struct Begun {
    run: u64,
}

/// The fields of a node's answer to `scrub status` that are looked at: the present or last run.
#[derive(Deserialize)]
struct ScrubStatus {
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
    faults: Vec<ScrubFault>,
}

/// Damage of an object (bucket, key) or of the store itself (path).
#[derive(Deserialize)]
struct ScrubFault {
    bucket: Option<String>,
    key: Option<String>,
    path: Option<String>,
    /// The upload in progress that the part belongs to.
    upload: Option<String>,
    part: Option<u16>,
    offset: Option<u64>,
    what: String,
}

pub(crate) fn run(args: &ScrubArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let sockets = sockets(args, common)?;
    let begin = |socket: &PathBuf| ask(socket, &format!("scrub start {}", args.rate));
    let begun: Result<Vec<(Begun, _)>, _> = sockets.iter().map(begin).collect();
    let begun = sockets.iter().zip(begun?);
    let ended = begun.map(|(socket, (begun, _))| finish(socket, begun.run));
    let ended: anyhow::Result<Vec<(ScrubStatus, Value)>> = ended.collect();
    let (found, documents): (Vec<_>, Vec<_>) = ended?.into_iter().unzip();
    if common.json {
        print_json(out, &documents)?;
    } else {
        for status in &found {
            print(status, out)?;
        }
    }
    let faults: u64 = found.iter().map(|status| status.fault_count).sum();
    let broken = found.iter().any(|status| !status.complete);
    match (faults, broken) {
        (0, false) => Ok(()),
        (0, true) => bail!("a scrub broke off before its end"),
        (faults, _) => bail!("found {faults} faults"),
    }
}

fn sockets(args: &ScrubArgs, common: &Common) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(socket) = &args.socket {
        if common.names_file() {
            bail!("--socket names the process already; remove --config");
        }
        return Ok(vec![socket.clone()]);
    }
    let config = common.load_objects()?;
    let mut sockets = Vec::new();
    for name in &args.node {
        if !config.known_node(name)?.is_backend() {
            bail!("{name} is not a backend, so it has no store");
        }
        sockets.push(config.admin_socket(name));
    }
    if args.node.is_empty() {
        let all = config.backends();
        let all = all.map(|node| config.admin_socket(&node.name));
        sockets.extend(all.filter(|socket| socket.exists()));
    }
    if sockets.is_empty() {
        bail!(
            "no backend of {} runs on this host; run this on the host of one, or start it",
            config.shown_file()
        );
    }
    Ok(sockets)
}

/// Waits for the end of a run, and shows its progress.
fn finish(socket: &Path, run: u64) -> anyhow::Result<(ScrubStatus, Value)> {
    let mut shown = Progress::new();
    let mut pace = Pace::default();
    // A scrub reads a little more than the objects: the files of the tree, too.
    let (counters, _): (Counters, _) = ask(socket, "counters")?;
    let all = counters.store.map_or(0, |store| store.bytes_used);
    let begun = Instant::now();
    loop {
        let (status, document): (ScrubStatus, _) = ask(socket, "scrub status")?;
        if status.run >= run && !status.running {
            return Ok((status, document));
        }
        pace.note(Instant::now(), status.bytes);
        if begun.elapsed() >= SHOW_AFTER {
            let rate = pace
                .rate()
                .map_or_else(String::new, |rate| format!(", {}/s", bytes(rate)));
            let read = bytes(status.bytes as f64);
            let all_shown = bytes(all as f64);
            let left = pace.left(all);
            let details = format!(" {read} of about {all_shown} read{rate}{left}");
            shown.show(&format!("{}:", status.node), &details);
        }
        thread::sleep(POLL);
    }
}

fn print(status: &ScrubStatus, out: &mut impl Write) -> std::io::Result<()> {
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
        let part = part.unwrap_or_default();
        let offset = offset.unwrap_or_default();
        writeln!(out, "  {place}{part}{offset}: {}", fault.what)?;
    }
    Ok(())
}
