//! The cluster as this node sees it, for the admin socket: the agreed state, and the reports
//! of the backends that are in reach.

use std::time::Duration;

use prism_cluster::{Phase, State};
use prism_membership::Known;
use prism_service::join_all;
use prism_store::Replicas;
use serde_json::{Value, json};

use crate::Replicator;
use crate::question::{Question, Reply};

/// Time for a backend to answer; below the deadline of the admin socket (5 s).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

impl Replicator {
    /// Asks all backends at the same time. Returns the document that the admin socket shows.
    pub(crate) async fn survey(&self) -> Value {
        let replication = &self.node.replication;
        let nodes = replication.backends();
        let asked = nodes.iter().map(|node| self.report_of(node));
        let mut backends = join_all(asked.collect()).await;
        let view = replication.view();
        let state = view.state();
        let known = self.node.cluster.known();
        let lease_ms = self.node.cluster.lease.left().map(|left| left.as_millis());
        for backend in &mut backends {
            describe(backend, state, known.as_deref());
        }
        json!({
            "cluster": self.node.config.cluster.name,
            "asked": self.node.name,
            "kept_in_etcd": known.is_some(),
            "epoch": replication.epoch(),
            "replicas": state.placing.replicas,
            "min_replicas": replication.min_replicas(),
            "members": state.placing.members,
            "phase": phase(&state.phase),
            "to": match &state.phase {
                Phase::Filling { to, .. } => Some(to),
                Phase::Settled | Phase::Moved { .. } => None,
            },
            "wish": known.as_ref().and_then(|known| known.wish.as_ref()),
            "lease_ms": lease_ms,
            "fault": self.node.cluster.fault().map(|fault| fault.to_string()),
            "backends": backends,
        })
    }

    async fn report_of(&self, node: &str) -> Value {
        let asked = self.ask(node, &Question::Report);
        let reply = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        match reply.ok().and_then(Result::ok) {
            Some(Reply::Report {
                open_changes,
                bytes_used,
                progress,
            }) => json!({
                "name": node,
                "in_reach": true,
                "open_changes": open_changes,
                "bytes_used": bytes_used,
                "catching_up": progress,
            }),
            _ => json!({ "name": node, "in_reach": false }),
        }
    }
}

fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Settled => "settled",
        Phase::Filling { .. } => "filling",
        Phase::Moved { .. } => "moved",
    }
}

/// Adds the agreed status of a backend, and its report in etcd.
fn describe(backend: &mut Value, state: &State, known: Option<&Known>) {
    let Some(fields) = backend.as_object_mut() else {
        return;
    };
    let name = fields.get("name").and_then(Value::as_str).unwrap_or("");
    let name = name.to_owned();
    if let Some(agreed) = state.backends.get(name.as_str()) {
        fields.insert("status".into(), json!(agreed.status));
        fields.insert("since".into(), json!(agreed.since));
    }
    if let Some(known) = known {
        let living = known.living.get(name.as_str());
        fields.insert("lives".into(), json!(living.is_some()));
        if let Some(living) = living {
            fields.insert("adopted".into(), json!(living.report.epoch));
            fields.insert("caught_up".into(), json!(living.report.caught_up));
        }
        let fetches = state.fetches_since(&name);
        fields.insert("fetches_since".into(), json!(fetches));
    }
}
