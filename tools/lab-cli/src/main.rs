//! The program `prism-lab`: labs, the demo and benchmarks, for developers. A server needs none
//! of it.
//!
//! The hosts of a lab run the program `prism` in the directory of this one, or the one that
//! `--prism` names.

#![forbid(unsafe_code)]

mod demo;
#[cfg(test)]
mod docs_tests;
mod lab;
mod simulate;

use std::process::ExitCode;

use clap::Parser;

/// Several hosts on this machine, in network namespaces.
///
/// A lab is a client, a switch, frontends and backends, each with its own
/// network, running the program prism. Needs root. Example:
///
///   prism-lab up --backends 5
///   prism-lab exec client -- aws s3 mb s3://photos
///   prism-lab down
#[derive(Debug, Parser)]
#[command(
    name = "prism-lab",
    version,
    max_term_width = 100,
    verbatim_doc_comment,
    about = "Several Prism hosts on this machine, in network namespaces"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(flatten)]
    Lab(lab::Command),
    Demo(demo::Args),
    Bench(prism_bench::Args),
    Simulate(simulate::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Lab(command) => lab::run(command),
        Command::Demo(args) => demo::run(&args),
        Command::Simulate(simulate::Args {}) => {
            prism_sys::process::end_on_broken_pipe();
            simulate::run()
        }
        Command::Bench(args) => {
            // Benchmarks print at their end, when no lab is left to take down.
            prism_sys::process::end_on_broken_pipe();
            prism_bench::run(args)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "prism-lab: {}",
                prism_sys::process::explained(error.as_ref())
            );
            ExitCode::FAILURE
        }
    }
}
