//! The cluster as this node sees it, for the admin socket: the agreed state, and the reports
//! of the backends that are in reach.

use std::time::Duration;

use prism_cluster::{Phase, State};
use prism_membership::ClusterRecords;
use prism_service::join_all;
use prism_store::Replicas;
use serde_json::{Map, Value, json};

use crate::Replicator;
use crate::question::{Question, Reply};

/// Time for a backend to answer; below the deadline of the admin socket (5 s).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for a node to send its figures, of which a page shows new ones each second.
const FIGURES_TIMEOUT: Duration = Duration::from_millis(700);

impl Replicator {
    /// Asks all backends at the same time. Returns the document that the admin socket shows.
    pub(crate) async fn survey(&self) -> Value {
        let replication = &self.node.replication;
        let nodes = replication.backends();
        let report = &Question::Report;
        let asked = nodes
            .iter()
            .map(|node| self.ask_within(ANSWER_TIMEOUT, node, report));
        let replies = join_all(asked.collect()).await;
        let view = replication.view();
        let state = view.state();
        let known = self.node.cluster.known();
        let lease_ms = self.node.cluster.lease.left().map(|left| left.as_millis());
        let backends = nodes.iter().zip(replies);
        let backends =
            backends.map(|(name, reply)| describe(name, reply.ok(), state, known.as_deref()));
        json!({
            "cluster": self.node.config.now().cluster.name,
            "asked": self.node.name,
            "kept_in_etcd": known.is_some(),
            "epoch": replication.epoch(),
            "replicas": state.placing.replicas,
            "min_replicas": replication.min_replicas(),
            "members": state.placing.members,
            "phase": match &state.phase {
                Phase::Settled => "settled",
                Phase::Filling { .. } => "filling",
                Phase::Moved { .. } => "moved",
            },
            "to": match &state.phase {
                Phase::Filling { to, .. } => Some(to),
                Phase::Settled | Phase::Moved { .. } => None,
            },
            "wish": known.as_ref().and_then(|known| known.wish.as_ref()),
            "lease_ms": lease_ms,
            "fault": self.node.cluster.fault().map(|fault| fault.to_string()),
            "backends": backends.collect::<Vec<_>>(),
        })
    }
}

/// The figures of a node.
#[derive(Debug)]
pub struct NodeFigures {
    /// Its name.
    pub name: String,
    /// The figures, or the reason why there are none.
    pub figures: Result<Value, String>,
}

impl Replicator {
    /// Asks all nodes for their figures at the same time, this node included.
    pub(crate) async fn figures(&self) -> Vec<NodeFigures> {
        let directory = self.node.cluster.directory.borrow().clone();
        let asked = directory.iter().map(async |(name, _)| {
            let reply = self.ask_within(FIGURES_TIMEOUT, name, &Question::Figures);
            let figures = match reply.await {
                Ok(Reply::Figures(figures)) => Ok(figures),
                Ok(_) => Err("another version of Prism".to_owned()),
                Err(error) => Err(error.message().to_owned()),
            };
            NodeFigures {
                name: name.to_owned(),
                figures,
            }
        });
        join_all(asked.collect()).await
    }
}

/// A backend: its own reply, its agreed status, and its report in etcd.
fn describe(
    name: &str,
    reply: Option<Reply>,
    state: &State,
    known: Option<&ClusterRecords>,
) -> Value {
    let mut backend = Map::new();
    let mut add = |field: &str, value: Value| drop(backend.insert(field.into(), value));
    add("name", name.into());
    let is_report = matches!(reply, Some(Reply::Report { .. }));
    add("in_reach", is_report.into());
    if let Some(Reply::Report {
        open_changes,
        bytes_used,
        progress,
    }) = reply
    {
        add("open_changes", open_changes.into());
        add("bytes_used", bytes_used.into());
        add("catching_up", json!(progress));
    }
    if let Some(agreed) = state.backends.get(name) {
        add("status", json!(agreed.status));
        add("since", agreed.since.into());
    }
    if let Some(known) = known {
        let living = known.living.get(name);
        add("lives", living.is_some().into());
        if let Some(living) = living {
            add("adopted", living.report.epoch.into());
            add("caught_up", living.report.caught_up.into());
            let store = state.backends.get(name).map_or(0, |agreed| agreed.store);
            add(
                "has_other_store",
                (![0, living.report.store].contains(&store)).into(),
            );
        }
        add("fetches_since", state.fetches_since(name).into());
    }
    backend.into()
}
