//! The node of a service whose requests HTTP servers behind the backends answer.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use prism_common::supervise::supervise;
use prism_config::Config;
use prism_core::{Core, CoreNode, NodeFigures, follow_views};
use prism_figures::ServerState;
use prism_handoff::Transit;
use prism_process::{Metric, Value as MetricValue};
use prism_service::NodeRequests;
use prism_upstream::{AmendmentKind, Duty, Shared, Upstreams};
use serde_json::{Value, json};

use super::quota;
use super::service::{NodeService, Work};
use super::worker::Worker;

/// The commands for servers.
const TRY: &str = "try: server drain|up|down NAME, server add|remove NAME UPSTREAM";

/// The service with upstreams.
pub(super) struct UpstreamNode {
    core: Arc<Core>,
    shared: Arc<Shared>,
}

impl UpstreamNode {
    /// The service of a node. `keeps_duties`: the duties of its servers, and those that operators
    /// have added, outlive the process.
    pub(super) fn open(
        config: &Config,
        settings: &prism_config::Node,
        core: Arc<Core>,
        keeps_duties: bool,
    ) -> anyhow::Result<Self> {
        let process = core.process.clone();
        let counters = core.counters.clone();
        let shared = Shared::new(config, &core.name, process, counters);
        let mut shared = shared.with_servers_files().context("servers_file")?;
        if settings.is_backend() && keeps_duties {
            shared = with_duties(shared, &settings.store, &core.name)?;
            shared = with_additions(shared, &settings.store, &core.name)?;
        }
        Ok(Self {
            core,
            shared: Arc::new(shared),
        })
    }

    /// The service of a worker, with its tasks. `others` answers what other nodes ask of the rest
    /// of this node.
    pub(super) fn service<N: NodeRequests>(&self, worker: &Worker, others: N) -> Upstreams<N> {
        prism_upstream::keep_tasks(&self.shared, &worker.peers);
        Upstreams::new(self.shared.clone(), others)
    }

    /// Obeys a command for servers: `server DUTY NAME`, or `server add|remove NAME UPSTREAM`. The
    /// name of an upstream may have blanks.
    async fn command_servers(&self, line: &str) -> Value {
        let mut words = line.splitn(4, ' ').skip(1);
        let (word, name, upstream) = (words.next(), words.next(), words.next());
        match (word, name, upstream) {
            (Some("add"), Some(name), Some(of)) => self.amend(of, name, AmendmentKind::Add).await,
            (Some("remove"), Some(name), Some(of)) => {
                self.amend(of, name, AmendmentKind::Remove).await
            }
            (Some(word), Some(name), None) => match Duty::named(word) {
                Some(duty) => self.assign(name, duty).await,
                None => json!({ "error": TRY }),
            },
            _ => json!({ "error": TRY }),
        }
    }

    /// Adds servers to an upstream, or removes them.
    async fn amend(&self, upstream: &str, name: &str, change: AmendmentKind) -> Value {
        match self.shared.amend(upstream, name, change).await {
            Ok(amended) => {
                let servers = amended.iter().map(|one| {
                    json!({
                        "backend": one.place.backend,
                        "address": one.place.server.to_string(),
                        "outcome": one.outcome,
                        "source": one.source,
                    })
                });
                json!({
                    "node": self.core.name,
                    "upstream": upstream,
                    "servers": servers.collect::<Vec<_>>(),
                })
            }
            Err(error) => json!({ "error": error }),
        }
    }

    /// Gives servers another duty.
    async fn assign(&self, name: &str, duty: Duty) -> Value {
        match self.shared.assign(name, duty).await {
            Ok(places) => {
                let places = places.iter().map(
                    |place| json!({ "backend": place.backend, "address": place.server.to_string() }),
                );
                json!({
                    "node": self.core.name,
                    "duty": duty.word(),
                    "servers": places.collect::<Vec<_>>(),
                })
            }
            Err(error) => json!({ "error": error }),
        }
    }
}

