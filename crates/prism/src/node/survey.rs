//! What the cluster looks like from this node: who its backends are, and what
//! those that are in reach say of themselves.

use std::time::Duration;

use prism_s3::Principal;
use prism_store::Replicas;
use serde_json::{Value, json};

use super::Worker;
use super::ask::{Question, Reply, together};

/// How long a backend may take to answer; below that of the admin socket.
const PATIENCE: Duration = Duration::from_secs(3);

impl Worker {
    /// Asks all backends at the same time.
    pub(super) async fn survey(&self) -> Value {
        let replication = &self.node.replication;
        let nodes = replication.backends();
        let asked = nodes.iter().map(|node| self.report_of(node));
        let backends = together(asked.collect()).await;
        json!({
            "cluster": self.node.config.cluster.name,
            "asked": self.node.name,
            "epoch": replication.epoch(),
            "replicas": replication.view().state().placing.replicas,
            "backends": backends,
        })
    }

    async fn report_of(&self, node: &str) -> Value {
        let nobody = Principal::Anonymous;
        let asked = self.ask_as(node, &nobody, &Question::Report);
        let reply = tokio::time::timeout(PATIENCE, asked).await;
        match reply.ok().and_then(Result::ok) {
            Some(Reply::Report {
                open_changes,
                bytes_used,
            }) => json!({
                "name": node,
                "in_reach": true,
                "open_changes": open_changes,
                "bytes_used": bytes_used,
            }),
            _ => json!({ "name": node, "in_reach": false }),
        }
    }
}
