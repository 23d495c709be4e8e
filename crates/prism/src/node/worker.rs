//! The life of one worker thread.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use prism_gateway::{Farewell, Gateway};
use prism_handoff::supervise::keep;
use prism_handoff::{Endpoint, EndpointConfig, Handle};
use prism_objects::Objects;
use prism_replicas::{Node, Replicator, keep_tasks};
use prism_service::Peers;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::server::{Server, other_nodes};
use crate::notify::Beat;

/// The signs that a worker gives the process around it.
pub(super) struct Reports {
    /// Gets a message once the listeners exist.
    pub(super) bound: mpsc::Sender<()>,
    /// The worker drops its parts when peers know that the node leaves, and new clients go
    /// elsewhere.
    pub(super) farewell: Farewell,
    pub(super) beat: Beat,
}

/// Serves until the node ends.
pub(super) fn run(
    server: &Server,
    endpoint: EndpointConfig,
    reports: Reports,
) -> anyhow::Result<()> {
    let Reports {
        bound,
        farewell,
        beat,
    } = reports;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let node = &server.node;
        let services = server.node.config.now().service.address.to_string();
        let opened = Endpoint::bind(endpoint, node.process.clone()).await;
        let endpoint = opened.with_context(|| {
            format!(
                "binding the service {services} or the node port of {}",
                node.name
            )
        })?;
        let handle = endpoint.handle();
        // Nobody is accepted before a predecessor has stopped.
        handle.pause_accepting(node.orders.now().to_successor);
        let _ = bound.send(()).await;
        drop(bound);
        let stall_timeout = node.config.now().limits.stall_timeout();
        let to_others = Rc::new(Peers::new(handle.clone(), stall_timeout));
        let replicator = Rc::new(Replicator::new(node.clone(), to_others.clone()));
        let objects = Objects::new(server.objects.clone(), replicator.clone());
        let shared = server.gateway.clone();
        let gateway = Rc::new(Gateway::new(shared, objects, handle.clone(), to_others));
        keep_tasks(&replicator);
        tokio::task::spawn_local(beat.keep());
        let node = node.clone();
        keep("the directory", async move || {
            follow_directory(&node, &handle).await;
        });
        let (following, mut farewell) = (gateway.clone(), Some(farewell));
        keep("orders", async move || {
            following.follow_orders(&mut farewell).await;
        });
        gateway.run(endpoint).await;
        Ok(())
    })
}

/// Gives the endpoint the addresses of the other nodes, whenever they change.
async fn follow_directory(node: &Arc<Node>, handle: &Handle) {
    let mut directory = node.cluster.directory.clone();
    loop {
        let others = other_nodes(&node.name, &directory.borrow_and_update());
        handle.set_peers(&others);
        if directory.changed().await.is_err() {
            return;
        }
    }
}
