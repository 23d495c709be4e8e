//! The `prism` program: every role of a server, and the tools of its operators.

mod check;
mod ctl;
#[cfg(test)]
mod docs_tests;
mod doctor;
mod log;
mod node;
mod observe;
mod pki;
mod random;
mod serve;
mod switch;
mod term;
#[cfg(test)]
mod version_tests;

use std::process::ExitCode;

use clap::Parser;

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
    Doctor(doctor::Args),
    Ctl(ctl::CtlArgs),
    Pki(pki::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // Commands that only print, or print when their work is done.
    if matches!(
        command,
        Command::Ctl(_) | Command::Check(_) | Command::Doctor(_) | Command::Pki(_)
    ) {
        prism_sys::process::end_on_broken_pipe();
    }
    let result = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Switch(args) => switch::run(&args),
        Command::Check(args) => check::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Ctl(args) => ctl::run(&args),
        Command::Pki(args) => pki::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("prism: {error:#}");
            ExitCode::FAILURE
        }
    }
}
