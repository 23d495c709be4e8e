//! The cluster as an administrator sees it through one node: the reports of the backends and
//! the figures of all nodes, and the answers of this node to others' questions for them.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_cluster::{Phase, State};
use prism_common::supervise::keep;
use prism_http::{RequestHead, ResponseHead};
use prism_membership::ClusterRecords;
use prism_proto::facts::Facts;
use prism_service::{
    BodyFailure, Exchange, NodeRequests, PeerRequest, Peers, join_all, own_head, send, set,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::question::{CoreQuestion, CoreReply, NodeQuestion, Refused, StoreReport};
use crate::{Core, run_work};

/// Time for a backend to answer; below the deadline of the admin socket (5 s).
const REPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for a node to send its figures, of which a page shows new ones each second.
const FIGURES_TIMEOUT: Duration = Duration::from_millis(700);
/// Longest reply: the figures of a node with many operations and servers.
const MAX_REPLY_BYTES: usize = 8 << 20;
/// Longest question of the core: a name and an epoch.
const MAX_QUESTION_BYTES: u64 = 4096;

/// The figures of a node.
#[derive(Debug)]
pub struct NodeFigures {
    /// Its name.
    pub name: String,
    /// The figures, or the reason why there are none.
    pub figures: Result<Value, String>,
}

/// Spawns the task of the calling thread that does the jobs of administrators.
pub fn keep_jobs(node: &Rc<CoreNode>) {
    let (mut jobs, _) = node.core.jobs.add_worker();
    let node = node.clone();
    keep("questions of administrators", async move || {
        run_work(&node, &mut jobs).await;
    });
}

/// The core of a node and the streams of one of its threads to other nodes. As the part that
/// answers other nodes it knows the questions of the core only.
pub struct CoreNode {
    core: Arc<Core>,
    peers: Rc<Peers>,
}

impl CoreNode {
    /// The core for the calling thread.
    #[must_use]
    pub fn new(core: Arc<Core>, peers: Rc<Peers>) -> Self {
        Self { core, peers }
    }

    /// Answers the question of another node that has this text.
    #[must_use]
    pub fn answer_text(core: &Core, text: &[u8]) -> CoreReply {
        match serde_json::from_slice(text) {
            Ok(NodeQuestion { question, .. }) => Self::answer(core, question),
            Err(_) => CoreReply::Refused(Refused::no_question()),
        }
    }

    /// Answers a question of this or of another node.
    fn answer(core: &Core, question: CoreQuestion) -> CoreReply {
        let Some(observed) = core.observed() else {
            return CoreReply::Refused(Refused {
                code: "ServiceUnavailable".into(),
                message: "This node begins or ends.".into(),
            });
        };
        match question {
            CoreQuestion::Report => CoreReply::Report(observed.report()),
            CoreQuestion::Figures => CoreReply::Figures(observed.figures()),
        }
    }

    /// Asks a node, which may be this one.
    async fn ask(
        &self,
        limit: Duration,
        node: &str,
        question: CoreQuestion,
    ) -> Result<CoreReply, String> {
        if node == self.core.name {
            return Ok(Self::answer(&self.core, question));
        }
        let asked = NodeQuestion {
            epoch: self.core.view.now().epoch(),
            question,
        };
        let body = serde_json::to_vec(&asked).map_err(|error| error.to_string())?;
        let head = own_head("POST", body.len() as u64).map_err(|error| error.to_string())?;
        let request = PeerRequest::for_node(&head);
        let asking = self.peers.ask(node, &request, &body, MAX_REPLY_BYTES);
        let answered = tokio::time::timeout(limit, asking).await;
        let answered = answered.map_err(|_| "Another node takes too long to answer.".to_owned())?;
        let (answer, bytes) = answered.map_err(|error| {
            tracing::debug!(node, %error, "a node did not answer");
            "A storage node is out of reach.".to_owned()
        })?;
        let reply = serde_json::from_slice(&bytes);
        let reply = reply.ok().filter(|_| answer.status() == 200);
        reply.ok_or_else(|| "another version of Prism".to_owned())
    }

    /// Asks all backends at the same time. Returns the document that the admin socket shows.
    pub(crate) async fn survey(&self) -> Value {
        let view = self.core.view.now();
        let state = view.state();
        let names = state.backends.keys().map(|name| name.as_str());
        let asked = names.map(async |name| {
            match self.ask(REPORT_TIMEOUT, name, CoreQuestion::Report).await {
                Ok(CoreReply::Report(report)) => (name, Some(report)),
                _ => (name, None),
            }
        });
        let reports = join_all(asked.collect()).await;
        let cluster = &self.core.cluster;
        let known = cluster.known();
        let config = self.core.config.now();
        let min_replicas = prism_cluster::MinReplicas(config.cluster.min_replicas);
        let backends = reports
            .into_iter()
            .map(|(name, report)| describe(name, report, state, known.as_deref()));
        json!({
            "cluster": config.cluster.name,
            "asked": self.core.name,
            "kept_in_etcd": known.is_some(),
            "epoch": view.epoch(),
            "replicas": state.placing.replicas,
            "min_replicas": min_replicas.of(state.placing.replicas),
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
            "lease_ms": cluster.lease.left().map(|left| left.as_millis()),
            "fault": cluster.fault().map(|fault| fault.to_string()),
            "backends": backends.collect::<Vec<_>>(),
        })
    }

    /// Asks all nodes for their figures at the same time, this node included.
    pub(crate) async fn figures(&self) -> Vec<NodeFigures> {
        let directory = self.core.cluster.directory.borrow().clone();
        let asked = directory.iter().map(async |(name, _)| {
            let reply = self.ask(FIGURES_TIMEOUT, name, CoreQuestion::Figures);
            let figures = match reply.await {
                Ok(CoreReply::Figures(figures)) => Ok(figures),
                Ok(CoreReply::Refused(refused)) => Err(refused.message),
                Ok(CoreReply::Report(_)) => Err("another version of Prism".to_owned()),
                Err(error) => Err(error),
            };
            NodeFigures {
                name: name.to_owned(),
                figures,
            }
        });
        join_all(asked.collect()).await
    }
}

impl NodeRequests for CoreNode {
    const HEADER_BYTES: u64 = MAX_QUESTION_BYTES;

    async fn serve_node(
        &self,
        exchange: &mut impl Exchange,
        _head: &RequestHead,
        _peer: &str,
        _facts: &Facts,
    ) -> io::Result<()> {
        exchange.limit_body(MAX_QUESTION_BYTES);
        let read = match exchange.read_to_end(MAX_QUESTION_BYTES).await {
            Err(BodyFailure::Connection(error)) => return Err(error),
            Err(BodyFailure::TooLong | BodyFailure::Malformed(_)) => Vec::new(),
            Ok(bytes) => bytes,
        };
        send_reply(exchange, &Self::answer_text(&self.core, &read)).await
    }
}

/// Sends a reply to a question as the whole answer.
///
/// # Errors
/// The stream broke.
pub async fn send_reply(exchange: &mut impl Exchange, reply: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(reply).map_err(io::Error::other)?;
    let mut head = ResponseHead::new(200);
    set(&mut head, "Content-Type", "application/json")?;
    send(exchange, head, &text).await
}

/// A backend: its own report, its agreed status, and its report in etcd.
fn describe(
    name: &str,
    report: Option<StoreReport>,
    state: &State,
    known: Option<&ClusterRecords>,
) -> Value {
    let mut backend = Map::new();
    let mut add = |field: &str, value: Value| drop(backend.insert(field.into(), value));
    add("name", name.into());
    add("in_reach", report.is_some().into());
    if let Some(report) = report {
        add("open_changes", report.open_changes.into());
        add("bytes_used", report.bytes_used.into());
        add("catching_up", json!(report.progress));
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
