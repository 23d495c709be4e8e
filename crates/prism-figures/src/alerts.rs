//! Alerts: the facts that an operator has to look at. The page for a browser and `prism ctl` show
//! those that are computed here.
//!
//! A text stays the same while its cause does, so that a screen reader says each only once.
//!
//! Not here: alerts that need time. `contrib/prometheus/prism.rules.yml` has rules about rates,
//! and rules with the thresholds of this file that wait before they alert.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::servers::upstreams_down;
use crate::state::{
    ClusterState, EtcdState, NodeState, ServerState, State, StoreState, SwitchState,
};

/// A certificate that ends within this time is named.
const CERTIFICATE_DAYS: u64 = 14;
/// A store is nearly full above this share of its quota, or below this share of free space.
const FULL_SHARE: f64 = 0.9;
const FREE_SHARE: f64 = 0.05;
/// The database of etcd is nearly full above this share of its quota.
const ETCD_SHARE: f64 = 0.8;
/// The table of the switch is nearly full above this share.
const SWITCH_SHARE: f64 = 0.8;
const DAY_S: u64 = 86_400;

/// The remedy for a backend whose store is another one.
pub const OTHER_STORE: &str = "The others fill it. If they cannot, because no other one \
    has its keys, start it with its former store, or decide with `prism ctl cluster recover`.";
/// The remedy for an etcd that grows.
const REMEDY_OF_ETCD: &str = "Have etcd compact by itself, then compact and defragment it: \
    docs/operating.md, Keeping etcd small.";
/// The remedies for servers of upstreams.
const REMEDY_OF_SERVER: &str = "Look at the server there, and at its log.";
const REMEDY_OF_UPSTREAM: &str =
    "Its requests are answered 502 to 504. Start a server, or give one back (prism ctl server up).";

use Level::{Critical, Warning};

/// An alert, and what to do about it.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Alert {
    /// How urgent it is.
    pub level: Level,
    /// The fact.
    pub text: String,
    /// The remedy.
    pub remedy: &'static str,
}

/// How urgent an alert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The service is hurt.
    Critical,
    /// It may be hurt soon, or has lost a reserve.
    Warning,
}

/// The alerts that were found so far.
#[derive(Default)]
struct AlertList(Vec<Alert>);

impl AlertList {
    fn add(&mut self, holds: bool, level: Level, text: String, remedy: &'static str) {
        if holds {
            self.0.push(Alert {
                level,
                text,
                remedy,
            });
        }
    }
}

/// Adds `alerts` to a document of a cluster's state.
#[must_use]
pub fn with_alerts(mut document: Value) -> Value {
    let alerts = alerts_of_document(&document);
    if let Some(fields) = document.as_object_mut() {
        fields.insert("alerts".into(), json!(alerts));
    }
    document
}

fn alerts_of_document(document: &Value) -> Vec<Alert> {
    let error = match State::deserialize(document) {
        Ok(state) => return alerts(&state),
        Err(error) => error,
    };
    vec![Alert {
        level: Warning,
        text: format!("The figures of the cluster cannot be read: {error}"),
        remedy: "Bring all nodes to one release, or to neighbouring ones.",
    }]
}

/// The alerts of a state, the critical ones first.
pub fn alerts(state: &State) -> Vec<Alert> {
    let mut found = AlertList::default();
    let servers = state.servers.as_deref().unwrap_or_default();
    of_servers(servers, &mut found);
    for node in &state.nodes {
        of_node(node, &mut found);
    }
    of_suspects(&state.nodes, &mut found);
    of_etcd(&state.nodes, &mut found);
    if let Some(cluster) = &state.cluster {
        of_cluster(cluster, &mut found);
    }
    for node in &state.nodes {
        of_certificates(node, state.time_ms / 1_000, &mut found);
    }
    if let Some(switch) = &state.switch {
        of_switch(switch, &mut found);
    }
    found.0.sort_by_key(|alert| alert.level);
    found.0
}

fn of_servers(servers: &[ServerState], found: &mut AlertList) {
    for name in upstreams_down(servers) {
        let text = format!("The upstream {name} has no healthy server");
        found.add(true, Critical, text, REMEDY_OF_UPSTREAM);
    }
    for server in servers.iter().filter(|server| server.is_unhealthy()) {
        let ServerState {
            address,
            backend,
            upstream,
            ..
        } = server;
        let reason = server.reason();
        let text = format!("{address} at {backend} is unhealthy (upstream {upstream}): {reason}");
        found.add(true, Warning, text, REMEDY_OF_SERVER);
    }
}

fn of_node(node: &NodeState, found: &mut AlertList) {
    let name = &node.name;
    if let Some(error) = &node.error {
        let text = format!("{name} does not answer: {error}");
        return found.add(
            true,
            Critical,
            text,
            "Look at the process there, and at its link.",
        );
    }
    if let Some(reason) = &node.not_ready {
        let text = format!("{name} runs and may not serve: {reason}");
        found.add(true, Warning, text, "Its log has the reason.");
    }
    let drops = node.access_log_dropped_lines > 0;
    let text = format!("{name} has dropped lines of its access log");
    found.add(drops, Warning, text, "Give the log a faster disk.");
    let Some(store) = &node.store else { return };
    let text = format!("The store of {name} is nearly full; writes will be answered 507");
    let remedy = "Delete objects, add backends, or raise store.quota_bytes.";
    found.add(is_nearly_full(store), Critical, text, remedy);
    let is_damaged = store.corrupt_reads > 0 || store.scrub_faults > 0;
    let text = format!("{name} has found damaged blocks since it started");
    let remedy = "`prism ctl scrub` names them. Look at the disk.";
    found.add(is_damaged, Critical, text, remedy);
}

