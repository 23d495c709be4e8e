//! `prism-lab bench partitioned` and `replicated`: what YCSB asks of a store, of Prism
//! with its own: reads alone, or with writes among them, of objects that are
//! popular to different degrees. As in Figures 12 and 13 of NSDI'21. And
//! `prism-lab bench skew`: what becomes of reads when everybody wants the same, beside nginx.
//!
//! Partitioned, each object is on one backend; replicated, each is on all, a write
//! reaches all before it is answered, and any backend answers a read. Which object
//! is how popular is drawn once, the same for all. Reads are anonymous, writes are
//! signed with the SHA-256 of their body, and every object keeps its bytes, so that
//! they can be compared afterwards.

use anyhow::{Result, ensure};
use prism_config::RelayUpTo;

use crate::cluster::{Cluster, Setup, System};
use crate::load::Load;
use crate::network::Network;
use crate::objects::{Objects, parse_size};
use crate::popularity::Popularity;
use crate::summary::{Comparison, Over, Summary};
use crate::sweep::{COLUMNS, PRISM_OVER_OTHERS};
use crate::turns::{Job, Options, Turns, within};

/// Memory that the objects of one size may take, with all their replicas.
const MOST_BYTES: u64 = 8 << 30;
/// The engine of `prism-store`, as the rows name it: a log-structured merge tree.
const ENGINE: &str = "lsm";
const PARTITIONED: &str = "partitioned";
const REPLICATED: &str = "replicated";

const OVER_UNIFORM: Comparison = Comparison {
    title: "Over those whose objects are all alike",
    dimension: "popularity",
    base: "uniform",
    over: Over::Base,
    values: &[
        ("throughput", "mb_s"),
        ("p50", "p50_us"),
        ("p90", "p90_us"),
        ("p99", "p99_us"),
        ("CPU", "cpu_us"),
    ],
};
const OVER_READS: Comparison = Comparison {
    title: "With writes over reads alone",
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
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "16K,128K,512K",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Vec<u64>,
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
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "256K",
        value_name = "SIZE",
        conflicts_with = "quick"
    )]
    sizes: Vec<u64>,
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

/// What all of them take.
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

/// What to measure.
struct Plan {
    summary: &'static Summary,
    /// Names of placements, each with who serves them.
    placements: &'static [(&'static str, &'static [System])],
    sizes: Vec<u64>,
    popularity: Vec<Popularity>,
    writes: Vec<u8>,
    common: Common,
}

/// Whom to ask for what.
struct Asked {
    /// Number of the placement.
    placement: usize,
    system: System,
    popularity: Popularity,
    writes_percent: u8,
}

/// Runs `prism-lab bench partitioned`.
pub(crate) fn partitioned(args: Args) -> Result<()> {
    run(plan(
        args,
        &OF_PARTITIONED,
        &[(PARTITIONED, &[System::Prism])],
    ))
}

/// Runs `prism-lab bench replicated`.
pub(crate) fn replicated(args: Args) -> Result<()> {
    run(plan(
        args,
        &OF_REPLICATED,
        &[(REPLICATED, &[System::Prism])],
    ))
}

