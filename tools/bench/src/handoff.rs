//! `prism-lab bench handoff`: the steps of a hand-off, as in Table 1 of NSDI'21, between
//! the nodes of a lab.
//!
//! One client fetches two small objects of different backends alternately over one connection,
//! so each request moves it: from backend to backend (direct), or over the frontend (return).
//! Nodes record the time of each step; all processes share the monotonic clock.

mod awake;
mod load;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use prism_config::{Config, HandOffMethod, HandOffMode};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use crate::cluster::{Cluster, System};
use crate::network::{Addresses, Network};
use crate::objects::Objects;
use crate::observed::{unwatched, watched};
use crate::plan::Kind;
use crate::stats::Stats;
use crate::summary::{Summary, column};
use crate::trace;
use load::Load;
use steps::Cycle;

/// Bytes of both objects.
const OBJECT_BYTES: u64 = 8;
/// Requests of one warm-up, and most warm-ups.
const WARM_UP: usize = 200;
const MAX_WARM_UPS: usize = 50;
const WARM_UP_PAUSE: Duration = Duration::from_millis(100);

pub(crate) const SUMMARY: Summary = Summary {
    result: "handoff",
    title: "Steps, in µs",
    columns: &[
        column("p50", "p50_us", 1.0, 1),
        column("p99", "p99_us", 1.0, 1),
        column("stddev", "stddev_us", 1.0, 1),
    ],
    comparisons: &[],
};

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
    #[command(flatten)]
    addresses: Addresses,
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
    /// With an access log and an open page, as in `prism-lab bench observed`.
    #[arg(long)]
    observed: bool,
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
    /// The family of all addresses.
    family: String,
    method: HandOffMethod,
    /// The core of all hosts, if they shared one.
    core: Option<usize>,
    /// Idle cores were kept from sleeping.
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
    /// A request until its answer was read, measured by the client.
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
        .map(|mode| measure(args, mode))
        .collect::<Result<Vec<_>>>()?;
    let report = Report {
        kernel: crate::switch::kernel_release(),
        cpus,
        family: args.addresses.family.to_string(),
        method: args.method(),
        core,
        awake: awake.is_some(),
        modes,
    };
    crate::report::tell(&SUMMARY, &report, args.json)
}

/// The change of the configuration for a mode and a method.
fn configure<const OBSERVED: bool>(mode: HandOffMode, method: HandOffMethod) -> fn(&mut Config) {
    use HandOffMethod::{Freeze, TwoPhase};
    use HandOffMode::{Direct, Return};
    match (mode, method) {
        (Direct, Freeze) => |config| set::<OBSERVED>(config, Direct, Freeze),
        (Direct, TwoPhase) => |config| set::<OBSERVED>(config, Direct, TwoPhase),
        (Return, Freeze) => |config| set::<OBSERVED>(config, Return, Freeze),
        (Return, TwoPhase) => |config| set::<OBSERVED>(config, Return, TwoPhase),
    }
}

fn set<const OBSERVED: bool>(config: &mut Config, mode: HandOffMode, method: HandOffMethod) {
    config.service.hand_off = mode;
    config.service.hand_off_method = method;
    match OBSERVED {
        true => watched(config),
        false => unwatched(config),
    }
}

fn measure(args: &Args, mode: HandOffMode) -> Result<Mode> {
    let network = Network::unshaped(2, args.tls)?.with(args.addresses);
    let kind = Kind {
        program: args.prism.as_deref(),
        configure: match args.observed {
            true => configure::<true>(mode, args.method()),
            false => configure::<false>(mode, args.method()),
        },
        ..Kind::moving(&[System::Prism])
    };
    let cluster = Cluster::up(&network, &kind, Arc::default())?;
    let page = args.observed.then(|| cluster.open_page()).transpose()?;
    let Measured {
        cycles,
        requests_us,
    } = load_and_trace(args, &cluster, mode)?;
    drop(page);
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

/// The hand-offs of a mode, and the times of the requests that caused them.
struct Measured {
    cycles: Vec<Cycle>,
    requests_us: Vec<f64>,
}

fn load_and_trace(args: &Args, cluster: &Cluster, mode: HandOffMode) -> Result<Measured> {
    let objects = Objects::new(2, 1, OBJECT_BYTES)?;
    let load = Load::prepare(cluster, &objects)?;
    warm_up(cluster, &load)?;
    trace::start(cluster)?;
    // The frontend hands the connection off at its first request, which does not count.
    let requests_us = load.alternate(args.count + 1)?;
    let cycles = steps::cycles(trace::take(cluster)?, mode == HandOffMode::Return);
    ensure!(
        cycles.len() * 100 >= args.count * 99,
        "only {} of {} hand-offs happened; the others were relayed",
        cycles.len(),
        args.count
    );
    Ok(Measured {
        cycles,
        requests_us,
    })
}

/// Sends requests until connections move. Nodes relay until the switch has answered them.
fn warm_up(cluster: &Cluster, load: &Load<'_>) -> Result<()> {
    for _ in 0..MAX_WARM_UPS {
        load.alternate(WARM_UP)?;
        if cluster.moves_of("be0")? > 0 {
            load.alternate(WARM_UP)?;
            // The nodes are done with the closed connections.
            std::thread::sleep(4 * WARM_UP_PAUSE);
            return Ok(());
        }
        std::thread::sleep(WARM_UP_PAUSE);
    }
    bail!("no connection was handed off; see the nodes' logs (`prism-lab status`)")
}
