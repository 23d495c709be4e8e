//! `prism-lab bench`: what Prism costs on this machine, beside its alternatives.
//!
//! Each result has a module. They share the table of a comparison (`plan`), labs (`cluster`,
//! `proxies`), load (`load`, `client`), rounds (`turns`), values (`rows`, `stats`) and tables
//! (`summary`). Nothing here is part of the product.

#![forbid(unsafe_code)]

mod builds;
mod client;
mod cluster;
mod connections;
mod crossover;
mod family;
mod files;
mod flows;
mod frames;
mod handoff;
mod hashes;
mod http;
mod latency;
mod load;
mod long_path;
mod memory;
mod network;
mod objects;
mod observed;
mod openssl;
mod plan;
mod popularity;
mod processes;
mod proxies;
mod replicas_kv;
mod report;
mod rows;
mod scale;
mod stats;
mod store;
mod summary;
mod sweep;
mod switch;
mod test_switch;
mod tls;
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
    Builds(crate::builds::Args),
    Connections(crate::connections::Args),
    Crossover(crate::crossover::Args),
    Flows(crate::flows::Args),
    Handoff(crate::handoff::Args),
    Hashes(crate::hashes::Args),
    /// Measure unmodified HTTP servers behind Prism without a switch, nginx and HAProxy.
    ///
    /// The same as `upstream`, with all hosts on one Ethernet segment.
    Hostmode(crate::upstream::Args),
    Latency(crate::latency::Args),
    LongPath(crate::long_path::Args),
    Observed(crate::observed::Args),
    /// Measure YCSB's requests, with each object on one backend.
    ///
    /// Reads alone and with writes among them, for several distributions of popularity. Needs root and `wrk` (`scripts/setup.sh bench`).
    Partitioned(crate::ycsb::Args),
    /// Measure YCSB's requests, with each object on all backends.
    ///
    /// The same as `partitioned` with as many replicas as there are backends. Needs root
    /// and `wrk` (`scripts/setup.sh bench`).
    Replicated(crate::ycsb::Args),
    ReplicasKv(crate::replicas_kv::Args),
    Report(crate::report::Args),
    Scale(crate::scale::Args),
    /// Measure reads when few objects, or one, are popular.
    ///
    /// With each object on one backend, by Prism and by nginx as a proxy, and with each on all,
    /// by Prism. Needs root, `wrk` and `nginx`
    /// (`scripts/setup.sh bench`).
    Skew(crate::ycsb::SkewArgs),
    Store(crate::store::Args),
    Sweep(crate::sweep::Args),
    Switch(crate::switch::BenchSwitchArgs),
    Tls(crate::tls::Args),
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
        Command::Builds(args) => crate::builds::run(args),
        Command::Connections(args) => crate::connections::run(args),
        Command::Crossover(args) => crate::crossover::run(args),
        Command::Flows(args) => crate::flows::run(args),
        Command::Handoff(args) => crate::handoff::run(&args),
        Command::Hashes(args) => crate::hashes::run(args),
        Command::Hostmode(args) => crate::upstream::run_host(args),
        Command::Latency(args) => crate::latency::run(args),
        Command::LongPath(args) => crate::long_path::run(args),
        Command::Observed(args) => crate::observed::run(args),
        Command::Partitioned(args) => crate::ycsb::partitioned(args),
        Command::Replicated(args) => crate::ycsb::replicated(args),
        Command::ReplicasKv(args) => crate::replicas_kv::run(args),
        Command::Report(args) => crate::report::run(&args),
        Command::Scale(args) => crate::scale::run(args),
        Command::Skew(args) => crate::ycsb::skew(args),
        Command::Store(args) => crate::store::run(args),
        Command::Sweep(args) => crate::sweep::run(args),
        Command::Switch(args) => crate::switch::run(&args),
        Command::Tls(args) => crate::tls::run(&args),
        Command::Upload(args) => crate::upload::run(args),
        Command::Upstream(args) => crate::upstream::run(args),
    }
}
