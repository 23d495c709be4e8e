//! `prism-lab bench handoff`: what a hand-off costs, step by step, as in Table 1 of
//! NSDI'21, over real nodes in a lab.
//!
//! One client fetches two small objects of different backends in turn over one
//! keep-alive connection, so that each request moves it: from backend to backend
//! (direct), or over the frontend (return). Nodes note when each step happened;
//! all processes of one machine share the monotonic clock.

mod awake;
mod load;
mod steps;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use prism_config::{HandOffMethod, HandOffMode, RelayUpTo};
use prism_lab::{Lab, LabName, LabSpec};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use load::Load;
use steps::Cycle;

pub(crate) use steps::Stats;

/// Requests of one warm-up, and how many there may be.
const WARM_UP: usize = 200;
const MAX_WARM_UPS: usize = 50;
const WARM_UP_PAUSE: Duration = Duration::from_millis(100);

/// Measure hand-offs: each step's p50, p99 and standard deviation.
///
/// Builds a lab of one frontend and two backends for each mode. `direct` is a
/// hand-off from backend to backend; `return` is a full cycle as in the paper: a
/// backend gives the connection back to the frontend, which reads the request and
/// passes the connection on to another backend. Needs root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Hand-offs (direct) or cycles (return) per mode.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    count: usize,
    /// Over TLS 1.3 with AES-128-GCM: the sessions move too.
    #[arg(long)]
    tls: bool,
    /// Stop a connection's packets at the switch instead of at its socket
    /// (`service.hand_off_method = "two-phase"`).
    #[arg(long)]
    two_phase: bool,
    /// The core that all hosts of the lab run on.
    #[arg(
        long,
        value_name = "CORE",
        default_value_t = 0,
        conflicts_with = "spread"
    )]
    core: usize,
    /// Let the scheduler spread the hosts over all cores. A message between two of
    /// them then often waits for a core to wake, which on a virtual machine takes
    /// as long as half a hand-off, and is not a part of it.
    #[arg(long)]
    spread: bool,
    /// Let cores that have nothing to do sleep. Otherwise they are kept awake while
    /// this runs (`/dev/cpu_dma_latency` held at 0), as on a host that is tuned for
    /// latency; waking a virtual core takes as long as half a hand-off.
    #[arg(long)]
    sleepy: bool,
    /// The program `prism` to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    prism: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn method(&self) -> HandOffMethod {
        match self.two_phase {
            true => HandOffMethod::TwoPhase,
            false => HandOffMethod::Freeze,
        }
    }
}

/// The whole result.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    cpus: usize,
    method: HandOffMethod,
    /// All hosts ran on this one.
    core: Option<usize>,
    /// Cores with nothing to do were kept from sleeping.
    awake: bool,
    modes: Vec<Mode>,
}

/// One mode's result.
#[derive(Debug, Serialize)]
struct Mode {
    mode: &'static str,
    tls: bool,
    count: usize,
    total_us: Stats,
    /// A whole request, answer included, as the client sees it.
    request_us: Stats,
    steps: Vec<StepStats>,
}

#[derive(Debug, Serialize)]
struct StepStats {
    name: String,
    #[serde(flatten)]
    stats: Stats,
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.count > 0 && args.count <= 60_000,
        "--count must be 1 to 60,000"
    );
    let prism = prism_lab::prism_program(args.prism.as_deref())?;
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let core = (!args.spread).then_some(args.core);
    if let Some(core) = core {
        let mut only = CpuSet::new();
        ensure!(core < CpuSet::MAX_CPU, "there is no core {core}");
        only.set(core);
        sched_setaffinity(None, &only).with_context(|| format!("using core {core} only"))?;
    }
    let awake = match args.sleepy {
        true => None,
        false => awake::hold(),
    };
    let modes = [HandOffMode::Direct, HandOffMode::Return]
        .into_iter()
        .map(|mode| measure(args, mode, prism.clone()))
        .collect::<Result<Vec<_>>>()?;
    let report = Report {
        kernel: crate::switch::kernel_release(),
        cpus,
        method: args.method(),
        core,
        awake: awake.is_some(),
        modes,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print_table(&report);
    }
    Ok(())
}

