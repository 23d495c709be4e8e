//! `prism-lab bench upload`: PUTs of objects of one size after the other, by Prism, by
//! nginx as a proxy before nginx backends that take files by PUT, and *direct*, to
//! those backends themselves: the limit.
//!
//! Not `wrk`, which copies what it sends for every connection and says nothing of
//! what has left when the time is up: a thread of our own for each connection. All
//! requests are signed with the SHA-256 of their body, which Prism verifies, and nginx
//! does not look at.

mod puts;

use anyhow::{Result, ensure};
use prism_config::RelayUpTo;

use crate::cluster::{Cluster, Setup, System};
use crate::network::Network;
use crate::objects::{Objects, parse_size};
use crate::summary::Summary;
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::{Job, Options, Turns, within};

/// In the order of their turns.
const SYSTEMS: [System; 3] = [System::Prism, System::Nginx, System::Direct];
/// Most objects of each backend, and most bytes of them.
const OBJECTS: u64 = 8;
const OBJECTS_BYTES: u64 = 128 << 20;
/// Most bytes that are on their way over all connections, where there are more
/// connections than backends.
const UNDER_WAY_BYTES: u64 = 128 << 20;

pub(crate) const SUMMARY: Summary = Summary {
    result: "upload",
    title: "PUTs, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[PRISM_OVER_OTHERS],
};

/// Measure throughput, latency and CPU time of PUTs by size, beside nginx.
///
/// Large objects are sent over fewer connections, so that not more than 128 MiB are on
/// their way. A turn lasts as long as a proxy takes to get two objects from each
/// connection, and half a second before. Needs root and `nginx` with its module for
/// WebDAV (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "64K,256K,1M,4M,16M,64M",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Vec<u64>,
    #[command(flatten)]
    network: Network,
    /// Connections of the client; fewer for large objects.
    #[arg(long, default_value_t = 20, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn settle(mut self) -> Result<Self> {
        if self.options.quick {
            self.sizes = vec![64 << 10, 1 << 20];
        }
        self.options.settle(2, 3)?;
        self.network.check()?;
        within("--connections", self.connections, 400)?;
        ensure!(
            self.connections.is_multiple_of(self.network.backends),
            "--connections must be a multiple of --backends: direct, each backend has its share"
        );
        Ok(self)
    }

    /// Connections for objects of so many bytes: a multiple of the backends.
    fn connections_for(&self, bytes: u64) -> usize {
        let backends = self.network.backends;
        let most = usize::try_from(UNDER_WAY_BYTES / bytes).unwrap_or(usize::MAX);
        let most = most / backends * backends;
        self.connections.min(most.max(backends))
    }

    fn jobs(&self, bytes: u64) -> [Job<System>; 3] {
        let connections = self.connections_for(bytes);
        let case = self.network.case().with("connections", connections);
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
        let each = (OBJECTS_BYTES / bytes).clamp(1, OBJECTS);
        let objects = Objects::new(network.backends, usize::try_from(each)?, bytes)?;
        cluster.store(&objects)?;
        cluster.check(&objects)?;
        let connections = args.connections_for(bytes);
        let turn_s = network.turn_s(args.options.seconds, bytes, connections);
        turns.run(&jobs, |system, warm_up_s| {
            let seconds = warm_up_s.unwrap_or(turn_s);
            puts::run(&cluster, *system, &objects, connections, seconds)
        })?;
        // What was written had the same bytes.
        cluster.check(&objects)?;
        cluster.remove(&objects)?;
    }
    Ok(())
}
