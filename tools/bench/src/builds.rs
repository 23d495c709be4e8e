//! `prism-lab bench builds`: what a change, or another way to build it, does to what Prism
//! costs: this program and another one take turns under the same client, with every
//! connection handed off, and with every answer relayed.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use prism_config::RelayUpTo;

use crate::prisms::{self, Common, Kind};
use crate::summary::{Comparison, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::Job;

/// What is done with a request for another's object.
const WAYS: [(&str, RelayUpTo); 2] = [
    ("hand-off", RelayUpTo::Bytes(0)),
    ("relay", RelayUpTo::Bytes(u32::MAX)),
];
/// Who takes turns in each way.
const BUILDS: [&str; 2] = ["this", "other"];

/// This program beside the other.
const THIS_OVER_OTHER: Comparison = Comparison {
    title: "Of this program over the other's",
    base: "this",
    ..PRISM_OVER_OTHERS
};

pub(crate) const SUMMARY: Summary = Summary {
    result: "builds",
    title: "GETs by two programs, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[THIS_OVER_OTHER],
};

/// Measure another build of Prism beside this one.
///
/// Both are given the same configuration and the same client. Needs root and `wrk`
/// (`scripts/setup.sh bench`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The other program.
    #[arg(value_name = "PROGRAM")]
    other: PathBuf,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn settle(mut self) -> Result<Self> {
        let other = self.other.canonicalize();
        self.other = other.with_context(|| format!("the program {}", self.other.display()))?;
        ensure!(
            self.other.is_file(),
            "{} is not a program: name another build of prism",
            self.other.display()
        );
        self.common.settle()?;
        Ok(self)
    }

    fn kinds(&self) -> [Kind<'_>; 4] {
        let programs = [None, Some(self.other.as_path())];
        std::array::from_fn(|n| Kind {
            relay_up_to: WAYS.get(n / 2).map_or(RelayUpTo::Auto, |way| way.1),
            program: programs.get(n % 2).copied().flatten(),
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let args = args.settle()?;
    prisms::run(&args.common, &SUMMARY, args.kinds(), |bytes| {
        std::array::from_fn(|n| {
            let way = WAYS.get(n / 2).map_or("", |way| way.0);
            Job {
                case: args.common.case(bytes).with("way", way),
                system: BUILDS.get(n % 2).copied().unwrap_or_default(),
                what: n,
            }
        })
    })
}
