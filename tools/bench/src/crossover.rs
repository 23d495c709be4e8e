//! `prism-lab bench crossover`: the size of an object from which a hand-off costs less than a
//! relay. NSDI'21 (5.4) compares hand-offs with nginx only: 2 KB over HTTP, 16 KB over HTTPS.
//!
//! Three clusters of Prism differ in `service.relay_up_to`: one always hands off, one always
//! relays, and one decides by itself (`auto`).

use anyhow::Result;
use prism_config::RelayUpTo;

use crate::bed::{BedSpec, System};
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{ComparisonPlan, Contestant, Size};
use crate::rows::Case;
use crate::summary::{Comparison, Summary};
use crate::sweep::{COLUMNS, OBJECTS, PRISM_OVER_OTHERS};
use crate::turns::{Options, within};

/// In the order of their turns.
const WAYS: [(&str, RelayUpTo); 3] = [
    ("hand-off", RelayUpTo::Bytes(0)),
    ("relay", RelayUpTo::Bytes(u32::MAX)),
    ("auto", RelayUpTo::Auto),
];

pub(crate) const SUMMARY: Summary = Summary {
    result: "crossover",
    title: "GETs that are handed off or relayed, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[Comparison {
        title: "Hand-offs over the other way",
        base: "hand-off",
        ..PRISM_OVER_OTHERS
    }],
};

/// Measure up to which size of an object relaying is better than handing off.
///
/// Needs root and `wrk` (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        default_value = "64,1K,2K,4K,8K,16K,32K,64K",
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
        args.sizes = Sizes(vec![1 << 10, 4 << 10, 16 << 10]);
    }
    args.options.settle(3, 2)?;
    args.network.check()?;
    within("--connections", args.connections, 4_000)?;
    let beds = WAYS.iter().map(|(_, relay_up_to)| BedSpec {
        relay_up_to: *relay_up_to,
        ..BedSpec::new(&[System::Prism])
    });
    let contestants = WAYS.iter().enumerate().map(|(bed, (name, _))| Contestant {
        name,
        system: System::Prism,
        bed,
        case: Case::default(),
        what: (),
    });
    let plan = ComparisonPlan {
        sizes: Size::all(&args.sizes, OBJECTS, args.connections),
        beds: beds.collect(),
        contestants: contestants.collect(),
        ..ComparisonPlan::new(&SUMMARY, &args.network, &args.options)
    };
    plan.run(|turn| turn.wrk(&turn.gets()))
}
