//! `prism-lab bench store`: CPU time of one node of Prism for a request, beside other S3
//! servers and nginx.
//!
//! Every system serves the same objects from memory (`/dev/shm`) over loopback. The client is
//! `wrk`, unmodified, with the same signed requests. `scripts/rivals` builds the other
//! servers.

mod load;
mod system;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::rows::{self, Values};
use crate::stats::named;
use crate::summary::{Comparison, Over, SYSTEM, Summary, column};
use crate::turns::{Job, Options, Turns, within};
use load::{Case, Target};
use system::{Kind, System};

pub(crate) const SUMMARY: Summary = Summary {
    result: "store",
    title: "CPU time of the server for one request, medians of the rounds",
    columns: &[
        column("µs", "cpu_us", 1.0, 1),
        column("requests/s", "requests_s", 1.0, 0),
    ],
    comparisons: &[Comparison {
        title: "The other server over Prism",
        dimension: SYSTEM,
        base: "prism",
        over: Over::Base,
        values: &[("CPU", "cpu_us")],
    }],
};

/// Measure what requests cost a node, beside other servers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Connections of the client. Unfinished requests cost CPU time and do not count, so many
    /// connections need long turns.
    #[arg(long, default_value_t = 64, value_name = "N")]
    connections: usize,
    /// The program `minio`, to be measured too.
    #[arg(long, value_name = "FILE")]
    minio: Option<PathBuf>,
    /// The program `versitygw`, to be measured too.
    #[arg(long, value_name = "FILE")]
    versitygw: Option<PathBuf>,
    /// The program `garage`, to be measured too.
    #[arg(long, value_name = "FILE")]
    garage: Option<PathBuf>,
    /// The program `nginx`, to be measured too, for GET.
    #[arg(long, value_name = "FILE")]
    nginx: Option<PathBuf>,
    /// Only cases whose name contains this, as in "GET 4 KiB".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn settle(mut self) -> Result<Self> {
        self.options.settle(2, 2)?;
        within("--connections", self.connections, 1000)?;
        Ok(self)
    }

    fn kinds(&self) -> Result<Vec<Kind>> {
        let mut kinds = vec![Kind::Prism(prism_lab::prism_program(
            self.options.prism.as_deref(),
        )?)];
        kinds.extend(self.versitygw.clone().map(Kind::Versitygw));
        kinds.extend(self.minio.clone().map(Kind::Minio));
        kinds.extend(self.garage.clone().map(Kind::Garage));
        kinds.extend(self.nginx.clone().map(Kind::Nginx));
        Ok(kinds)
    }

    fn cases(&self) -> Vec<&'static Case> {
        let only = |name: &str| self.only.as_ref().is_none_or(|only| name.contains(only));
        Case::ALL.iter().filter(|case| only(&case.name())).collect()
    }

    /// Turns of the systems that support this case, by their place among `kinds`.
    fn jobs(&self, case: &Case, kinds: &[Kind]) -> Vec<Job<usize>> {
        let case_of = rows::Case::default()
            .with("request", case.name())
            .with("connections", self.connections);
        let kinds = kinds.iter().enumerate();
        kinds
            .filter(|(_, kind)| kind.does(case))
            .map(|(place, kind)| Job {
                case: case_of.clone(),
                system: kind.name(),
                what: place,
            })
            .collect()
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> Result<()> {
    let args = args.settle()?;
    let (kinds, cases) = (args.kinds()?, args.cases());
    let all: Vec<_> = cases.iter().map(|case| args.jobs(case, &kinds)).collect();
    let count = all.iter().map(Vec::len).sum();
    let mut turns = Turns::begin(&args.options, SUMMARY.result, count)?;
    if all.iter().any(|jobs| turns.wants(jobs)) {
        let systems = kinds.into_iter().map(System::start);
        let systems = systems.collect::<Result<Vec<_>>>()?;
        for (case, jobs) in cases.iter().zip(&all) {
            measure(&args, &systems, case, jobs, &mut turns)?;
        }
    }
    SUMMARY.tell(turns.rows(), args.options.json)
}

fn measure(
    args: &Args,
    systems: &[System],
    case: &Case,
    jobs: &[Job<usize>],
    turns: &mut Turns,
) -> Result<()> {
    if !turns.wants(jobs) {
        turns.pass(jobs);
        return Ok(());
    }
    let mut targets = BTreeMap::new();
    for job in jobs {
        let system = systems.get(job.what).context("no such system")?;
        targets.insert(job.what, (system, Target::prepare(system, case)?));
    }
    turns.run(jobs, |place, warm_up_s| {
        let (system, target) = targets.get(place).context("no such system")?;
        let seconds = warm_up_s.unwrap_or(args.options.seconds);
        turn(system, target, seconds, args.connections)
    })
}

fn turn(system: &System, target: &Target, seconds: u64, connections: usize) -> Result<Values> {
    let before = system.cpu()?;
    let ran = target.run(Duration::from_secs(seconds), connections)?;
    let cpu_s = system.cpu()?.saturating_sub(before).as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
    let requests = ran.requests as f64;
    Ok(named([
        ("requests", requests),
        ("seconds", ran.seconds),
        ("requests_s", requests / ran.seconds),
        // User and system time of the server's processes, and of the client.
        ("cpu_s", cpu_s),
        ("client_cpu_s", ran.cpu.as_secs_f64()),
        ("cpu_us", cpu_s * 1e6 / requests),
    ]))
}
