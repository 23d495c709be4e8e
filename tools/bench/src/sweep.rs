//! `prism-lab bench sweep`: GETs of objects of one size after the other, by Prism, by
//! nginx and HAProxy as proxies before the same nginx backends, and *direct*, where
//! each request is sent to the backend that has the object: the limit. As in
//! Figures 2 and 9 of NSDI'21.
//!
//! All take turns under the same client (`wrk`, unmodified), and a ratio is that of
//! two turns of one round.

use anyhow::{Result, ensure};
use prism_config::RelayUpTo;

use crate::cluster::{Cluster, Setup, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::{Objects, parse_size};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary};
use crate::turns::{Job, Options, Turns, within};

/// In the order of their turns.
const SYSTEMS: [System; 4] = [
    System::Prism,
    System::Nginx,
    System::Haproxy,
    System::Direct,
];
/// Objects of each backend.
const OBJECTS: usize = 8;

/// What GETs are measured by: `mb_s` and the rest of [`Load::values`].
pub(crate) const COLUMNS: &[Column] = &[
    Column {
        heading: "MB/s",
        value: "mb_s",
        unit: 1.0,
        digits: 1,
    },
    Column {
        heading: "requests/s",
        value: "requests_s",
        unit: 1.0,
        digits: 0,
    },
    Column {
        heading: "p50 ms",
        value: "p50_us",
        unit: 1e3,
        digits: 2,
    },
    Column {
        heading: "p90 ms",
        value: "p90_us",
        unit: 1e3,
        digits: 2,
    },
    Column {
        heading: "p99 ms",
        value: "p99_us",
        unit: 1e3,
        digits: 2,
    },
    Column {
        heading: "CPU µs",
        value: "cpu_us",
        unit: 1.0,
        digits: 1,
    },
];

/// Prism beside the others.
pub(crate) const PRISM_OVER_OTHERS: Comparison = Comparison {
    title: "Prism's over theirs",
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
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "64,1K,4K,16K,64K,256K,512K,1M,4M",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Vec<u64>,
    #[command(flatten)]
    network: Network,
    /// Connections of the client, over all its threads.
    #[arg(long, default_value_t = 100, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn settle(mut self) -> Result<Self> {
        if self.options.quick {
            self.sizes = vec![4 << 10, 64 << 10, 512 << 10];
        }
        self.options.settle(3, 3)?;
        self.network.check()?;
        within("--connections", self.connections, 4_000)?;
        ensure!(
            self.connections.is_multiple_of(self.network.backends),
            "--connections must be a multiple of --backends: direct, each backend has its share"
        );
        Ok(self)
    }

    fn jobs(&self, bytes: u64) -> [Job<System>; 4] {
        let case = self.network.case().with("connections", self.connections);
        SYSTEMS.map(|system| Job {
            case: case.clone().with("bytes", bytes),
            system: system.name(),
            what: system,
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let args = args.settle()?;
    let sizes = &args.sizes;
    let mut turns = Turns::begin(&args.options, SUMMARY.result, sizes.len() * SYSTEMS.len())?;
    if sizes.iter().any(|bytes| turns.wants(&args.jobs(*bytes))) {
        measure(&args, &mut turns)?;
    }
    SUMMARY.tell(turns.rows(), args.options.json)
}

fn measure(args: &Args, turns: &mut Turns) -> Result<()> {
    let (network, sizes) = (&args.network, &args.sizes);
    let cluster = Cluster::up(&Setup {
        network,
        systems: &SYSTEMS,
        program: args.options.prism.as_deref(),
        replicas: 1,
        relay_up_to: RelayUpTo::default(),
        configure: |_| (),
        cancel: turns.cancel(),
    })?;
    for &bytes in sizes {
        let jobs = args.jobs(bytes);
        if !turns.wants(&jobs) {
            turns.pass(&jobs);
            continue;
        }
        let objects = Objects::new(network.backends, OBJECTS, bytes)?;
        cluster.store(&objects)?;
        cluster.check(&objects)?;
        let load = Load::of(&objects, args.connections);
        let turn_s = network.turn_s(args.options.seconds, bytes, args.connections);
        turns.run(&jobs, |system, warm_up_s| {
            cluster.load(*system, &load, warm_up_s.unwrap_or(turn_s))
        })?;
        cluster.remove(&objects)?;
    }
    Ok(())
}
