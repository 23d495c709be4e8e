//! `prism-lab bench upload`: PUTs by size, by Prism, by nginx as a proxy in front of nginx
//! backends that take files by PUT, and *direct*, to those backends themselves: the limit.
//!
//! The client is not `wrk`, which copies what it sends for every connection and does not count
//! the bytes that have left when the time is up. It has a thread for each connection. Every
//! request is signed with the SHA-256 of its body; Prism verifies it, nginx does not.

mod puts;

use anyhow::Result;

use crate::bed::{BedSpec, System};
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{ComparisonPlan, Contestant, Size};
use crate::summary::Summary;
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::Options;

/// In the order of their turns.
const SYSTEMS: [System; 3] = [System::Prism, System::Nginx, System::Direct];
/// Most objects of each backend, and most bytes of them.
const OBJECTS: u64 = 8;
const OBJECTS_BYTES: u64 = 128 << 20;
/// Most bytes under way over all connections, if there are more connections than backends.
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
        default_value = "64K,256K,1M,4M,16M,64M",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Sizes,
    #[command(flatten)]
    network: Network,
    /// Connections of the client; fewer for large objects.
    #[arg(long, default_value_t = 20, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn size(&self, bytes: u64) -> Size {
        let backends = self.network.backends;
        let most = usize::try_from(UNDER_WAY_BYTES / bytes).unwrap_or(usize::MAX);
        let most = (most / backends * backends).max(backends);
        let each = (OBJECTS_BYTES / bytes).clamp(1, OBJECTS);
        Size {
            bytes,
            each: usize::try_from(each).unwrap_or(1),
            connections: self.connections.min(most),
        }
    }
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.options.quick {
        args.sizes = Sizes(vec![64 << 10, 1 << 20]);
    }
    args.options.settle(2, 3)?;
    args.network.check_connections(args.connections, 400)?;
    let plan = ComparisonPlan {
        sizes: args.sizes.iter().map(|bytes| args.size(*bytes)).collect(),
        beds: vec![BedSpec::new(&SYSTEMS)],
        contestants: Contestant::all(&SYSTEMS, &()),
        has_writes: true,
        ..ComparisonPlan::new(&SUMMARY, &args.network, &args.options)
    };
    plan.run(puts::run)
}