/// Runs `prism-lab bench skew`.
pub(crate) fn skew(args: SkewArgs) -> Result<()> {
    let mut plan = Plan {
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
    if plan.common.options.quick {
        plan.popularity.retain(|how| *how != Popularity::Zipf(0.9));
        (plan.sizes, plan.common.objects) = (vec![64 << 10], 200);
    }
    run(plan)
}

fn plan(
    args: Args,
    summary: &'static Summary,
    placements: &'static [(&'static str, &'static [System])],
) -> Plan {
    let mut plan = Plan {
        summary,
        placements,
        sizes: args.sizes,
        popularity: args.popularity,
        writes: args.writes,
        common: args.common,
    };
    if plan.common.options.quick {
        let kept = [
            Popularity::Uniform,
            Popularity::Zipf(1.2),
            Popularity::Single,
        ];
        plan.popularity.retain(|how| kept.contains(how));
        (plan.sizes, plan.common.objects) = (vec![64 << 10], 200);
    }
    plan
}

impl Plan {
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
        for bytes in &self.sizes {
            ensure!(
                bytes.saturating_mul(copies as u64) <= MOST_BYTES,
                "so many objects of {bytes} bytes would take more than 8 GiB of memory; use fewer --objects"
            );
        }
        Ok(())
    }

    fn jobs(&self, bytes: u64) -> Vec<Job<Asked>> {
        let Common {
            network,
            connections,
            objects,
            ..
        } = &self.common;
        let mut jobs = Vec::new();
        for &writes_percent in &self.writes {
            for &popularity in &self.popularity {
                for (placement, (name, systems)) in self.placements.iter().enumerate() {
                    for &system in *systems {
                        let case = network.case().with("connections", *connections);
                        let case = case.with("bytes", bytes).with("objects", *objects);
                        // Others have none, and what is compared has the same case.
                        let is_ours = self.summary.result != OF_SKEW.result;
                        let engine = is_ours.then_some(ENGINE);
                        jobs.push(Job {
                            case: case
                                .with("writes_percent", writes_percent)
                                .with("popularity", popularity.to_string())
                                .with("placement", *name)
                                .with("engine", engine),
                            system: system.name(),
                            what: Asked {
                                placement,
                                system,
                                popularity,
                                writes_percent,
                            },
                        });
                    }
                }
            }
        }
        jobs
    }

    fn clusters(&self, turns: &Turns) -> Result<Vec<Cluster>> {
        let network = &self.common.network;
        let placements = self.placements.iter();
        let clusters = placements.map(|(name, systems)| {
            let replicas = match *name {
                REPLICATED => u16::try_from(network.backends)?,
                _ => 1,
            };
            Cluster::up(&Setup {
                network,
                systems,
                program: self.common.options.prism.as_deref(),
                replicas,
                relay_up_to: RelayUpTo::default(),
                configure: |_| (),
                cancel: turns.cancel(),
            })
        });
        clusters.collect()
    }
}

fn run(mut plan: Plan) -> Result<()> {
    plan.check()?;
    let jobs = plan.sizes.iter().map(|bytes| plan.jobs(*bytes).len()).sum();
    let options = &plan.common.options;
    let mut turns = Turns::begin(options, plan.summary.result, jobs)?;
    let mut sizes = plan.sizes.iter();
    if sizes.any(|bytes| turns.wants(&plan.jobs(*bytes))) {
        measure(&plan, &mut turns)?;
    }
    plan.summary.tell(turns.rows(), options.json)
}

fn measure(plan: &Plan, turns: &mut Turns) -> Result<()> {
    let Common {
        network,
        connections,
        objects,
        options,
    } = &plan.common;
    let clusters = plan.clusters(turns)?;
    for &bytes in &plan.sizes {
        let jobs = plan.jobs(bytes);
        if !turns.wants(&jobs) {
            turns.pass(&jobs);
            continue;
        }
        let objects = Objects::new(network.backends, *objects / network.backends, bytes)?;
        for cluster in &clusters {
            cluster.store(&objects)?;
            cluster.check(&objects)?;
        }
        let turn_s = network.turn_s(options.seconds, bytes, *connections);
        turns.run(&jobs, |asked, warm_up_s| {
            let load = Load {
                popularity: asked.popularity,
                writes_percent: asked.writes_percent,
                ..Load::of(&objects, *connections)
            };
            let seconds = warm_up_s.unwrap_or(turn_s);
            let cluster = clusters.get(asked.placement);
            let cluster = cluster.ok_or_else(|| anyhow::anyhow!("no such placement"))?;
            cluster.load(asked.system, &load, seconds)
        })?;
        for cluster in &clusters {
            // What was written had the same bytes.
            cluster.check(&objects)?;
            cluster.remove(&objects)?;
        }
    }
    Ok(())
}
