//! `prism bench`: what Prism's parts cost on this machine, and what they are good for.

pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod frames;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod network;
pub(crate) mod objects;
pub(crate) mod popularity;
pub(crate) mod processes;
mod proxies;
pub(crate) mod rows;
pub(crate) mod summary;
pub(crate) mod turns;

/// Measure what Prism's parts cost on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Flows(crate::bench_flows::Args),
    Handoff(crate::bench_handoff::Args),
    Latency(crate::bench_latency::Args),
    /// Measure a store whose objects are each on one backend, as YCSB does.
    ///
    /// Reads alone and with writes among them, of objects that are popular to different
    /// degrees, by Prism with its own store. Needs root and `wrk` (`scripts/setup.sh bench`).
    Partitioned(crate::bench_ycsb::Args),
    /// Measure a store whose objects are each on all backends, as YCSB does.
    ///
    /// The same as `partitioned` with as many replicas as there are backends. Needs root
    /// and `wrk` (`scripts/setup.sh bench`).
    Replicated(crate::bench_ycsb::Args),
    Report(crate::bench_report::Args),
    Scale(crate::bench_scale::Args),
    /// Measure reads when few objects, or one, are what everybody wants.
    ///
    /// With each object on one backend, by Prism and by nginx as a proxy before the same
    /// backends, and with each on all, by Prism. Needs root, `wrk` and `nginx`
    /// (`scripts/setup.sh bench`).
    Skew(crate::bench_ycsb::SkewArgs),
    Store(crate::bench_store::Args),
    Sweep(crate::bench_sweep::Args),
    Switch(crate::bench_switch::BenchSwitchArgs),
    Tls(crate::bench_tls::Args),
    Upload(crate::bench_upload::Args),
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Flows(args) => crate::bench_flows::run(args),
        Command::Handoff(args) => crate::bench_handoff::run(&args),
        Command::Latency(args) => crate::bench_latency::run(args),
        Command::Partitioned(args) => crate::bench_ycsb::partitioned(args),
        Command::Replicated(args) => crate::bench_ycsb::replicated(args),
        Command::Report(args) => crate::bench_report::run(&args),
        Command::Scale(args) => crate::bench_scale::run(args),
        Command::Skew(args) => crate::bench_ycsb::skew(args),
        Command::Store(args) => crate::bench_store::run(&args),
        Command::Sweep(args) => crate::bench_sweep::run(args),
        Command::Switch(args) => crate::bench_switch::run(&args),
        Command::Tls(args) => crate::bench_tls::run(&args),
        Command::Upload(args) => crate::bench_upload::run(args),
    }
}
