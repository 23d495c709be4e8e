//! The life of one worker thread.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use prism_common::supervise::keep;
use prism_config::seconds;
use prism_core::{Core, CoreNode, keep_jobs};
use prism_gateway::{Farewell, Gateway};
use prism_handoff::{Endpoint, EndpointConfig, Handle};
use prism_process::notify::Beat;
use prism_service::{Peers, Service};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::server::{Server, other_nodes};

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
    let runtime = prism_common::runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let node = &server.core;
        let services = server.core.config.now().service.address.to_string();
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
        let stall_timeout = seconds(node.config.now().limits.stall_timeout_s);
        let to_others = Rc::new(Peers::new(handle.clone(), stall_timeout));
        keep_jobs(&Rc::new(CoreNode::new(node.clone(), to_others.clone())));
        tokio::task::spawn_local(beat.keep());
        let cluster = node.clone();
        let taking = handle.clone();
        keep("new clients", async move || {
            follow_doubt(&cluster, &taking).await;
        });
        let node = node.clone();
        let following = handle.clone();
        keep("the directory", async move || {
            follow_directory(&node, &following).await;
        });
        let worker = Worker {
            shared: server.gateway.clone(),
            handle,
            peers: to_others,
            endpoint,
            farewell,
        };
        server.service.serve(worker).await;
        Ok(())
    })
}

/// A worker's parts that do not depend on the service.
pub(super) struct Worker {
    shared: Arc<prism_gateway::Shared>,
    handle: Handle,
    /// The streams to other nodes.
    pub(super) peers: Rc<Peers>,
    endpoint: Endpoint,
    farewell: Farewell,
}

impl Worker {
    /// Serves until the node ends.
    pub(super) async fn run<S: Service>(self, service: S) {
        let gateway = Gateway::new(self.shared, service, self.handle, self.peers);
        let gateway = Rc::new(gateway);
        let following = gateway.clone();
        let mut farewell = Some(self.farewell);
        keep("orders", async move || {
            following.follow_orders(&mut farewell).await;
        });
        gateway.run(self.endpoint).await;
    }
}

/// Sends new clients to other frontends while this node refuses requests with keys.
async fn follow_doubt(node: &Core, handle: &Handle) {
    loop {
        node.cluster.doubt_changes(false).await;
        handle.take_new_clients(false);
        node.cluster.doubt_changes(true).await;
        handle.take_new_clients(true);
    }
}

/// Gives the endpoint the addresses of the other nodes, whenever they change.
async fn follow_directory(node: &Arc<Core>, handle: &Handle) {
    let mut directory = node.cluster.directory.clone();
    loop {
        let others = other_nodes(&node.name, &directory.borrow_and_update());
        handle.set_peers(&others);
        if directory.changed().await.is_err() {
            return;
        }
    }
}
