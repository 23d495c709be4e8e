//! `prism bench store`: what a request costs a node of Prism in CPU time, beside
//! other S3 servers and nginx, on this machine and in the same run.
//!
//! Every system serves the same objects from memory (`/dev/shm`), over loopback,
//! to the same client (`wrk`, unmodified) with the same signed requests. They
//! take turns; a ratio is that of two neighbours in one round. Other systems are
//! programs that somebody has built: see `scripts/rivals`.

mod load;
mod report;
mod system;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use load::{Case, Target};
use system::{Kind, System};

/// Measure what requests cost a node, beside other servers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds in which every system has its turn.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Length of one turn.
    #[arg(long, default_value_t = 3, value_name = "N")]
    seconds: u64,
    /// Connections of the client.
    #[arg(long, default_value_t = 16, value_name = "N")]
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

/// One turn of one system.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    case: String,
    round: usize,
    system: &'static str,
    requests: u64,
    seconds: f64,
    /// User and system time of the server's processes.
    cpu_s: f64,
    /// The same of the client.
    client_cpu_s: f64,
    /// Server's CPU time for one request, in µs.
    cpu_us: f64,
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        (1..=100).contains(&args.rounds),
        "--rounds must be 1 to 100"
    );
    ensure!(
        (1..=60).contains(&args.seconds),
        "--seconds must be 1 to 60"
    );
    ensure!(
        (1..=1000).contains(&args.connections),
        "--connections must be 1 to 1000"
    );
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
        for round in 0..args.rounds {
            for (system, target) in &targets {
                let row = turn(system, target, args)?;
                rows.push(Row {
                    case: name.clone(),
                    round,
                    ..row
                });
            }
        }
    }
    match args.json {
        true => println!("{}", report::json(args, &rows)?),
        false => report::print(&rows),
    }
    Ok(())
}

fn turn(system: &System, target: &Target, args: &Args) -> Result<Row> {
    let before = system.cpu()?;
    let ran = target.run(Duration::from_secs(args.seconds), args.connections)?;
    let cpu = system.cpu()?.saturating_sub(before).as_secs_f64();
    ensure!(
        ran.requests > 0,
        "{}: no request was answered",
        system.name()
    );
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
    let cpu_us = cpu * 1e6 / ran.requests as f64;
    Ok(Row {
        case: String::new(),
        round: 0,
        system: system.name(),
        requests: ran.requests,
        seconds: ran.seconds,
        cpu_s: cpu,
        client_cpu_s: ran.cpu.as_secs_f64(),
        cpu_us,
    })
}
