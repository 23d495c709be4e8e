//! `prism-lab bench crossover`: from which size of an object on it is better to hand a
//! connection off than to relay the answer, where both are Prism. NSDI'21 (5.4) has only
//! nginx to compare with, and finds 2 KB over HTTP and 16 KB over HTTPS.
//!
//! Three clusters that differ in nothing but `service.relay_up_to` take turns under the
//! same client: one hands off always, one relays always, one as `auto` has it.

use anyhow::Result;
use prism_config::RelayUpTo;

use crate::prisms::{self, Common, Kind};
use crate::summary::{Comparison, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::Job;

/// In the order of their turns.
const WAYS: [(&str, RelayUpTo); 3] = [
    ("hand-off", RelayUpTo::Bytes(0)),
    ("relay", RelayUpTo::Bytes(u32::MAX)),
    ("auto", RelayUpTo::Auto),
];
/// Hand-offs beside the other ways.
const HAND_OFF_OVER_OTHERS: Comparison = Comparison {
    title: "Of hand-offs over the other's",
    base: "hand-off",
    ..PRISM_OVER_OTHERS
};

pub(crate) const SUMMARY: Summary = Summary {
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
    #[command(flatten)]
    common: Common,
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    args.common.settle()?;
    let kinds = WAYS.map(|(_, relay_up_to)| Kind {
        relay_up_to,
        program: None,
    });
    prisms::run(&args.common, &SUMMARY, kinds, |bytes| {
        std::array::from_fn(|way| Job {
            case: args.common.case(bytes),
            system: WAYS.get(way).map_or("", |way| way.0),
            what: way,
        })
    })
}
