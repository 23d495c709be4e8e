//! The node of a service with upstreams and an object store.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use prism_combined::{Combined, Routes};
use prism_config::Config;
use prism_core::{NodeFigures, StoreReport};
use prism_figures::{ServerState, StoreState};
use prism_handoff::Transit;
use prism_process::Metric;
use prism_proto::facts::Facts;
use serde_json::Value;

use super::objects::ObjectNode;
use super::service::{NodeService, Work};
use super::upstreams::UpstreamNode;
use super::worker::Worker;

/// The service with both.
pub(super) struct CombinedNode {
    upstreams: UpstreamNode,
    objects: Arc<ObjectNode>,
    routes: Arc<Routes>,
}

impl CombinedNode {
    /// The service of these parts.
    pub(super) fn new(config: &Config, upstreams: UpstreamNode, objects: ObjectNode) -> Self {
        Self {
            upstreams,
            objects: Arc::new(objects),
            routes: Arc::new(Routes::of(config)),
        }
    }
}

impl NodeService for CombinedNode {
    fn kind(&self) -> &'static str {
        "combined"
    }

    fn protocol(&self) -> &'static str {
        self.upstreams.protocol()
    }

    fn keeps_objects(&self) -> bool {
        true
    }

    fn has_store(&self) -> bool {
        self.objects.has_store()
    }

    fn not_ready(&self) -> Option<&'static str> {
        self.objects.not_ready()
    }

    /// The node that has returned the connection tells which part its request is for.
    fn transit(&self) -> Transit {
        let to_upstream = self.upstreams.transit();
        let to_objects = self.objects.transit();
        Arc::new(move |context, unread| {
            let facts = Facts::decode(context).ok()?;
            match facts.upstream {
                Some(_) => to_upstream(context, unread),
                None => to_objects(context, unread),
            }
        })
    }

    fn serve(&self, worker: Worker) -> Work<'_> {
        let replicator = self.objects.replicator(&worker);
        let objects = self.objects.service(replicator.clone());
        let upstreams = self.upstreams.service(&worker, replicator);
        let service = Combined::new(upstreams, objects, self.routes.clone());
        Box::pin(worker.run(service))
    }

    fn follow_cluster(&self) -> Work<'_> {
        self.objects.follow_cluster()
    }

    fn start_thread(self: Arc<Self>) -> io::Result<Option<JoinHandle<()>>> {
        self.objects.clone().start_thread()
    }

    fn end_thread(&self) {
        self.objects.end_thread();
    }

    fn changes_ended(&self) -> Work<'_> {
        self.objects.changes_ended()
    }

    fn reconfigure(&self, config: &Config) {
        self.upstreams.reconfigure(config);
        self.objects.reconfigure(config);
        self.routes.reconfigure(config);
    }

    fn obey<'s>(&'s self, line: &'s str) -> Option<Work<'s, Value>> {
        if line.starts_with("server ") {
            return self.upstreams.obey(line);
        }
        self.objects.obey(line)
    }

    fn add_metrics(&self, metrics: &mut Vec<Metric>) {
        self.upstreams.add_metrics(metrics);
        self.objects.add_metrics(metrics);
    }

    fn store_counters(&self) -> Value {
        self.objects.store_counters()
    }

    fn report(&self) -> StoreReport {
        self.objects.report()
    }

    fn store_state(&self) -> Option<StoreState> {
        self.objects.store_state()
    }

    fn servers(&self) -> Option<Vec<ServerState>> {
        self.upstreams.servers()
    }

    fn servers_of(&self, nodes: &mut [NodeFigures]) -> Value {
        self.upstreams.servers_of(nodes)
    }
}