fn measure(args: &Args, mode: HandOffMode, prism: PathBuf) -> Result<Mode> {
    let name: LabName = format!("bench-{}", std::process::id()).parse()?;
    let method = args.method();
    let mut spec = LabSpec::new(name, prism).configure(move |config| {
        config.service.hand_off = mode;
        config.service.hand_off_method = method;
        config.log.level = "warn".into();
    });
    spec.backends = 2;
    spec.tls = args.tls;
    spec.relay_up_to = RelayUpTo::Bytes(0);
    let lab = Lab::up(spec)?;
    let cycles = load_and_trace(args, &lab, mode);
    lab.down()?;
    let (cycles, requests_us) = cycles?;
    let label = match mode {
        HandOffMode::Direct => "direct",
        HandOffMode::Return => "return",
    };
    let total: Vec<f64> = cycles.iter().map(Cycle::total_us).collect();
    let names: Vec<&String> = cycles
        .first()
        .map(|c| c.steps.iter().map(|s| &s.0).collect())
        .unwrap_or_default();
    let steps = names.into_iter().enumerate().map(|(n, name)| {
        let of_step = cycles.iter().filter_map(|c| c.steps.get(n).map(|s| s.1));
        StepStats {
            name: name.clone(),
            stats: Stats::of(of_step.collect()),
        }
    });
    Ok(Mode {
        mode: label,
        tls: args.tls,
        count: cycles.len(),
        total_us: Stats::of(total),
        request_us: Stats::of(requests_us),
        steps: steps.collect(),
    })
}

fn load_and_trace(args: &Args, lab: &Lab, mode: HandOffMode) -> Result<(Vec<Cycle>, Vec<f64>)> {
    let load = Load::prepare(lab)?;
    warm_up(lab, &load)?;
    let nodes = ["fe0", "be0", "be1"];
    for node in nodes {
        lab.ask(node, "trace on")?;
    }
    // The first request of the connection is handed over by the frontend, as all
    // are that are not to be measured here.
    let requests_us = load.alternate(args.count + 1)?;
    let mut records = Vec::new();
    for node in nodes {
        records.extend(steps::parse(&lab.ask(node, "trace take")?)?);
    }
    let cycles = steps::cycles(records, mode == HandOffMode::Return);
    ensure!(
        cycles.len() * 100 >= args.count * 99,
        "only {} of {} hand-offs happened; the others were relayed",
        cycles.len(),
        args.count
    );
    Ok((cycles, requests_us))
}

/// Until connections move: a node relays until it has heard from the switch.
fn warm_up(lab: &Lab, load: &Load) -> Result<()> {
    for _ in 0..MAX_WARM_UPS {
        load.alternate(WARM_UP)?;
        let counters = lab.admin("be0")?;
        let moved = counters.pointer("/handoff/exports_moved");
        if moved
            .and_then(serde_json::Value::as_u64)
            .is_some_and(|n| n > 0)
        {
            load.alternate(WARM_UP)?;
            // What the closed connections leave behind is over.
            std::thread::sleep(4 * WARM_UP_PAUSE);
            return Ok(());
        }
        std::thread::sleep(WARM_UP_PAUSE);
    }
    bail!("no connection was handed off; see the nodes' logs (`prism-lab status`)")
}

fn print_table(report: &Report) {
    let Report { kernel, cpus, .. } = report;
    let is_tls = report.modes.iter().any(|mode| mode.tls);
    let scheme = if is_tls { "HTTPS" } else { "HTTP" };
    let place = match report.core {
        Some(core) => format!("core {core} of this machine"),
        None => "this machine".into(),
    };
    let method = match report.method {
        HandOffMethod::Freeze => "freeze",
        HandOffMethod::TwoPhase => "two-phase",
    };
    let idle = match report.awake {
        true => "kept awake",
        false => "asleep when idle",
    };
    println!(
        "Linux {kernel}, {cpus} CPUs ({idle}), {method}, one {scheme} connection, \
         all hosts on {place}\n"
    );
    for mode in &report.modes {
        println!("{}: {} measured, µs", mode.mode, mode.count);
        println!("  {:<29} {:>9} {:>9} {:>9}", "step", "p50", "p99", "stddev");
        let total = [
            ("total".to_owned(), &mode.total_us),
            ("(request, seen by the client)".to_owned(), &mode.request_us),
        ];
        let steps = mode.steps.iter().map(|s| (s.name.clone(), &s.stats));
        for (name, stats) in steps.chain(total) {
            let Stats { p50, p99, stddev } = stats;
            println!("  {name:<29} {p50:>9.1} {p99:>9.1} {stddev:>9.1}");
        }
        println!();
    }
}
