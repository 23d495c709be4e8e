//! `prism bench crossover`: from which size of an object on it is better to hand a
//! connection off than to relay the answer, where both are Prism. NSDI'21 (5.4) has only
//! nginx to compare with, and finds 2 KB over HTTP and 16 KB over HTTPS.
//!
//! Three clusters that differ in nothing but `service.relay_up_to` take turns under the
//! same client: one hands off always, one relays always, one as `auto` has it.

use anyhow::{Result, ensure};
use prism_config::RelayUpTo;

use crate::network::Network;
use crate::objects::parse_size;
use crate::prisms::{self, Common, Kind};
use crate::summary::{Comparison, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::{Job, Options, Turns, within};

/// In the order of their turns.
const WAYS: [(&str, RelayUpTo); 3] = [
    ("hand-off", RelayUpTo::Bytes(0)),
    ("relay", RelayUpTo::Bytes(u32::MAX)),
    ("auto", RelayUpTo::Auto),
];
/// Hand-offs beside the other ways.
pub(crate) const HAND_OFF_OVER_OTHERS: Comparison = Comparison {
    title: "Of hand-offs over the other's",
    base: "hand-off",
    ..PRISM_OVER_OTHERS
};

const SUMMARY: Summary = Summary {
    result: "crossover",
    title: "GETs that are handed off or relayed, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[HAND_OFF_OVER_OTHERS],
};

/// Measure up to which size of an object relaying is better than handing off.
///
/// Needs root and `wrk` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "64,1K,2K,4K,8K,16K,32K,64K",
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
            self.sizes = vec![1 << 10, 4 << 10, 16 << 10];
        }
        self.options.settle(3, 2)?;
        self.network.check()?;
        within("--connections", self.connections, 4_000)?;
        ensure!(
            self.sizes.iter().all(|bytes| u32::try_from(*bytes).is_ok()),
            "--sizes must be below 4 GiB"
        );
        Ok(self)
    }

    fn jobs(&self, bytes: u64) -> [Job<usize>; 3] {
        let case = self.network.case().with("connections", self.connections);
        std::array::from_fn(|way| Job {
            case: case.clone().with("bytes", bytes),
            system: WAYS.get(way).map_or("", |way| way.0),
            what: way,
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let args = args.settle()?;
    let jobs = args.sizes.len() * WAYS.len();
    let mut turns = Turns::begin(&args.options, SUMMARY.result, jobs)?;
    let common = Common {
        network: &args.network,
        options: &args.options,
        sizes: &args.sizes,
        connections: args.connections,
    };
    let kinds = WAYS.map(|(_, relay_up_to)| Kind {
        relay_up_to,
        program: None,
    });
    prisms::measure(&common, kinds, &mut turns, |bytes| args.jobs(bytes))?;
    SUMMARY.tell(turns.rows(), args.options.json)
}
