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
use prism_config::{HandOffMethod, HandOffMode, RelayUpTo};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::bed::{Bed, BedSpec, System};
use crate::network::{Addresses, Network};
use crate::objects::Objects;
use crate::rows::{Case, Row, Turn};
use crate::stats::{Stats, named};
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
    /// Print JSON with every row instead of a table.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn method(&self) -> HandOffMethod {
        if self.two_phase {
            HandOffMethod::TwoPhase
        } else {
            HandOffMethod::Freeze
        }
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.count > 0 && args.count <= 60_000,
        "--count must be 1 to 60,000"
    );
    let core = (!args.spread).then_some(args.core);
    if let Some(core) = core {
        let mut only = CpuSet::new();
        ensure!(core < CpuSet::MAX_CPU, "there is no core {core}");
        only.set(core);
        sched_setaffinity(None, &only).with_context(|| format!("using core {core} only"))?;
    }
    let awake = if args.sleepy { None } else { awake::hold() };
    let mut rows = Vec::new();
    for (mode, name) in [
        (HandOffMode::Direct, "direct"),
        (HandOffMode::Return, "return"),
    ] {
        let network = Network::unshaped(2, args.tls)?.with(args.addresses);
        let method = if args.two_phase {
            "two-phase"
        } else {
            "freeze"
        };
        let case = network
            .case()
            .without("backends")
            .with("method", method)
            .with("core", core)
            .with("awake", awake.is_some())
            .with("mode", name);
        rows.extend(measure(args, &network, mode, &case)?);
    }
    SUMMARY.tell(&rows, args.json)
}

/// The rows of a mode: one for each step.
fn measure(args: &Args, network: &Network, mode: HandOffMode, case: &Case) -> Result<Vec<Row>> {
    let method = args.method();
    let spec = BedSpec {
        program: args.prism.as_deref(),
        // Every connection is handed off, and nodes answer nobody about themselves.
        relay_up_to: RelayUpTo::Bytes(0),
        configure: Arc::new(move |config| {
            config.service.first_mut().hand_off = mode;
            config.service.first_mut().hand_off_method = method;
            config.admin.listen = None;
            config.admin.switch_listen = None;
        }),
        ..BedSpec::new(&[System::Prism])
    };
    let bed = Bed::up(network, &spec, Arc::default())?;
    let HandOffTimes {
        cycles,
        requests_us,
    } = load_and_trace(args, &bed, mode)?;
    let row = |step: &str, times_us: Vec<f64>| {
        let stats = Stats::of(times_us);
        Row {
            turn: Turn {
                result: SUMMARY.result.to_owned(),
                case: case.clone().with("step", step),
                system: "prism".to_owned(),
                round: 0,
            },
            values: named([
                ("p50_us", stats.p50),
                ("p99_us", stats.p99),
                ("stddev_us", stats.stddev),
            ]),
        }
    };
    let steps = cycles.first().map_or(&[][..], |cycle| &cycle.steps);
    let rows = steps.iter().enumerate().map(|(n, (name, _))| {
        let of_step = cycles.iter().filter_map(|c| c.steps.get(n));
        row(name, of_step.map(|(_, us)| *us).collect())
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.push(row("total", cycles.iter().map(Cycle::total_us).collect()));
    // A request until its answer was read, measured by the client.
    rows.push(row("request", requests_us));
    Ok(rows)
}

/// The hand-offs of a mode, and the times of the requests that caused them.
struct HandOffTimes {
    cycles: Vec<Cycle>,
    requests_us: Vec<f64>,
}

fn load_and_trace(args: &Args, bed: &Bed<'_>, mode: HandOffMode) -> Result<HandOffTimes> {
    let objects = Objects::new(2, 1, OBJECT_BYTES)?;
    let load = Load::prepare(bed, &objects)?;
    warm_up(bed, &load)?;
    trace::start(bed)?;
    // The frontend hands the connection off at its first request, which does not count.
    let requests_us = load.alternate(args.count + 1)?;
    let cycles = steps::cycles(trace::take(bed)?, mode == HandOffMode::Return);
    ensure!(
        cycles.len() * 100 >= args.count * 99,
        "only {} of {} hand-offs happened; the others were relayed",
        cycles.len(),
        args.count
    );
    Ok(HandOffTimes {
        cycles,
        requests_us,
    })
}

/// Sends requests until connections move. Nodes relay until the switch has answered them.
fn warm_up(bed: &Bed<'_>, load: &Load<'_>) -> Result<()> {
    for _ in 0..MAX_WARM_UPS {
        load.alternate(WARM_UP)?;
        if bed.moves_of("be0")? > 0 {
            load.alternate(WARM_UP)?;
            // The nodes are done with the closed connections.
            std::thread::sleep(4 * WARM_UP_PAUSE);
            return Ok(());
        }
        std::thread::sleep(WARM_UP_PAUSE);
    }
    bail!("no connection was handed off; see the nodes' logs (`prism-lab status`)")
}
