//! `prism-lab bench builds`: this program beside another build of Prism, under the same client,
//! with every connection handed off and with every answer relayed.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use prism_config::RelayUpTo;

use crate::cluster::System;
use crate::crossover::{Common, Variant};
use crate::plan::Kind;
use crate::rows::Case;
use crate::summary::{Comparison, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};

const WAYS: [(&str, RelayUpTo); 2] = [
    ("hand-off", RelayUpTo::Bytes(0)),
    ("relay", RelayUpTo::Bytes(u32::MAX)),
];

pub(crate) const SUMMARY: Summary = Summary {
    result: "builds",
    title: "GETs by two programs, medians of the rounds, CPU time of the servers for one request",
    columns: COLUMNS,
    comparisons: &[Comparison {
        title: "This program over the other",
        base: "this",
        ..PRISM_OVER_OTHERS
    }],
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

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let other = args.other.canonicalize();
    let other = other.with_context(|| format!("the program {}", args.other.display()))?;
    ensure!(
        other.is_file(),
        "{} is not a program: name another build of prism",
        other.display()
    );
    let builds = [("this", None), ("other", Some(other.as_path()))];
    let variants = WAYS.iter().flat_map(|(way, relay_up_to)| {
        builds.map(|(name, program)| Variant {
            name,
            case: Case::default().with("way", *way),
            kind: Kind {
                relay_up_to: *relay_up_to,
                program,
                ..Kind::new(&[System::Prism])
            },
        })
    });
    let variants: Vec<Variant<'_>> = variants.collect();
    args.common.compare(&SUMMARY, &variants)
}
