//! `prism-lab bench scale`: GETs from the objects of one backend, of two, up to all, as in
//! Figures 10 and 11 of NSDI'21.
//!
//! One cluster has all backends. A turn for fewer backends asks only for the objects of the
//! first ones, so every number has its turn in every round. As in the paper, the number of
//! connections stays the same.

use anyhow::{Result, ensure};

use crate::cluster::System;
use crate::load::Load;
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{Entry, Kind, Plan, Size};
use crate::rows::Case;
use crate::summary::{Comparison, Over, Summary};
use crate::sweep::{COLUMNS, OBJECTS, PRISM_OVER_OTHERS};
use crate::turns::{Options, within};

/// In the order of their turns.
const SYSTEMS: [System; 3] = [System::Prism, System::Nginx, System::Direct];
/// The name of the case for the number of backends that have the objects.
const ASKED: &str = "asked_backends";

pub(crate) const SUMMARY: Summary = Summary {
    result: "scale",
    title: "GETs by number of backends, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[
        PRISM_OVER_OTHERS,
        Comparison {
            title: "Over one backend",
            dimension: ASKED,
            base: "1",
            over: Over::Base,
            ..PRISM_OVER_OTHERS
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
        default_value = "16K,256K,512K",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Sizes,
    #[command(flatten)]
    network: Network,
    /// Connections of the client, over all its threads; a multiple of every number of
    /// backends, as direct each backend has its share.
    #[arg(long, default_value_t = 120, value_name = "N")]
    connections: usize,
    #[command(flatten)]
    options: Options,
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.options.quick {
        args.sizes = Sizes(vec![16 << 10, 256 << 10]);
    }
    args.options.settle(2, 2)?;
    args.network.check()?;
    within("--connections", args.connections, 4_000)?;
    let all = args.network.backends;
    let numbers =
        (1..=all).filter(|n| !args.options.quick || [1, all.div_ceil(2), all].contains(n));
    let mut entries = Vec::new();
    for backends in numbers {
        ensure!(
            args.connections.is_multiple_of(backends),
            "--connections must be a multiple of {backends}, a number of backends"
        );
        entries.extend(
            Entry::all(&SYSTEMS, &backends)
                .into_iter()
                .map(|entry| Entry {
                    case: Case::default().with(ASKED, backends),
                    ..entry
                }),
        );
    }
    let plan = Plan {
        sizes: Size::all(&args.sizes, OBJECTS, Some(args.connections)),
        clusters: vec![Kind::new(&SYSTEMS)],
        entries,
        ..Plan::new(&SUMMARY, &args.network, &args.options)
    };
    plan.run(|asked| {
        asked.wrk(&Load {
            backends: *asked.what,
            ..asked.gets()
        })
    })
}
