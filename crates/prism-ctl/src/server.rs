//! `prism ctl server`: takes servers of upstreams out of service, and gives them back.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use prism_figures::State;
use prism_process::ask;
use serde::Deserialize;

use crate::reach::{Common, print_json};

/// Time between two looks at the requests under way.
const POLL: Duration = Duration::from_millis(500);

/// Take a server of an upstream out of service, or give it back.
///
/// Give the command at a frontend, or at the backend of the server. It reaches the server's
/// backend, which keeps it over reloads, restarts and upgrades. `prism ctl status` shows it at each
/// node.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Give it only requests of clients that are its own.
    ///
    /// They are those whose cookie names it (`cookie` of the upstream), and those that have logged
    /// in by NTLM or Negotiate. Requests and tunnels under way end by themselves.
    Drain(Named),
    /// Give it no request. Requests and tunnels under way end by themselves.
    Down(Named),
    /// Give it requests again, if it is healthy.
    Up {
        #[command(flatten)]
        named: Meaning,
    },
}

#[derive(Args, Clone, Debug)]
struct Meaning {
    /// A backend, for all of its servers; BACKEND/ADDRESS; or the ADDRESS of a server that several
    /// backends reach.
    name: String,
    /// Ask the node at this admin socket, such as that of `prism serve` [default: the first node of
    /// this host].
    #[arg(long, value_name = "PATH")]
    socket: Option<std::path::PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct Named {
    #[command(flatten)]
    named: Meaning,
    /// Wait until it has no request and no tunnel under way.
    #[arg(long)]
    wait: bool,
}

/// A node's answer.
#[derive(Deserialize)]
struct Assignment {
    duty: String,
    servers: Vec<NamedServer>,
}

#[derive(Deserialize)]
struct NamedServer {
    backend: String,
    address: String,
}

pub(crate) fn run(args: &ServerArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let (word, named, waits) = match &args.command {
        Command::Drain(Named { named, wait }) => ("drain", named, *wait),
        Command::Down(Named { named, wait }) => ("down", named, *wait),
        Command::Up { named } => ("up", named, false),
    };
    let socket = match &named.socket {
        Some(socket) => socket.clone(),
        None => common.admin_socket(None)?,
    };
    let question = format!("server {word} {}", named.name);
    let (Assignment { duty, servers }, document) = ask(&socket, &question)?;
    if !common.json {
        for NamedServer { backend, address } in &servers {
            writeln!(out, "{backend}/{address}: {duty}")?;
        }
        out.flush()?;
    }
    if waits {
        wait(&socket, &servers)?;
        if !common.json {
            writeln!(out, "nothing is under way")?;
        }
    }
    if common.json {
        print_json(out, &document)
    } else {
        Ok(())
    }
}

/// Waits until no request is under way at these servers.
fn wait(socket: &Path, servers: &[NamedServer]) -> anyhow::Result<()> {
    loop {
        let (state, _): (State, _) = ask(socket, "state")?;
        let all = state.servers.unwrap_or_default();
        let mut meant = all.iter().filter(|server| {
            let mut servers = servers.iter();
            servers.any(|one| one.backend == server.backend && one.address == server.address)
        });
        // A backend that does not answer has unknown servers.
        if meant.all(|server| server.under_way == 0 && server.state != "unknown") {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}
