//! `prism-lab bench crossover`: the size of an object from which a hand-off costs less than a
//! relay. NSDI'21 (5.4) compares hand-offs with nginx only: 2 KB over HTTP, 16 KB over HTTPS.
//!
//! Three clusters of Prism differ in `service.relay_up_to`: one always hands off, one always
//! relays, and one decides by itself (`auto`).

use anyhow::Result;
use prism_config::RelayUpTo;

use crate::cluster::System;
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{Asked, Entry, Kind, Plan, Size};
use crate::rows::{Case, Values};
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
    #[command(flatten)]
    common: Common,
}

/// Options of `prism-lab bench crossover`, `builds` and `observed`.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
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

/// A cluster of Prism, and its name in rows.
pub(crate) struct Variant<'v> {
    pub(crate) name: &'static str,
    pub(crate) case: Case,
    pub(crate) kind: Kind<'v>,
}

impl Common {
    /// Measures the variants, which take turns under the same client.
    ///
    /// # Errors
    /// When an option is out of its range, a cluster cannot be built, or a turn fails.
    pub(crate) fn compare(self, summary: &'static Summary, variants: &[Variant<'_>]) -> Result<()> {
        let entries = variants.iter().enumerate().map(|(cluster, variant)| Entry {
            name: variant.name,
            system: System::Prism,
            cluster,
            case: variant.case.clone(),
            what: (),
        });
        let clusters = variants.iter().map(|variant| variant.kind).collect();
        self.take_turns(summary, clusters, entries.collect(), |asked| {
            asked.wrk(&asked.gets())
        })
    }

    /// Measures `entries`, whose turns are by `turn`.
    ///
    /// # Errors
    /// When an option is out of its range, a cluster cannot be built, or a turn fails.
    pub(crate) fn take_turns<W>(
        mut self,
        summary: &'static Summary,
        clusters: Vec<Kind<'_>>,
        entries: Vec<Entry<W>>,
        turn: impl Fn(&Asked<'_, W>) -> Result<Values>,
    ) -> Result<()> {
        if self.options.quick {
            self.sizes = Sizes(vec![1 << 10, 4 << 10, 16 << 10]);
        }
        self.options.settle(3, 2)?;
        self.network.check()?;
        within("--connections", self.connections, 4_000)?;
        let plan = Plan {
            sizes: Size::all(&self.sizes, OBJECTS, Some(self.connections)),
            clusters,
            entries,
            ..Plan::new(summary, &self.network, &self.options)
        };
        plan.run(turn)
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let variants = WAYS.map(|(name, relay_up_to)| Variant {
        name,
        case: Case::default(),
        kind: Kind {
            relay_up_to,
            ..Kind::new(&[System::Prism])
        },
    });
    args.common.compare(&SUMMARY, &variants)
}
