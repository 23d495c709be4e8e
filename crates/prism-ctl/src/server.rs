//! `prism ctl server`: takes servers of upstreams out of service and gives them back, and adds and
//! removes servers.

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

/// Take a server of an upstream out of service, give it back, add or remove one.
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
    /// Add a server to an upstream, beside those of the configuration.
    ///
    /// The backends keep the server until it is removed again. Nothing happens where the upstream
    /// has it already.
    Add(Amendment),
    /// Remove a server that was added.
    ///
    /// Requests and tunnels under way end by themselves. A server that the configuration or
    /// `servers_file` names is removed there, or taken out by `prism ctl server down`.
    Remove(Amendment),
}

#[derive(Args, Clone, Debug)]
struct Amendment {
    /// The upstream, as `prism ctl status` names it.
    upstream: String,
    /// The ADDRESS:PORT of the server, at all backends of the upstream; or BACKEND/ADDRESS:PORT.
    server: String,
    /// Ask the node at this admin socket [default: the first node of this host].
    #[arg(long, value_name = "PATH")]
    socket: Option<std::path::PathBuf>,
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

/// A node's answer to an amendment.
#[derive(Deserialize)]
struct AmendmentAnswer {
    servers: Vec<AmendedServer>,
}

#[derive(Deserialize)]
struct AmendedServer {
    backend: String,
    address: String,
    outcome: String,
    source: Option<String>,
}

pub(crate) fn run(args: &ServerArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let (word, named, waits) = match &args.command {
        Command::Drain(Named { named, wait }) => ("drain", named, *wait),
        Command::Down(Named { named, wait }) => ("down", named, *wait),
        Command::Up { named } => ("up", named, false),
        Command::Add(amendment) => return amend("add", amendment, common, out),
        Command::Remove(amendment) => return amend("remove", amendment, common, out),
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

/// Adds a server, or removes one.
fn amend(
    word: &str,
    amendment: &Amendment,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Amendment {
        upstream,
        server,
        socket,
    } = amendment;
    let socket = match socket {
        Some(socket) => socket.clone(),
        None => common.admin_socket(None)?,
    };
    // The name of an upstream may have blanks, and so comes last.
    let (AmendmentAnswer { servers }, document) =
        ask(&socket, &format!("server {word} {server} {upstream}"))?;
    if common.json {
        return print_json(out, &document);
    }
    for server in &servers {
        let AmendedServer {
            backend, address, ..
        } = server;
        writeln!(out, "{backend}/{address}: {}", outcome(server))?;
    }
    Ok(out.flush()?)
}

/// The outcome at one backend, as the operator reads it.
fn outcome(server: &AmendedServer) -> String {
    let source = match server.source.as_deref() {
        Some("configuration") => "the configuration names it",
        Some("file") => "servers_file names it",
        Some("added") => "it was added before",
        _ => "",
    };
    match (server.outcome.as_str(), source) {
        ("present", source) => format!("there already: {source}"),
        ("absent", _) => "not there".into(),
        ("removed", "") => "removed".into(),
        ("removed", source) => format!("not added any more, but still there: {source}"),
        (word, _) => word.into(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_says_what_else_names_the_server() {
        for (word, source, expected) in [
            ("added", None, "added"),
            (
                "present",
                Some("added"),
                "there already: it was added before",
            ),
            (
                "present",
                Some("configuration"),
                "there already: the configuration names it",
            ),
            ("removed", None, "removed"),
            (
                "removed",
                Some("file"),
                "not added any more, but still there: servers_file names it",
            ),
            ("absent", None, "not there"),
        ] {
            let server = AmendedServer {
                backend: "be0".into(),
                address: "127.0.0.1:9000".into(),
                outcome: word.into(),
                source: source.map(str::to_owned),
            };
            assert_eq!(outcome(&server), expected);
        }
    }
}