impl NodeService for UpstreamNode {
    fn kind(&self) -> &'static str {
        "upstream"
    }

    fn protocol(&self) -> &'static str {
        "http"
    }

    fn transit(&self) -> Transit {
        let shared = Arc::downgrade(&self.shared);
        Arc::new(move |_, unread| shared.upgrade()?.owner_of_unread(unread))
    }

    fn serve(&self, worker: Worker) -> Work<'_> {
        let nodes = CoreNode::new(self.core.clone(), worker.peers.clone());
        let service = self.service(&worker, nodes);
        Box::pin(worker.run(service))
    }

    fn follow_cluster(&self) -> Work<'_> {
        Box::pin(supervise("views", async || {
            follow_views(&self.core, async |_| {}).await;
        }))
    }

    fn reconfigure(&self, config: &Config) {
        self.shared.reconfigure(config);
    }

    fn obey<'s>(&'s self, line: &'s str) -> Option<Work<'s, Value>> {
        if line.starts_with("server ") {
            return Some(Box::pin(self.command_servers(line)));
        }
        let is_of_store = quota::is_meant(line) || line.starts_with("scrub ");
        let refusal = json!({ "error": "its service has an upstream and stores nothing" });
        is_of_store.then(|| -> Work<'_, Value> { Box::pin(std::future::ready(refusal)) })
    }

    fn add_metrics(&self, metrics: &mut Vec<Metric>) {
        let servers = self.shared.servers();
        servers.iter().for_each(|one| add_server(one, metrics));
    }

    fn servers(&self) -> Option<Vec<ServerState>> {
        let mut servers = self.shared.servers();
        for server in &mut servers {
            server.errors.retain(|_, count| *count > 0);
        }
        Some(servers)
    }

    /// In the order of the upstreams.
    fn servers_of(&self, nodes: &mut [NodeFigures]) -> Value {
        let mut all = Vec::new();
        for node in nodes {
            let answers = node.figures.is_ok();
            let figures = node.figures.as_mut().ok();
            let own = figures.and_then(|figures| figures.as_object_mut()?.remove("servers"));
            let own = match own {
                Some(Value::Array(own)) => own,
                _ => {
                    let mut unknown = self.shared.unknown_servers_of(&node.name);
                    // A node of a release without these figures may have healthy servers.
                    unknown
                        .iter_mut()
                        .for_each(|one| one.gets_requests = answers);
                    unknown.iter().map(|one| json!(one)).collect()
                }
            };
            for mut one in own {
                if let Some(fields) = one.as_object_mut() {
                    fields.insert("backend".into(), node.name.clone().into());
                    all.push(one);
                }
            }
        }
        let names = self.shared.upstream_names();
        all.sort_by_key(|one| {
            let upstream = one.get("upstream").and_then(Value::as_str);
            let mut names = names.iter();
            // A node that has not reloaded yet may have other upstreams.
            names
                .position(|name| Some(name.as_str()) == upstream)
                .unwrap_or(usize::MAX)
        });
        all.into()
    }
}

/// The upstreams with the duties that operators have given to the servers of this backend.
fn with_duties(upstreams: Shared, directory: &Path, name: &str) -> anyhow::Result<Shared> {
    let file = directory.join(format!("servers-{name}.json"));
    upstreams.with_duties(&file).with_context(|| {
        let file = file.display();
        format!("the duties of servers in {file}; correct it, or remove it: all are up then")
    })
}

/// The upstreams with the servers that operators have added at this backend.
fn with_additions(upstreams: Shared, directory: &Path, name: &str) -> anyhow::Result<Shared> {
    let file = directory.join(format!("added-servers-{name}.json"));
    upstreams.with_additions(&file).with_context(|| {
        let file = file.display();
        format!("the added servers in {file}; correct it, or remove it: there are none then")
    })
}

/// Adds the figures of a server behind this backend.
fn add_server(figures: &ServerState, metrics: &mut Vec<Metric>) {
    let mut add =
        |name: &'static str, help: &'static str, value, own: Option<(&'static str, &str)>| {
            let metric = Metric::new(name, help, value);
            let metric = metric.with("upstream", figures.upstream.as_str());
            let metric = metric.with("address", figures.address.as_str());
            metrics.push(match own {
                Some((label, value)) => metric.with(label, value),
                None => metric,
            });
        };
    for state in prism_upstream::ServerState::ALL {
        let value = MetricValue::Gauge(f64::from(u8::from(state.word() == figures.state)));
        let help = "1 for the state of each server of an upstream.";
        add("upstream_state", help, value, Some(("state", state.word())));
    }
    for (reason, count) in &figures.errors {
        let help = "Requests that this server of an upstream has failed, by the reason.";
        let value = MetricValue::Counter(*count);
        add("upstream_errors", help, value, Some(("reason", reason)));
    }
    for (name, help, value) in [
        (
            "upstream_up",
            "1 while this server of an upstream gets requests.",
            MetricValue::Gauge(f64::from(u8::from(figures.gets_requests))),
        ),
        (
            "upstream_requests_under_way",
            "Requests that this server is answering.",
            MetricValue::Gauge(figures.under_way as f64),
        ),
        (
            "upstream_ejections",
            "How often this server was ejected.",
            MetricValue::Counter(figures.ejections),
        ),
    ] {
        add(name, help, value, None);
    }
}
