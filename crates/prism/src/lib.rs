//! The `prism` program: every role of a server, and the tools of its operators.
//!
//! It is a library, so that `prism-manual` can describe its commands in man pages and
//! completions without being a part of it.

mod check;
#[cfg(test)]
mod docs_tests;
mod doctor;
mod host;
mod node;
mod serve;
mod setup;
mod switch;
#[cfg(test)]
mod version_tests;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// S3 object storage whose frontend stays out of the data path: a client's connection
/// moves to the backend that has the object.
#[derive(Debug, Parser)]
#[command(name = "prism", version = env!("PRISM_VERSION"), max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Serve(serve::Args),
    Node(node::Args),
    Switch(switch::Args),
    Check(check::Args),
    Setup(setup::Args),
    Doctor(doctor::Args),
    Ctl(prism_ctl::CtlArgs),
    Pki(prism_ctl::pki::Args),
}

/// The commands of the program, with their options and help.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the program by the arguments of this process. Returns its status.
#[must_use]
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    // Commands that only print, or print when their work is done.
    if matches!(
        command,
        Command::Ctl(_)
            | Command::Check(_)
            | Command::Setup(_)
            | Command::Doctor(_)
            | Command::Pki(_)
    ) {
        prism_sys::process::end_on_broken_pipe();
    }
    let result = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Switch(args) => switch::run(&args),
        Command::Check(args) => check::run(args),
        Command::Setup(args) => setup::run(&args),
        Command::Doctor(args) => doctor::run(args),
        Command::Ctl(args) => return ended(prism_ctl::run(&args)),
        Command::Pki(args) => prism_ctl::pki::run(args),
    };
    ended(result.map(|()| ExitCode::SUCCESS))
}

/// The status of the process, after the words about an error.
fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(status) => status,
        Err(error) => {
            eprintln!("prism: {}", prism_sys::process::explained(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
