//! The admin socket: one command line in, one JSON document out, then the end.
//!
//! `counters`, `cluster`, `state`, `trace on`, `trace off`, `trace take`,
//! `scrub start BYTES_PER_S`, `scrub status`, `drain-connections`, `reload`, `quota BUCKET` with
//! `bytes=N|none` and `objects=N|none`. Only the machine's administrator may use it: the
//! permissions of the socket's directory grant that.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::trace::Part;
use prism_handoff::{Figure, tasks_restarted};
use prism_replicas::Node;
use prism_service::{Action, Actor};
use prism_store::Store;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::quota;
use super::reload;
use super::server::Server;
use super::state::state;

/// Longest command line.
const MAX_LINE_BYTES: u64 = 256;
/// Time for one exchange.
const DEADLINE: Duration = Duration::from_secs(5);

/// The listening socket. Its file is removed when this is dropped.
pub(crate) struct Admin {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Admin {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Admin {
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self {
            listener: UnixListener::bind(path)?,
            path: path.into(),
        })
    }

    /// Answers one exchange after the other. Never returns.
    pub(crate) async fn run(&self, server: &Arc<Server>) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let _ = tokio::time::timeout(DEADLINE, answer(stream, server)).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin socket cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn answer(stream: UnixStream, server: &Server) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(MAX_LINE_BYTES))
        .read_line(&mut line)
        .await?;
    let document = obey(server, line.trim()).await;
    if is_action(line.trim()) {
        let error = document.get("error").and_then(Value::as_str);
        server.requests.audit.record(&Action {
            actor: Actor::Local { uid },
            at: &server.node.name,
            action: line.trim(),
            subject: None,
            outcome: error.unwrap_or("done"),
        });
    }
    writer.write_all(format!("{document}\n").as_bytes()).await
}

/// Whether a command does more than show something.
fn is_action(line: &str) -> bool {
    line == "reload"
        || line == "drain-connections"
        || line.starts_with("trace o")
        || line.starts_with("scrub start")
        || quota::is_change(line)
}

async fn obey(server: &Server, line: &str) -> Value {
    let node = &*server.node;
    match line {
        "counters" => counters(server),
        "cluster" => match node.replication.survey().await {
            Some(survey) => survey,
            None => json!({ "error": "no worker answers" }),
        },
        "state" => state(server).await,
        "drain-connections" => drain_connections(node),
        line if line.starts_with("quota ") => quota::answer(node, line).await,
        word @ ("trace on" | "trace off") => {
            let on = word == "trace on";
            node.process.trace.set_on(on);
            json!({ "trace": on })
        }
        "reload" => reload::reload(server).document(&node.name),
        "trace take" => trace(node),
        line => match line.strip_prefix("scrub ") {
            Some(what) => scrub(node, what),
            None => json!({
                "error": format!(
                    "unknown command {line:?}; try: counters, cluster, state, drain-connections, quota BUCKET, reload, trace on|off|take, scrub start|status"
                )
            }),
        },
    }
}

/// The counters of a node.
pub(super) fn counters(server: &Server) -> Value {
    let node = &*server.node;
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
        "handoff": named(handoff.collect()),
        "requests": named(requests),
        "store": node.store.as_ref().map(|store| named(of_store(node, store))),
    })
}

fn of_store(node: &Node, store: &Store) -> Vec<(&'static str, u64)> {
    let scrub = node.scrub.totals();
    let open_changes = store.open_changes().older_than(Duration::ZERO, None).len() as u64;
    vec![
        ("bytes_used", store.bytes_used()),
        ("corrupt_reads", store.integrity().corrupt_reads()),
        ("scrub_runs", scrub.runs),
        ("scrub_bytes", scrub.bytes),
        ("scrub_faults", scrub.faults),
        ("mended_blocks", scrub.repaired),
        ("open_changes", open_changes),
    ]
}

fn scrub(node: &Node, what: &str) -> Value {
    if node.store.is_none() {
        return json!({ "error": "this node stores nothing" });
    }
    let rate = what.strip_prefix("start").map(|rate| match rate.trim() {
        "" => Ok(0),
        rate => rate.parse(),
    });
    match (what, rate) {
        ("status", _) => {
            let mut status = node.scrub.status();
            if let Some(fields) = status.as_object_mut() {
                fields.insert("node".into(), node.name.clone().into());
            }
            status
        }
        (_, Some(Ok(rate))) => json!({ "node": node.name, "run": node.scrub.ask(rate) }),
        _ => json!({ "error": "try: scrub start BYTES_PER_S, scrub status" }),
    }
}

/// Moves all present connections to other nodes, each after its present answer.
fn drain_connections(node: &Node) -> Value {
    let connections = node.process.counters.connections_open.read();
    node.orders.move_all();
    json!({ "node": node.name, "connections": connections })
}

fn trace(node: &Node) -> Value {
    let records = node.process.trace.take();
    let records = records.into_iter().map(|r| {
        json!({ "id": r.id, "client_port": r.client_port, "part": r.part.name(), "target": r.part == Part::Target, "at_ns": r.at_ns })
    });
    json!({ "node": node.name, "records": records.collect::<Vec<_>>() })
}
