//! `prism-lab bench replicas-kv`: the key-value server of `tools/kv`, whose connections move to
//! read replicas, beside proxies of the same protocol in front of the same replicas.

mod cluster;
mod load;

use std::path::PathBuf;

use anyhow::{Context, Result};
use prism_lab::Rate;

use crate::objects::Sizes;
use crate::rows::{Case, Values};
use crate::summary::{Comparison, Over, SYSTEM, Summary, column};
use crate::turns::{Job, Options, Turns, within};

use cluster::{Cluster, MAX_REPLICAS, System};
use load::{Load, Operation};

pub(crate) const SUMMARY: Summary = Summary {
    result: "replicas-kv",
    title: "GETs and SETs of values, medians of the rounds, CPU time of the servers for one request",
    columns: &[
        column("MB/s", "mb_s", 1.0, 1),
        column("requests/s", "requests_s", 1.0, 0),
        column("p50 ms", "p50_us", 1e3, 2),
        column("p99 ms", "p99_us", 1e3, 2),
        column("CPU us", "cpu_us", 1.0, 1),
        column("front us", "frontend_cpu_us", 1.0, 1),
    ],
    comparisons: &[Comparison {
        title: "Prism over the proxies",
        dimension: SYSTEM,
        base: "prism",
        over: Over::Others,
        values: &[
            ("throughput", "mb_s"),
            ("p50", "p50_us"),
            ("p99", "p99_us"),
            ("CPU", "cpu_us"),
            ("front's CPU", "frontend_cpu_us"),
        ],
    }],
};

/// Measure a key-value server with read replicas, beside proxies in front of them.
///
/// Readers of large values move to a replica. nutcracker (twemproxy) and HAProxy in TCP mode
/// are the proxies; *direct* clients ask a replica themselves. Needs root, `redis-benchmark`,
/// `nutcracker` and `haproxy` (`scripts/setup.sh bench`), and the program `prism-kv`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// Replicas; the client's link has as many times the speed of one server's.
    #[arg(long, default_value_t = 2, value_name = "N")]
    backends: usize,
    /// Speed of each server's link, each way.
    #[arg(long, default_value = "100mbit", value_name = "RATE")]
    link: Rate,
    /// Links as fast as the machine goes: CPU time decides then, not links.
    #[arg(long, conflicts_with = "link")]
    unshaped: bool,
    /// Connections of the clients.
    #[arg(long, default_value_t = 40, value_name = "N")]
    connections: usize,
    /// Sizes of values that are read.
    #[arg(long, default_value = "1K,16K,64K,256K,1M", value_name = "SIZE,...")]
    sizes: Sizes,
    /// The program `prism-kv` [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    kv: Option<PathBuf>,
}

/// Runs the benchmark.
///
/// # Errors
/// When a program is missing, a system gives a wrong answer, or a row cannot be written.
pub(crate) fn run(mut args: Args) -> Result<()> {
    args.options.settle(1, 1)?;
    within("--backends", args.backends, MAX_REPLICAS)?;
    within("--connections", args.connections, 1000)?;
    if args.options.quick {
        args.sizes = Sizes(vec![1 << 10, 64 << 10]);
    }
    let cases = args.sizes.iter().map(|bytes| (Operation::Get, *bytes));
    let cases: Vec<_> = cases.chain([(Operation::Set, 1 << 10)]).collect();
    let mut turns = Turns::begin(
        &args.options,
        SUMMARY.result,
        cases.len() * System::ALL.len(),
    )?;
    let jobs = cases.iter().map(|(operation, bytes)| {
        let jobs = System::ALL.map(|system| args.job(system, *operation, *bytes));
        Vec::from(jobs)
    });
    let jobs: Vec<_> = jobs.collect();
    if jobs.iter().any(|jobs| turns.wants(jobs)) {
        let cluster = Cluster::up(args.backends, args.link(), args.program()?)?;
        for (jobs, (_, bytes)) in jobs.iter().zip(&cases) {
            cluster.store(*bytes)?;
            turns.run(jobs, |(system, load), warm_up_s| {
                let seconds = warm_up_s.unwrap_or(args.options.seconds);
                turn(&cluster, *system, load, seconds)
            })?;
        }
    }
    SUMMARY.tell(turns.rows(), args.options.json)
}

impl Args {
    fn job(&self, system: System, operation: Operation, bytes: u64) -> Job<(System, Load)> {
        let case = Case::default()
            .with("bytes", bytes)
            .with("connections", self.connections)
            .with("link_bit_s", self.link().map(Rate::bits_per_s))
            .with("operation", operation.name())
            .with("backends", self.backends);
        let load = Load {
            operation,
            bytes,
            connections: self.connections,
        };
        Job {
            case,
            system: system.name(),
            what: (system, load),
        }
    }

    fn link(&self) -> Option<Rate> {
        (!self.unshaped).then_some(self.link)
    }

    fn program(&self) -> Result<PathBuf> {
        let path = match &self.kv {
            Some(path) => std::path::absolute(path)?,
            None => std::env::current_exe()?.with_file_name("prism-kv"),
        };
        let is_program = path.is_file().then_some(path.clone());
        is_program.with_context(|| {
            format!(
                "there is no {}: cargo build --release -p prism-kv, or --kv PATH",
                path.display()
            )
        })
    }
}

/// One turn: CPU time before and after the load.
fn turn(cluster: &Cluster, system: System, load: &Load, seconds: u64) -> Result<Values> {
    let pace = load.run(cluster, system, load.connections * 4)?;
    let requests = pace.requests_s * seconds as f64;
    // Each connection asks a few times, also where answers are slow.
    let requests = (requests as usize).max(load.connections * 4);
    let before = cluster.cpu(system)?;
    let measured = load.run(cluster, system, requests)?;
    let after = cluster.cpu(system)?;
    let spent = before
        .iter()
        .zip(after)
        .map(|(before, after)| after.saturating_sub(*before));
    let spent: Vec<f64> = spent.map(|time| time.as_secs_f64()).collect();
    let [frontend_s, replicas_s] = spent[..] else {
        anyhow::bail!("two roles have CPU time");
    };
    let per_request = |seconds: f64| seconds * 1e6 / measured.requests;
    let values = [
        ("requests", measured.requests),
        ("requests_s", measured.requests_s),
        ("mb_s", measured.requests_s * load.bytes as f64 / 1e6),
        ("p50_us", measured.p50_us),
        ("p99_us", measured.p99_us),
        ("frontend_cpu_s", frontend_s),
        ("backends_cpu_s", replicas_s),
        ("frontend_cpu_us", per_request(frontend_s)),
        ("cpu_us", per_request(frontend_s + replicas_s)),
    ];
    Ok(values.map(|(name, value)| (name.to_owned(), value)).into())
}
