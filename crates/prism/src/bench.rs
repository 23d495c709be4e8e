//! `prism bench`: what Prism's parts cost on this machine, and what they are good for.

pub(crate) mod client;
pub(crate) mod cluster;
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
    Handoff(crate::bench_handoff::Args),
    Store(crate::bench_store::Args),
    Sweep(crate::bench_sweep::Args),
    Switch(crate::bench_switch::BenchSwitchArgs),
    Tls(crate::bench_tls::Args),
}

/// Runs the benchmark.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Handoff(args) => crate::bench_handoff::run(&args),
        Command::Store(args) => crate::bench_store::run(&args),
        Command::Sweep(args) => crate::bench_sweep::run(args),
        Command::Switch(args) => crate::bench_switch::run(&args),
        Command::Tls(args) => crate::bench_tls::run(&args),
    }
}