/// One alert for each suspect, with the nodes that it leaves without an answer.
fn of_suspects(nodes: &[NodeState], found: &mut AlertList) {
    let mut askers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        for suspect in &node.suspects {
            askers.entry(suspect).or_default().push(&node.name);
        }
    }
    for (suspect, names) in askers {
        let names = names.join(", ");
        let text = format!("{suspect} leaves handshakes of {names} unanswered");
        found.add(true, Warning, text, "Look at the link between them.");
    }
}

/// The alerts of the one etcd that all nodes have.
fn of_etcd(nodes: &[NodeState], found: &mut AlertList) {
    let seen = || nodes.iter().filter_map(|node| node.etcd.as_ref());
    let is_full = seen().any(|etcd| etcd.is_full);
    let text = "The database of etcd is full: no step is taken, and no key or bucket is changed";
    found.add(is_full, Critical, text.to_owned(), REMEDY_OF_ETCD);
    let is_nearly_full = !is_full && seen().any(EtcdState::is_nearly_full);
    let text = "The database of etcd has more than four fifths of its quota";
    found.add(is_nearly_full, Warning, text.to_owned(), REMEDY_OF_ETCD);
}

impl EtcdState {
    /// Whether it is to be made smaller before it is full.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        self.size_bytes as f64 > ETCD_SHARE * self.quota_bytes as f64
    }
}

fn is_nearly_full(store: &StoreState) -> bool {
    let used = store.used_bytes as f64;
    let quota = store.quota_bytes as f64;
    let free = store.free_bytes as f64;
    (quota > 0.0 && used > FULL_SHARE * quota) || free < FREE_SHARE * (free + used)
}

fn of_certificates(node: &NodeState, now_s: u64, found: &mut AlertList) {
    for certificate in &node.certificates {
        let file = &certificate.file;
        let name = &node.name;
        let remedy = "Renew it; nodes read the file again by themselves.";
        match certificate.expires_s.checked_sub(now_s) {
            None | Some(0) => {
                let text = format!("{file} of {name} has expired");
                found.add(true, Critical, text, remedy);
            }
            Some(left_s) if left_s < CERTIFICATE_DAYS * DAY_S => {
                let left = match left_s / DAY_S {
                    0 | 1 => "less than 2 days".to_owned(),
                    days => format!("{days} days"),
                };
                let text = format!("{file} of {name} expires in {left}");
                found.add(true, Warning, text, remedy);
            }
            Some(_) => {}
        }
    }
}

fn of_cluster(cluster: &ClusterState, found: &mut AlertList) {
    if let Some(fault) = &cluster.fault {
        let text = format!("The cluster: {fault}");
        found.add(true, Critical, text, "`prism ctl cluster` shows its state.");
    }
    for backend in &cluster.backends {
        let name = &backend.name;
        let status = backend.status.as_deref();
        let remedy = "The table of backends shows its progress.";
        let text = format!("{name} is out; its keys have a replica less");
        found.add(status == Some("out"), Critical, text, remedy);
        let text = format!("{name} is not in sync; its keys have a replica less");
        found.add(status == Some("lagging"), Warning, text, remedy);
        let text = format!("{name} has another store than the cluster knows for it");
        let is_other = backend.has_other_store && status != Some("out");
        found.add(is_other, Critical, text, OTHER_STORE);
        let is_dead = backend.lives == Some(false);
        let remedy = "Look at the process there, and at its link to etcd.";
        found.add(is_dead, Critical, format!("{name} has no lease"), remedy);
        let is_away = !is_dead && !backend.in_reach;
        let text = format!("{name} is out of reach of {}", cluster.asked);
        found.add(is_away, Warning, text, "Look at its link.");
    }
}

fn of_switch(switch: &SwitchState, found: &mut AlertList) {
    if let Some(error) = &switch.error {
        let text = format!("The switch's agent: {error}");
        found.add(true, Critical, text, "Look at the agent's log.");
    }
    let is_full = switch.flows.unwrap_or_default() as f64 > SWITCH_SHARE * switch.max_flows as f64;
    let text = format!(
        "The switch's table has room for less than a fifth of its {} flows",
        switch.max_flows
    );
    let remedy = "Raise switch.max_flows. Flows without room are relayed by their frontend.";
    found.add(is_full, Critical, text, remedy);
    for node in switch.nodes.iter().filter(|node| !node.up) {
        let text = format!("{} has no lease at the switch's agent", node.name);
        found.add(true, Critical, text, "Look at its process and its link.");
    }
}

#[cfg(test)]
#[path = "alerts_tests.rs"]
mod tests;
