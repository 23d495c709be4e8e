//! `prism-lab bench scale`: GETs from the objects of one backend, of two, up to all, by
//! Prism, by nginx as a proxy before the same backends, and *direct*: whether
//! throughput grows as backends are added, and what becomes of latency. As in
//! Figures 10 and 11 of NSDI'21.
//!
//! There is one cluster of all backends. To measure fewer, only objects of the first
//! so many are asked for: so every number has its turn in every round, and is compared
//! with its neighbours. Connections stay the same number in all, as in the paper, where
//! the latency of a proxy does not change with the backends behind it.

use anyhow::{Result, ensure};
use prism_config::RelayUpTo;

use crate::cluster::{Cluster, Setup, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::{Objects, parse_size};
use crate::summary::{Comparison, Over, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::{Job, Options, Turns, within};

/// In the order of their turns.
const SYSTEMS: [System; 3] = [System::Prism, System::Nginx, System::Direct];
/// Objects of each backend.
const OBJECTS: usize = 8;
/// What was set to the number of backends that have what is asked for.
const ASKED: &str = "asked_backends";

pub(crate) const SUMMARY: Summary = Summary {
    result: "scale",
    title: "GETs by number of backends, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[
        PRISM_OVER_OTHERS,
        Comparison {
            title: "Of so many backends over that of one",
            dimension: ASKED,
            base: "1",
            over: Over::Base,
            values: &[
                ("throughput", "mb_s"),
                ("p50", "p50_us"),
                ("p90", "p90_us"),
                ("p99", "p99_us"),
            ],
        },
    ],
};

/// Measure how throughput and latency of GETs change with the number of backends.
///
/// The client's link has the speed of all backends' together, whatever the number
/// of those that it asks. Needs root, `wrk` and `nginx` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "16K,256K,512K",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Vec<u64>,
    #[command(flatten)]
    network: Network,
    /// Connections of the client, over all its threads; a multiple of every number of
    /// backends, as direct each backend has its share.
    #[arg(long, default_value_t = 120, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

/// Whom to ask.
struct Asked {
    system: System,
    backends: usize,
}

impl Args {
    fn settle(mut self) -> Result<Self> {
        if self.options.quick {
            self.sizes = vec![16 << 10, 256 << 10];
        }
        self.options.settle(2, 2)?;
        self.network.check()?;
        within("--connections", self.connections, 4_000)?;
        for backends in self.numbers() {
            ensure!(
                self.connections.is_multiple_of(backends),
                "--connections must be a multiple of {backends}, a number of backends"
            );
        }
        Ok(self)
    }

    /// Of backends, ascending.
    fn numbers(&self) -> Vec<usize> {
        let all = self.network.backends;
        (1..=all)
            .filter(|n| !self.options.quick || [1, all.div_ceil(2), all].contains(n))
            .collect()
    }

    fn jobs(&self, bytes: u64) -> Vec<Job<Asked>> {
        let numbers = self.numbers().into_iter();
        let pairs = numbers.flat_map(|n| SYSTEMS.map(|system| (n, system)));
        pairs
            .map(|(backends, system)| Job {
                case: self
                    .network
                    .case()
                    .with("connections", self.connections)
                    .with("bytes", bytes)
                    .with(ASKED, backends),
                system: system.name(),
                what: Asked { system, backends },
            })
            .collect()
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let args = args.settle()?;
    let sizes = &args.sizes;
    let jobs = sizes.iter().map(|bytes| args.jobs(*bytes).len()).sum();
    let mut turns = Turns::begin(&args.options, SUMMARY.result, jobs)?;
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
        let turn_s = network.turn_s(args.options.seconds, bytes, args.connections);
        turns.run(&jobs, |asked, warm_up_s| {
            let load = Load {
                backends: asked.backends,
                ..Load::of(&objects, args.connections)
            };
            cluster.load(asked.system, &load, warm_up_s.unwrap_or(turn_s))
        })?;
        cluster.remove(&objects)?;
    }
    Ok(())
}
