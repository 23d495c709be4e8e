//! The admin socket: one command line in, one JSON document out, then the end.
//!
//! `counters`, `cluster`, `state`, `trace on`, `trace off`, `trace take`,
//! `scrub start BYTES_PER_S`, `scrub status`, `drain-connections`, `reload`, `quota`,
//! `quota BUCKET` with `bytes=N|none` and `objects=N|none`, `server drain|up|down NAME`,
//! `server add|remove NAME UPSTREAM`, `start-successor`, and `take-over VERSION...` of a successor,
//! which gets a socket with the answer. Only the machine's administrator may use it: the
//! permissions of the socket's directory grant that.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener as Socket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prism_core::Core;
use prism_handoff::observe::{Figure, tasks_restarted};
use prism_handoff::trace::Part;
use prism_proto::succession::{VERSIONS, common_version};
use prism_service::{Action, Actor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::quota;
use super::reload;
use super::server::Server;
use super::state::state;
use super::successor::{Link, offer, send_on_stream, start_successor};

/// Longest command line.
const MAX_LINE_BYTES: u64 = 256;
/// Time for one exchange.
const DEADLINE: Duration = Duration::from_secs(5);

/// The listening socket. Its file is removed when this is dropped.
pub(crate) struct Admin {
    listener: UnixListener,
    path: PathBuf,
    /// Whether the file is another process's now.
    leaves_file: Cell<bool>,
    /// Gets a link to each process that takes over this one; `None` if none may.
    successors: Option<mpsc::Sender<Link>>,
}

impl Drop for Admin {
    fn drop(&mut self) {
        if !self.leaves_file.get() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Admin {
    /// Listens at `path`, with the inherited socket if it is there.
    pub(crate) fn open(
        path: &Path,
        inherited: Option<Socket>,
        successors: Option<mpsc::Sender<Link>>,
    ) -> io::Result<Self> {
        let is_there = |socket: &Socket| {
            let address = socket.local_addr();
            address.is_ok_and(|at| at.as_pathname() == Some(path))
        };
        let listener = match inherited.filter(is_there) {
            Some(socket) => UnixListener::from_std(socket)?,
            None => Self::bind(path)?,
        };
        Ok(Self {
            listener,
            path: path.into(),
            leaves_file: Cell::new(false),
            successors,
        })
    }

    /// A copy of the socket, for another process.
    pub(super) fn copy(&self) -> io::Result<Socket> {
        Ok(self.listener.as_fd().try_clone_to_owned()?.into())
    }

    /// The file stays, because another process answers there.
    pub(super) fn leave_file(&self) {
        self.leaves_file.set(true);
    }

    fn bind(path: &Path) -> io::Result<UnixListener> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        UnixListener::bind(path)
    }

    /// Answers one exchange after the other, but none that is a successor's. Never returns.
    pub(crate) async fn run(&self, server: &Arc<Server>) {
        let mut passing = server.core.orders.passing();
        let mut starts = passing.clone();
        loop {
            // Never an error: the node has the sender.
            let _ = starts.wait_for(|passes| !passes).await;
            let accepted = tokio::select! {
                biased;
                _ = passing.wait_for(|passes| *passes) => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let answering = answer(stream, server, self.successors.as_ref());
                    let _ = tokio::time::timeout(DEADLINE, answering).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin socket cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn answer(
    stream: UnixStream,
    server: &Server,
    successors: Option<&mpsc::Sender<Link>>,
) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(MAX_LINE_BYTES))
        .read_line(&mut line)
        .await?;
    let mut socket = None;
    let document = match line.strip_prefix("take-over") {
        Some(versions) => match take_over(versions, uid, successors) {
            Ok((document, theirs)) => {
                socket = Some(theirs);
                document
            }
            Err(error) => json!({ "error": error }),
        },
        None => obey(server, line.trim()).await,
    };
    if is_action(line.trim()) {
        let error = document.get("error").and_then(Value::as_str);
        server.requests.audit.record(&Action {
            actor: Actor::Local { uid },
            at: &server.core.name,
            action: line.trim(),
            subject: None,
            outcome: error.unwrap_or("done"),
        });
    }
    let document = format!("{document}\n");
    match socket {
        Some(socket) => send_on_stream(writer.as_ref(), document.as_bytes(), socket.as_fd()),
        None => writer.write_all(document.as_bytes()).await,
    }
}

/// Begins a take-over by a process that speaks one of `versions`. Returns the answer, and the
/// socket for it.
fn take_over(
    versions: &str,
    uid: u32,
    successors: Option<&mpsc::Sender<Link>>,
) -> Result<(Value, OwnedFd), String> {
    // It gets the keys of all TLS sessions.
    if uid != rustix::process::geteuid().as_raw() {
        return Err("a successor has to run as the same user as this process".into());
    }
    let successors = successors.ok_or("`prism serve` cannot be taken over")?;
    let theirs: Vec<u8> = versions
        .split_whitespace()
        .filter_map(|version| version.parse().ok())
        .collect();
    let version = common_version(VERSIONS, &theirs).ok_or_else(|| {
        format!(
            "this process speaks the versions {VERSIONS:?} of the take-over, and its successor \
             {theirs:?}; upgrade by way of a release between the two, or restart the node"
        )
    })?;
    let (link, socket) = offer(version).map_err(|error| error.to_string())?;
    match successors.try_send(link) {
        Ok(()) => Ok((json!({ "take_over": version }), socket)),
        Err(_) => Err("another successor takes over, or this process stops".into()),
    }
}

/// Whether a command does more than show something.
fn is_action(line: &str) -> bool {
    let to_successor = line == "start-successor" || line.starts_with("take-over");
    line == "reload"
        || line == "drain-connections"
        || to_successor
        || line.starts_with("trace o")
        || line.starts_with("scrub start")
        || line.starts_with("server ")
        || quota::is_change(line)
}

async fn obey(server: &Server, line: &str) -> Value {
    let node = &*server.core;
    if let Some(obeying) = server.service.obey(line) {
        return obeying.await;
    }
    match line {
        "counters" => counters(server),
        "cluster" => match node.survey().await {
            Some(survey) => survey,
            None => json!({ "error": "no worker answers" }),
        },
        "state" => state(server).await,
        "drain-connections" => drain_connections(node),
        "start-successor" => match start_successor() {
            Ok(pid) => json!({ "node": node.name, "pid": pid }),
            Err(error) => json!({ "error": format!("cannot start a successor: {error}") }),
        },
        word @ ("trace on" | "trace off") => {
            let on = word == "trace on";
            node.process.trace.set_on(on);
            json!({ "trace": on })
        }
        "reload" => reload::reload(server).document(&node.name),
        "trace take" => trace(node),
        line => json!({
            "error": format!(
                "unknown command {line:?}; try: counters, cluster, state, drain-connections, quota [BUCKET], reload, server drain|up|down NAME, server add|remove NAME UPSTREAM, start-successor, trace on|off|take, scrub start|status"
            )
        }),
    }
}

/// The counters of a node.
pub(super) fn counters(server: &Server) -> Value {
    let node = &*server.core;
    let named = |list: Vec<(&'static str, u64)>| -> Value { list.into_iter().collect() };
    let of = |figures: Vec<Figure>| {
        figures
            .into_iter()
            .map(|figure| (figure.name, figure.value))
    };
    let mut requests: Vec<_> = of(node.counters.figures()).collect();
    let handoff = of(node.process.counters.figures()).chain(of(vec![tasks_restarted()]));
    let hand_off_ns = node.process.hand_off_ns().unwrap_or_default();
    requests.extend([
        (
            "relay_up_to_bytes",
            server.gateway.relay_up_to_bytes().into(),
        ),
        ("hand_off_ns", hand_off_ns as u64),
        ("relay_ns", server.gateway.relay_ns() as u64),
    ]);
    json!({
        "node": node.name,
        "pid": std::process::id(),
        "handoff": named(handoff.collect()),
        "requests": named(requests),
        "store": server.service.store_counters(),
    })
}

/// Moves all present connections to other nodes, each after its present answer.
fn drain_connections(node: &Core) -> Value {
    let connections = node.process.counters.connections_open.read();
    node.orders.move_all();
    json!({ "node": node.name, "connections": connections })
}

fn trace(node: &Core) -> Value {
    let records = node.process.trace.take();
    let records = records.into_iter().map(|r| {
        json!({ "id": r.id, "client_port": r.client_port, "part": r.part.name(), "target": r.part == Part::Target, "at_ns": r.at_ns })
    });
    json!({ "node": node.name, "records": records.collect::<Vec<_>>() })
}
