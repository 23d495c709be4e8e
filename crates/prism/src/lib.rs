//! The `prism` program: every role of a server, and the tools of its operators.
//!
//! It is a library, so that `prism-manual` can describe its commands in man pages and
//! completions without being a part of it.

#[cfg(test)]
mod docs_tests;
mod node;
mod serve;
#[cfg(test)]
mod version_tests;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// The version, with the commit where the build knew it.
const VERSION: &str = env!("PRISM_VERSION");

/// S3 object storage whose frontend stays out of the data path: a client's connection
/// moves to the backend that has the object.
#[derive(Debug, Parser)]
#[command(name = "prism", version = VERSION, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Serve(serve::Args),
    Node(node::Args),
    Switch(prism_agent::Args),
    Check(prism_host::check::Args),
    Setup(prism_host::setup::Args),
    Doctor(prism_host::doctor::Args),
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
        Command::Switch(args) => prism_agent::run(&args, VERSION),
        Command::Check(args) => prism_host::check::run(args),
        Command::Setup(args) => prism_host::setup::run(&args),
        Command::Doctor(args) => prism_host::doctor::run(args),
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
