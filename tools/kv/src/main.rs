//! A key-value server with read replicas, as an example of `prism-handoff`: clients of Redis
//! speak to one address, and their connections move to the replica that answers them.
//!
//! - The primary does all writes. A read of a large value moves the connection to a replica,
//!   which answers it and later reads (`session`).
//! - A replica asks the primary for each read whether its copy of the value is the last one, and
//!   gets the value only if it is not (`values`). So every read sees all answered writes, and
//!   most of the bytes leave from replicas.
//! - A small write at a replica is relayed to the primary. A large one moves the connection back.
//!
//! The commands are GET, SET, DEL, PING and INFO. Values are in memory only, and nobody
//! takes over for the primary. `prism-kv CONFIG` is a node. It ends with its standard input.
#![forbid(unsafe_code)]

mod config;
mod resp;
mod session;
mod values;

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use prism_handoff::{Endpoint, Handle, Incoming, Process};
use tokio::task::{LocalSet, spawn_local};

use config::Config;
use values::Values;

/// The state that the tasks of a node share.
struct KvNode {
    config: Config,
    handle: Handle,
    process: Arc<Process>,
    values: RefCell<Values>,
    /// The number of connections that the primary has sent to a replica.
    turn: Cell<usize>,
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: prism-kv CONFIG")?;
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let config = toml::from_str(&text).context(path)?;
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, serve(config))
}

async fn serve(config: Config) -> Result<()> {
    let process = Arc::new(Process::default());
    let mut endpoint = Endpoint::bind(config.endpoint()?, process.clone()).await?;
    let node = Rc::new(KvNode {
        handle: endpoint.handle(),
        process,
        values: RefCell::default(),
        turn: Cell::new(0),
        config,
    });
    node.handle.switch_answers().await;
    println!("{} is ready", node.config.name);
    while let Some(incoming) = endpoint.next().await {
        let node = node.clone();
        match incoming {
            Incoming::Client(client) => {
                spawn_local(async move { session::serve_client(&node, client).await });
            }
            Incoming::Relay { stream, .. } => {
                spawn_local(async move { session::serve_node(&node, stream).await });
            }
        }
    }
    Ok(())
}
