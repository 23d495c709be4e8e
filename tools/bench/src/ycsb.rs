//! `prism-lab bench partitioned` and `replicated`: the requests of YCSB to a cluster of Prism, as
//! in Figures 12 and 13 of NSDI'21. `prism-lab bench skew` compares the reads with nginx.
//!
//! Partitioned, each object is on one backend. Replicated, it is on all: a write reaches all
//! before it is answered, and any backend answers a read. The order of popularity is drawn
//! once. Reads are anonymous. Writes are signed with the SHA-256 of their body, and every object
//! keeps its bytes, so they can be compared afterwards.

use anyhow::{Result, ensure};

use crate::bed::{BedSpec, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::Sizes;
use crate::plan::{ComparisonPlan, Contestant, Size};
use crate::popularity::Popularity;
use crate::rows::Case;
use crate::summary::{Comparison, Over, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::{Options, within};

/// Most memory for the objects of one size, with all their replicas.
const MOST_BYTES: u64 = 8 << 30;
/// The engine of `prism-store`, as the rows name it: a log-structured merge tree.
const ENGINE: &str = "lsm";
const PARTITIONED: &str = "partitioned";
const REPLICATED: &str = "replicated";

const OVER_UNIFORM: Comparison = Comparison {
    title: "Over uniform requests",
    dimension: "popularity",
    base: "uniform",
    over: Over::Base,
    ..PRISM_OVER_OTHERS
};
const OVER_READS: Comparison = Comparison {
    title: "With writes over reads",
    dimension: "writes_percent",
    base: "0",
    ..OVER_UNIFORM
};
const OVER_PARTITIONED: Comparison = Comparison {
    title: "Replicated over partitioned",
    dimension: "placement",
    base: PARTITIONED,
    ..OVER_UNIFORM
};

const TITLE: &str =
    "Requests by popularity, medians of the rounds, CPU time of the servers for one request";
pub(crate) const OF_PARTITIONED: Summary = Summary {
    result: PARTITIONED,
    title: TITLE,
    columns: COLUMNS,
    comparisons: &[OVER_UNIFORM, OVER_READS],
};
pub(crate) const OF_REPLICATED: Summary = Summary {
    result: REPLICATED,
    ..OF_PARTITIONED
};
pub(crate) const OF_SKEW: Summary = Summary {
    result: "skew",
    title: TITLE,
    columns: COLUMNS,
    comparisons: &[OVER_UNIFORM, PRISM_OVER_OTHERS, OVER_PARTITIONED],
};

/// Options of `prism-lab bench partitioned` and `replicated`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        default_value = "16K,128K,512K",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Sizes,
    /// How requests spread over objects: `uniform`, `zipf-` and a parameter, or
    /// `single`, where all ask for the same one.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "uniform,zipf-0.9,zipf-1,zipf-1.1,zipf-1.2,single",
        value_name = "HOW",
        conflicts_with = "quick"
    )]
    popularity: Vec<Popularity>,
    /// How many of a hundred requests write.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,5",
        value_name = "PERCENT",
        conflicts_with = "quick"
    )]
    writes: Vec<u8>,
    #[command(flatten)]
    common: Common,
}

/// Options of `prism-lab bench skew`.
#[derive(Debug, clap::Args)]
pub(crate) struct SkewArgs {
    /// Sizes of objects: bytes, or with K or M.
    #[arg(
        long,
        default_value = "256K",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Sizes,
    /// How requests spread over objects: `uniform`, `zipf-` and a parameter, or
    /// `single`, where all ask for the same one.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "uniform,zipf-0.9,zipf-1.2,single",
        value_name = "HOW",
        conflicts_with = "quick"
    )]
    popularity: Vec<Popularity>,
    #[command(flatten)]
    common: Common,
}

/// Options of all three.
#[derive(Debug, Clone, clap::Args)]
struct Common {
    #[command(flatten)]
    network: Network,
    /// Connections of the client, over all its threads.
    #[arg(long, default_value_t = 100, value_name = "N")]
    connections: usize,
    /// Objects of each size, over all backends.
    #[arg(
        long,
        default_value_t = 1_000,
        value_name = "N",
        conflicts_with = "quick"
    )]
    objects: usize,
    #[command(flatten)]
    options: Options,
}

/// Each object on one backend, or on all, and the systems that serve them so.
type Placement = (&'static str, &'static [System]);

