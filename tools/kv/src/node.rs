//! A node: its endpoint, its values, and the tasks of its role.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use prism_handoff::{Endpoint, Handle, Incoming, Process};
use tokio::task::spawn_local;

use crate::budget::Budget;
use crate::config::Config;
use crate::primary::Primary;
use crate::replica::Replica;
use crate::session;
use crate::store::Store;

/// The state that the tasks of a node share.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) handle: Handle,
    pub(crate) process: Arc<Process>,
    pub(crate) store: RefCell<Store>,
    /// The memory of values that arrive from clients, and of relayed answers to them.
    pub(crate) arriving: Budget,
    pub(crate) role: Role,
    /// The number of connections that were sent to a replica.
    pub(crate) turn: Cell<usize>,
}

pub(crate) enum Role {
    Primary(Primary),
    Replica(Replica),
}

/// Serves clients until the process ends.
///
/// # Errors
/// When the configuration is wrong, or an address cannot be bound.
pub async fn serve(config: Config) -> Result<()> {
    let process = Arc::new(Process::default());
    let mut endpoint = Endpoint::bind(config.endpoint()?, process.clone()).await?;
    let primary = config.primary()?.to_owned();
    let role = match primary == config.name {
        true => Role::Primary(Primary::new()),
        false => Role::Replica(Replica::new(primary)),
    };
    let node = Rc::new(Node {
        config,
        handle: endpoint.handle(),
        process,
        store: RefCell::default(),
        arriving: Budget::default(),
        role,
        turn: Cell::new(0),
    });
    if let Role::Replica(_) = node.role {
        let following = node.clone();
        spawn_local(async move { crate::replica::follow(&following).await });
    }
    if node.config.switch.is_some() {
        node.handle.switch_answers().await;
    }
    println!("{} is ready", node.config.name);
    while let Some(incoming) = endpoint.next().await {
        let node = node.clone();
        match incoming {
            Incoming::Client(client) => {
                spawn_local(async move { session::serve_client(&node, client).await });
            }
            Incoming::Relay { stream, peer } => {
                spawn_local(async move { session::serve_node(&node, stream, &peer).await });
            }
        }
    }
    Ok(())
}
