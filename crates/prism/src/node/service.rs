//! The service of a node as the node sees it, whatever the service is.
//!
//! `objects.rs` is the object store, `upstreams.rs` the HTTP servers behind the backends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use prism_config::Config;
use prism_core::{NodeFigures, StoreReport};
use prism_figures::{ServerState, StoreState};
use prism_handoff::Transit;
use prism_process::Metric;
use serde_json::Value;

use super::worker::Worker;

/// Work of a service on the calling thread.
pub(super) type Work<'s, T = ()> = Pin<Box<dyn Future<Output = T> + 's>>;

/// A service, as a node needs it.
pub(in crate::node) trait NodeService: Send + Sync {
    /// Its kind in the document of the cluster's state.
    fn kind(&self) -> &'static str;

    /// The beginning of the names of its metrics of requests.
    fn protocol(&self) -> &'static str;

    /// Whether nodes keep objects, so that the figures of stores and of replicas concern it.
    fn keeps_objects(&self) -> bool {
        false
    }

    /// Whether this node has a store open.
    fn has_store(&self) -> bool {
        false
    }

    /// Why this node may not serve, if that is so.
    fn not_ready(&self) -> Option<&'static str> {
        None
    }

    /// Names the node for a connection by its next request, at a frontend to which backends return
    /// connections.
    fn transit(&self) -> Transit;

    /// Serves the connections of a worker until the node ends.
    fn serve(&self, worker: Worker) -> Work<'_>;

    /// Acts by the cluster as it changes. Never returns.
    fn follow_cluster(&self) -> Work<'_>;

    /// Starts the thread of the service beside the workers, if it has one.
    fn start_thread(self: Arc<Self>) -> io::Result<Option<JoinHandle<()>>> {
        Ok(None)
    }

    /// Ends that thread.
    fn end_thread(&self) {}

    /// Resolves when the changes have ended that are under way.
    fn changes_ended(&self) -> Work<'_> {
        Box::pin(std::future::ready(()))
    }

    /// Acts by a new configuration.
    fn reconfigure(&self, config: &Config);

    /// Obeys a command of the admin socket; `None` if it is none of this service.
    fn obey<'s>(&'s self, line: &'s str) -> Option<Work<'s, Value>>;

    /// Adds the metrics that only this service has.
    fn add_metrics(&self, metrics: &mut Vec<Metric>);

    /// The counters of its store for the admin socket.
    fn store_counters(&self) -> Value {
        Value::Null
    }

    /// The report of its store for other nodes.
    fn report(&self) -> StoreReport {
        StoreReport::default()
    }

    /// The state of its store.
    fn store_state(&self) -> Option<StoreState> {
        None
    }

    /// The states of its servers at this node.
    fn servers(&self) -> Option<Vec<ServerState>> {
        None
    }

    /// The servers of all backends, which move here from the figures of their nodes.
    fn servers_of(&self, _nodes: &mut [NodeFigures]) -> Value {
        Value::Null
    }
}
