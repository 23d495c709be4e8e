//! `prism-lab bench`: what Prism costs on this machine, beside its alternatives.
//!
//! Each result has a module. They share the table of a comparison (`plan`), the bed with all
//! labs (`bed`, `servers`, `proxies`), load (`load`, `client`), rounds (`turns`), values (`rows`,
//! `stats`) and tables (`summary`). Nothing here is part of the product.

#![forbid(unsafe_code)]

mod bed;
mod blobs;
mod client;
mod crossover;
mod family;
mod files;
mod frames;
mod handoff;
mod http;
mod load;
mod network;
mod objects;
mod plan;
mod popularity;
mod processes;
mod proxies;
mod redirect;
mod registry;
mod rows;
mod servers;
mod stats;
mod summary;
mod sweep;
mod switch;
mod test_switch;
mod trace;
mod turns;
mod upload;
mod upstream;
mod ycsb;

/// Measure Prism beside its alternatives on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Crossover(crate::crossover::Args),
    Handoff(crate::handoff::Args),
    /// Measure unmodified HTTP servers behind Prism without a switch, nginx and HAProxy.
    ///
    /// The same as `upstream`, with all hosts on one Ethernet segment.
    Hostmode(crate::upstream::Args),
    /// Measure YCSB's requests, with each object on one backend.
    ///
    /// Reads alone and with writes among them, for several distributions of popularity. Needs root
    /// and `wrk` (`scripts/setup.sh bench`).
    Partitioned(crate::ycsb::Args),
    Redirect(crate::redirect::Args),
    /// Measure YCSB's requests, with each object on all backends.
    ///
    /// The same as `partitioned` with as many replicas as there are backends. Needs root
    /// and `wrk` (`scripts/setup.sh bench`).
    Replicated(crate::ycsb::Args),
    /// Measure reads when few objects, or one, are popular.
    ///
    /// With each object on one backend, by Prism and by nginx as a proxy, and with each on all,
    /// by Prism. Needs root, `wrk` and `nginx`
    /// (`scripts/setup.sh bench`).
    Skew(crate::ycsb::SkewArgs),
    Sweep(crate::sweep::Args),
    Switch(crate::switch::BenchSwitchArgs),
    Upload(crate::upload::Args),
    Upstream(crate::upstream::Args),
}

/// Runs the benchmark.
///
/// # Errors
/// When a needed program is missing, a system gives wrong answers, or results cannot be
/// written.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Crossover(args) => crate::crossover::run(args),
        Command::Handoff(args) => crate::handoff::run(&args),
        Command::Hostmode(args) => crate::upstream::run_host(args),
        Command::Partitioned(args) => crate::ycsb::partitioned(args),
        Command::Replicated(args) => crate::ycsb::replicated(args),
        Command::Skew(args) => crate::ycsb::skew(args),
        Command::Sweep(args) => crate::sweep::run(args),
        Command::Switch(args) => crate::switch::run(&args),
        Command::Upload(args) => crate::upload::run(args),
        Command::Redirect(args) => crate::redirect::run(args),
        Command::Upstream(args) => crate::upstream::run(args),
    }
}
