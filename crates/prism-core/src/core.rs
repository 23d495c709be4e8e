//! The part of a node that all of its threads and every service share.

use std::sync::{Arc, OnceLock, Weak};

use prism_config::Running;
use prism_handoff::Process;
use prism_membership::Cluster;
use prism_service::{Orders, RequestCounters};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{ActiveView, CoreNode, Jobs, NodeFigures, StoreReport, Work};

/// The source of a node's reports to an administrator and to other nodes.
pub trait Observed: Send + Sync {
    /// The report of its store; the default without one.
    fn report(&self) -> StoreReport;

    /// Its figures, as a document whose names may change.
    fn figures(&self) -> Value;
}

/// The core of a node.
pub struct Core {
    /// The node's name in the configuration.
    pub name: String,
    /// The cluster's configuration.
    pub config: Arc<Running>,
    /// The members, addresses and users of the cluster.
    pub cluster: Cluster,
    /// The cluster's state that this node acts by.
    pub view: Arc<ActiveView>,
    /// Counters of requests.
    pub counters: Arc<RequestCounters>,
    /// The hand-off library's part of the process.
    pub process: Arc<Process>,
    /// The orders to the threads of the node.
    pub orders: Orders,
    /// Jobs of the administrator for the threads of the node.
    pub(crate) jobs: Jobs<Work<CoreNode>>,
    observed: OnceLock<Weak<dyn Observed>>,
}

impl Core {
    /// The core of the node called `name`.
    #[must_use]
    pub fn new(config: Arc<Running>, name: &str, cluster: Cluster) -> Self {
        let view = cluster.view.borrow().clone();
        Self {
            name: name.to_owned(),
            config,
            cluster,
            view: Arc::new(ActiveView::new(view)),
            counters: Arc::default(),
            process: Arc::default(),
            orders: Orders::default(),
            jobs: Jobs::default(),
            observed: OnceLock::new(),
        }
    }

    /// Sets the source of reports. The first call counts.
    pub fn observe(&self, observed: Weak<dyn Observed>) {
        let _ = self.observed.set(observed);
    }

    /// The source of reports; `None` before the node is open, and while it ends.
    pub(crate) fn observed(&self) -> Option<Arc<dyn Observed>> {
        self.observed.get()?.upgrade()
    }

    /// The cluster as this node sees it, as a JSON document; `None` if no worker answers.
    pub async fn survey(&self) -> Option<Value> {
        let (answer, answered) = oneshot::channel();
        // Without a worker the sender is dropped.
        self.jobs
            .run(async move |node| drop(answer.send(node.survey().await)));
        answered.await.ok()
    }

    /// The figures of all nodes; `None` if no worker answers.
    pub async fn figures(&self) -> Option<Vec<NodeFigures>> {
        let (answer, answered) = oneshot::channel();
        self.jobs
            .run(async move |node| drop(answer.send(node.figures().await)));
        answered.await.ok()
    }
}
