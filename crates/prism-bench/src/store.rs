//! `prism bench store`: what a request costs a node of Prism in CPU time, beside
//! other S3 servers and nginx, on this machine and in the same run.
//!
//! Every system serves the same objects from memory (`/dev/shm`), over loopback,
//! to the same client (`wrk`, unmodified) with the same signed requests. They
//! take turns; a ratio is that of two neighbours in one round. Other systems are
//! programs that somebody has built: see `scripts/rivals`.

mod load;
mod system;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::rows::{self, Row, Turn, Values};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary};
use crate::turns::within;
use load::{Case, Target};
use system::{Kind, System};

const SUMMARY: Summary = Summary {
    result: "store",
    title: "CPU time of the server for one request, medians of the rounds",
    columns: &[
        Column {
            heading: "µs",
            value: "cpu_us",
            unit: 1.0,
            digits: 1,
        },
        Column {
            heading: "requests/s",
            value: "requests_s",
            unit: 1.0,
            digits: 0,
        },
    ],
    comparisons: &[Comparison {
        title: "Their CPU time over Prism's",
        dimension: SYSTEM,
        base: "prism",
        over: Over::Base,
        values: &[("CPU", "cpu_us")],
    }],
};

/// Measure what requests cost a node, beside other servers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds in which every system has its turn.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Length of one turn.
    #[arg(long, default_value_t = 5, value_name = "N")]
    seconds: u64,
    /// Connections of the client. What is under way when a turn ends has cost something and
    /// does not count: long turns for many.
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
    /// Print JSON with every round instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> Result<()> {
    within("--rounds", args.rounds, 100)?;
    within("--seconds", usize::try_from(args.seconds)?, 60)?;
    within("--connections", args.connections, 1000)?;
    let mut kinds = vec![Kind::Prism(std::env::current_exe()?)];
    kinds.extend(args.versitygw.clone().map(Kind::Versitygw));
    kinds.extend(args.minio.clone().map(Kind::Minio));
    kinds.extend(args.garage.clone().map(Kind::Garage));
    kinds.extend(args.nginx.clone().map(Kind::Nginx));
    let systems = kinds
        .into_iter()
        .map(System::start)
        .collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for case in Case::ALL {
        let name = case.name();
        if args.only.as_ref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let mut targets = Vec::new();
        for system in systems.iter().filter(|system| system.does(case)) {
            let target = Target::prepare(system, case)?;
            target.run(Duration::from_secs(1), args.connections)?;
            targets.push((system, target));
        }
        let case = rows::Case::default()
            .with("request", name)
            .with("connections", args.connections)
            .with("seconds", args.seconds);
        for round in 0..args.rounds {
            for (system, target) in &targets {
                let turn = Turn {
                    result: SUMMARY.result.to_owned(),
                    case: case.clone(),
                    system: system.name().to_owned(),
                    round,
                };
                let values = measure(system, target, args)?;
                rows.push(Row { turn, values });
            }
        }
    }
    SUMMARY.tell(&rows, args.json)
}

fn measure(system: &System, target: &Target, args: &Args) -> Result<Values> {
    let before = system.cpu()?;
    let ran = target.run(Duration::from_secs(args.seconds), args.connections)?;
    let cpu_s = system.cpu()?.saturating_sub(before).as_secs_f64();
    ensure!(
        ran.requests > 0,
        "{}: no request was answered",
        system.name()
    );
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
    let requests = ran.requests as f64;
    let values = [
        ("requests", requests),
        ("seconds", ran.seconds),
        ("requests_s", requests / ran.seconds),
        // User and system time of the server's processes, and of the client.
        ("cpu_s", cpu_s),
        ("client_cpu_s", ran.cpu.as_secs_f64()),
        ("cpu_us", cpu_s * 1e6 / requests),
    ];
    let values = values.map(|(name, value)| (name.to_owned(), value));
    Ok(values.into_iter().collect())
}
