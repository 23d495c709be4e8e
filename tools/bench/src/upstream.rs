//! `prism-lab bench upstream` and `hostmode`: unmodified HTTP servers at each backend, behind
//! Prism and behind nginx and HAProxy. *Direct* clients ask the servers themselves: the limit.

use std::path::PathBuf;

use anyhow::Result;
use prism_lab::Mode;

use crate::bed::BedSpec;
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{ComparisonPlan, Contestant, Size};
use crate::rows::Case;
use crate::servers::{ServerKind, Servers};
use crate::summary::{Column, Comparison, Summary, column};
use crate::sweep::{OBJECTS, PRISM_OVER_OTHERS, SYSTEMS};
use crate::turns::{Options, Turns};

pub(crate) const COLUMNS: &[Column] = &[
    column("MB/s", "mb_s", 1.0, 1),
    column("requests/s", "requests_s", 1.0, 0),
    column("p50 ms", "p50_us", 1e3, 2),
    column("p99 ms", "p99_us", 1e3, 2),
    column("CPU µs", "cpu_us", 1.0, 1),
    column("front µs", "frontend_cpu_us", 1.0, 1),
    column("link", "frontend_link", 1.0, 3),
];
const COMPARISON: Comparison = Comparison {
    values: &[
        ("throughput", "mb_s"),
        ("p50", "p50_us"),
        ("p99", "p99_us"),
        ("CPU", "cpu_us"),
        ("front's CPU", "frontend_cpu_us"),
    ],
    ..PRISM_OVER_OTHERS
};

pub(crate) const SUMMARY: Summary = Summary {
    result: "upstream",
    title: "GETs from unmodified servers, medians of the rounds. CPU is that of frontend, \
            backends and servers for one request; link is the bytes on the frontend's link for \
            each byte that clients read",
    columns: COLUMNS,
    comparisons: &[COMPARISON],
};

pub(crate) const SUMMARY_HOST: Summary = Summary {
    result: "hostmode",
    ..SUMMARY
};

/// Measure unmodified HTTP servers behind Prism, nginx and HAProxy.
///
/// The same server runs at each backend: nginx with files, an application in Go, or versitygw.
/// Needs root, `wrk`, `nginx`, `haproxy` and `go` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Servers.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "nginx,go,versitygw",
        value_name = "SERVER,..."
    )]
    servers: Vec<ServerKind>,
    /// The program versitygw, which `scripts/rivals/build.sh` builds.
    #[arg(long, value_name = "PATH")]
    versitygw: Option<PathBuf>,
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        default_value = "64,1K,4K,16K,64K,256K,1M,4M",
        value_name = "SIZE,...",
        conflicts_with = "quick"
    )]
    sizes: Sizes,
    #[command(flatten)]
    network: Network,
    /// Connections of the client, over all its threads.
    #[arg(long, default_value_t = 100, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

/// Runs the benchmark with a switch.
pub(crate) fn run(args: Args) -> Result<()> {
    measure(args, &SUMMARY, Mode::Switch)
}

/// Runs the benchmark without a switch.
pub(crate) fn run_host(args: Args) -> Result<()> {
    measure(args, &SUMMARY_HOST, Mode::Host)
}

fn measure(mut args: Args, summary: &'static Summary, mode: Mode) -> Result<()> {
    if args.options.quick {
        args.sizes = Sizes(vec![4 << 10, 1 << 20]);
    }
    args.options.settle(3, 2)?;
    args.network.check_connections(args.connections, 4_000)?;
    let plans = args
        .servers
        .iter()
        .map(|server| args.plan(*server, summary, mode));
    let plans: Vec<ComparisonPlan<'_, ()>> = plans.collect();
    let count = plans.iter().map(ComparisonPlan::count).sum();
    let mut turns = Turns::begin(&args.options, summary.result, count)?;
    for plan in &plans {
        plan.measure(&mut turns, |turn| turn.wrk(&turn.gets()))?;
    }
    summary.tell(turns.rows(), args.options.json)
}

impl Args {
    fn plan(
        &self,
        server: ServerKind,
        summary: &'static Summary,
        mode: Mode,
    ) -> ComparisonPlan<'_, ()> {
        let servers = Servers {
            versitygw: self.versitygw.as_deref(),
            ..Servers::of(server)
        };
        let contestants = Contestant::all(&SYSTEMS, &()).into_iter();
        let contestants = contestants.map(|contestant| Contestant {
            case: Case::default().with("server", server.name()),
            ..contestant
        });
        ComparisonPlan {
            sizes: Size::all(&self.sizes, OBJECTS, self.connections),
            beds: vec![BedSpec {
                servers: Some(servers),
                mode,
                ..BedSpec::new(&SYSTEMS)
            }],
            contestants: contestants.collect(),
            ..ComparisonPlan::new(summary, &self.network, &self.options)
        }
    }
}
