//! `prism-lab bench sweep`: GETs by size, as in Figures 2 and 9 of NSDI'21.
//!
//! nginx and HAProxy are proxies in front of the same nginx backends. With *direct* the client
//! asks the backend that has the object: the limit. The client is `wrk`, unmodified.

use anyhow::Result;

use crate::bed::{BedSpec, System};
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{ComparisonPlan, Contestant, Size};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary, column};
use crate::turns::Options;

/// In the order of their turns.
pub(crate) const SYSTEMS: [System; 4] = [
    System::Prism,
    System::Nginx,
    System::Haproxy,
    System::Direct,
];
/// Objects of each backend.
pub(crate) const OBJECTS: usize = 8;

/// Columns of GETs: `mb_s` and the rest of [`crate::load::Load::values`].
pub(crate) const COLUMNS: &[Column] = &[
    column("MB/s", "mb_s", 1.0, 1),
    column("requests/s", "requests_s", 1.0, 0),
    column("p50 ms", "p50_us", 1e3, 2),
    column("p90 ms", "p90_us", 1e3, 2),
    column("p99 ms", "p99_us", 1e3, 2),
    column("CPU µs", "cpu_us", 1.0, 1),
];

/// Prism's values over those of other systems.
pub(crate) const PRISM_OVER_OTHERS: Comparison = Comparison {
    title: "Prism over the other system",
    dimension: SYSTEM,
    base: "prism",
    over: Over::Others,
    values: &[
        ("throughput", "mb_s"),
        ("p50", "p50_us"),
        ("p90", "p90_us"),
        ("p99", "p99_us"),
        ("CPU", "cpu_us"),
    ],
};

pub(crate) const SUMMARY: Summary = Summary {
    result: "sweep",
    title: "GETs, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[PRISM_OVER_OTHERS],
};

/// Measure throughput, latency and CPU time of GETs by size, beside nginx and HAProxy.
///
/// Needs root, `wrk`, `nginx` and `haproxy` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        default_value = "64,1K,4K,16K,64K,256K,512K,1M,4M",
        value_name = "SIZE",
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

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.options.quick {
        args.sizes = Sizes(vec![4 << 10, 64 << 10, 512 << 10]);
    }
    args.options.settle(3, 3)?;
    args.network.check_connections(args.connections, 4_000)?;
    let plan = ComparisonPlan {
        sizes: Size::all(&args.sizes, OBJECTS, args.connections),
        beds: vec![BedSpec::new(&SYSTEMS)],
        contestants: Contestant::all(&SYSTEMS, &()),
        ..ComparisonPlan::new(&SUMMARY, &args.network, &args.options)
    };
    plan.run(|turn| turn.wrk(&turn.gets()))
}