/// The table of a command.
struct Ycsb {
    summary: &'static Summary,
    placements: &'static [Placement],
    sizes: Sizes,
    popularity: Vec<Popularity>,
    writes: Vec<u8>,
    common: Common,
}

/// The requests of a turn.
struct Requests {
    popularity: Popularity,
    writes_percent: u8,
}

/// Runs `prism-lab bench partitioned`.
pub(crate) fn partitioned(args: Args) -> Result<()> {
    args.run(&OF_PARTITIONED, &[(PARTITIONED, &[System::Prism])])
}

/// Runs `prism-lab bench replicated`.
pub(crate) fn replicated(args: Args) -> Result<()> {
    args.run(&OF_REPLICATED, &[(REPLICATED, &[System::Prism])])
}

/// Runs `prism-lab bench skew`.
pub(crate) fn skew(args: SkewArgs) -> Result<()> {
    let ycsb = Ycsb {
        summary: &OF_SKEW,
        placements: &[
            (PARTITIONED, &[System::Prism, System::Nginx]),
            (REPLICATED, &[System::Prism]),
        ],
        sizes: args.sizes,
        popularity: args.popularity,
        writes: vec![0],
        common: args.common,
    };
    ycsb.run()
}

impl Args {
    fn run(self, summary: &'static Summary, placements: &'static [Placement]) -> Result<()> {
        let ycsb = Ycsb {
            summary,
            placements,
            sizes: self.sizes,
            popularity: self.popularity,
            writes: self.writes,
            common: self.common,
        };
        ycsb.run()
    }
}

impl Ycsb {
    fn run(mut self) -> Result<()> {
        if self.common.options.quick {
            let few = [
                Popularity::Uniform,
                Popularity::Zipf(1.2),
                Popularity::Single,
            ];
            self.popularity.retain(|how| few.contains(how));
            self.sizes = Sizes(vec![64 << 10]);
            self.common.objects = 200;
        }
        self.check()?;
        let Common {
            network,
            connections,
            objects,
            options,
        } = &self.common;
        let backends = network.backends;
        let beds = self.placements.iter().map(|(name, systems)| BedSpec {
            replicas: match *name {
                REPLICATED => u16::try_from(backends).unwrap_or(u16::MAX),
                _ => 1,
            },
            ..BedSpec::new(systems)
        });
        let plan = ComparisonPlan {
            sizes: Size::all(&self.sizes, objects / backends, *connections),
            beds: beds.collect(),
            contestants: self.contestants(),
            has_writes: true,
            ..ComparisonPlan::new(self.summary, network, options)
        };
        plan.run(|turn| {
            turn.wrk(&Load {
                popularity: turn.what.popularity,
                writes_percent: turn.what.writes_percent,
                ..turn.gets()
            })
        })
    }

    fn check(&mut self) -> Result<()> {
        let Common {
            network,
            connections,
            objects,
            options,
        } = &mut self.common;
        options.settle(2, 3)?;
        network.check()?;
        within("--connections", *connections, 4_000)?;
        within("--objects", *objects, 100_000)?;
        ensure!(
            objects.is_multiple_of(network.backends),
            "--objects must be a multiple of --backends: each has as many"
        );
        ensure!(
            self.writes.iter().all(|percent| *percent <= 100),
            "--writes must be 0 to 100"
        );
        let copies = (network.backends + 1) * *objects;
        for bytes in self.sizes.iter() {
            ensure!(
                bytes.saturating_mul(copies as u64) <= MOST_BYTES,
                "so many objects of {bytes} bytes would take more than 8 GiB of memory; use fewer --objects"
            );
        }
        Ok(())
    }

    fn contestants(&self) -> Vec<Contestant<Requests>> {
        // nginx has no engine, and compared turns have the same case.
        let is_ours = self.summary.result != OF_SKEW.result;
        let common = Case::default()
            .with("objects", self.common.objects)
            .with("engine", is_ours.then_some(ENGINE));
        let mut contestants = Vec::new();
        for &writes_percent in &self.writes {
            for &popularity in &self.popularity {
                for (bed, (placement, systems)) in self.placements.iter().enumerate() {
                    let case = common.clone().with("writes_percent", writes_percent);
                    let case = case.with("popularity", popularity.to_string());
                    contestants.extend(systems.iter().map(|system| Contestant {
                        name: system.name(),
                        system: *system,
                        bed,
                        case: case.clone().with("placement", *placement),
                        what: Requests {
                            popularity,
                            writes_percent,
                        },
                    }));
                }
            }
        }
        contestants
    }
}
