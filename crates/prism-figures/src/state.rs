//! The state of a cluster: the figures of its nodes, its backends and its switch. A node or the
//! switch's agent makes the document (`/state`); the page for a browser and `prism ctl` read it.
//!
//! A reader takes documents of neighbouring releases: fields that it does not know are passed
//! over, and most fields may be absent.

use std::collections::BTreeMap;

use prism_cluster::ProgressReport;
use serde::{Deserialize, Serialize};

/// The state of a cluster, as one process of it knows it.
#[derive(Clone, Debug, Deserialize)]
pub struct State {
    /// The process that has made the document.
    pub name: String,
    /// Its time, in milliseconds since 1970.
    pub time_ms: u64,
    /// `objects`, `upstream`, or `combined` for both; `None` of the switch's agent.
    pub service: Option<String>,
    /// The servers of a service with upstreams; `None` without upstreams.
    pub servers: Option<Vec<ServerState>>,
    /// The nodes that it knows.
    pub nodes: Vec<NodeState>,
    /// The backends, as this process sees them; `None` of the switch's agent.
    pub cluster: Option<ClusterState>,
    /// The switch; `None` if there is none, or its agent cannot be asked.
    pub switch: Option<SwitchState>,
}

impl State {
    /// Whether the service has an object store, alone or beside upstreams.
    #[must_use]
    pub fn keeps_objects(&self) -> bool {
        match &self.service {
            Some(kind) => kind != "upstream",
            None => self.servers.is_none(),
        }
    }
}

/// A server of an upstream, as its backend judges it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ServerState {
    /// The name of its upstream.
    pub upstream: String,
    /// Its address.
    pub address: String,
    /// The backend that judges it.
    pub backend: String,
    /// The place that names it: `configuration`, `file` or `added`; `None` if nobody says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `healthy`, `unhealthy`, `unknown`, `draining` or `down`.
    pub state: String,
    /// Whether its backend sends requests to it.
    pub gets_requests: bool,
    /// Requests under way.
    pub under_way: u64,
    /// Requests that it failed, by the reason.
    pub errors: BTreeMap<String, u64>,
    /// Times that it became unhealthy.
    pub ejections: u64,
    /// The failure that last made it unhealthy.
    pub last_fault: Option<ServerFault>,
}

/// The failure that last made a server unhealthy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ServerFault {
    /// The reason.
    pub reason: String,
    /// `check` or `request`.
    pub by: String,
    /// The time since then.
    pub ago_s: u64,
}

/// The figures of a node. They are absent if it does not answer. Counts begin with its process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// The reason why it has no figures.
    pub error: Option<String>,
    /// Its roles; `None` if they are not known.
    pub roles: Option<Vec<String>>,
    /// Its address; `None` if it is not known.
    pub address: Option<String>,
    /// The version of its program.
    pub version: String,
    /// Its time, in milliseconds since 1970.
    pub time_ms: u64,
    /// The time since the start of its process.
    pub uptime_s: u64,
    /// The reason why it may not serve.
    pub not_ready: Option<String>,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Flows that the standby of a pair of switches is not known to have.
    pub flows_uncopied: u64,
    /// Requests by their kind.
    pub requests: Vec<RequestTally>,
    /// The time that requests took, by their operation.
    pub request_durations: Vec<DurationTally>,
    /// Requests that were relayed, by the node that answered.
    pub relayed: Vec<RelayTally>,
    /// Answers of servers that were internal redirects, and that it has followed.
    pub redirects: u64,
    /// Bytes of the bodies of its answers that redirects have led to.
    pub redirected_bytes: u64,
    /// Requests that were above a limit of the configuration, by its name.
    #[serde(default)]
    pub above_limits: BTreeMap<String, u64>,
    /// Connections that were handed off, by the node that took them.
    pub handed_off: Vec<PeerTally>,
    /// The last connections that were handed off.
    pub moves: Vec<MovedConnection>,
    /// The time that the steps of hand-offs took.
    pub steps: Vec<StepTally>,
    /// Its store, if it has one.
    pub store: Option<StoreState>,
    /// The files with certificates, and their ends.
    pub certificates: Vec<CertificateEnd>,
    /// Lines that its access log has lost.
    pub access_log_dropped_lines: u64,
    /// Backends that leave its handshakes unanswered.
    pub suspects: Vec<String>,
    /// The servers behind it; `None` without upstreams.
    pub servers: Option<Vec<ServerState>>,
    /// The database of etcd; `None` without etcd, or if it has not been seen.
    pub etcd: Option<EtcdState>,
}

/// Requests of one kind.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RequestTally {
    /// The operation.
    #[serde(default)]
    pub operation: String,
    /// The status of the answers.
    pub code: u16,
    /// The path that the answers took.
    #[serde(default)]
    pub path: String,
    /// The number of requests.
    pub count: u64,
    /// Bytes of their bodies.
    pub received_bytes: u64,
    /// Bytes of the answers' bodies.
    pub sent_bytes: u64,
}

/// The time that the requests of one operation took.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DurationTally {
    /// The operation.
    pub operation: String,
    /// The number of requests.
    pub count: u64,
    /// The sum of their durations.
    pub sum_s: f64,
}

/// Requests that were relayed to one node.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RelayTally {
    /// The node.
    pub node: String,
    /// The number of requests.
    pub count: u64,
    /// Bytes of the answers' bodies.
    pub bytes: u64,
}

/// Connections that were handed to one node.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PeerTally {
    /// The node.
    #[serde(default)]
    pub node: String,
    /// The number of connections.
    pub count: u64,
}

/// A connection that was handed off.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct MovedConnection {
    /// Its number among all hand-offs of the process.
    pub n: u64,
    /// The time, in milliseconds since 1970.
    pub at_ms: u64,
    /// The client's address.
    pub client: String,
    /// The node that took it.
    pub to: String,
}

/// The time that one step of hand-offs took.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StepTally {
    /// The node's role in the hand-offs.
    pub role: String,
    /// The step.
    pub step: String,
    /// The number of hand-offs.
    pub count: u64,
    /// The sum of the durations.
    pub sum_s: f64,
    /// The number of durations by the bound of their bucket, in seconds.
    pub buckets: Vec<(f64, u64)>,
}

/// The store of a backend.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StoreState {
    /// Bytes that it takes.
    pub used_bytes: u64,
    /// Bytes that it may take; 0 without a limit.
    pub quota_bytes: u64,
    /// Bytes that are free on its file system.
    pub free_bytes: u64,
    /// Reads that found a wrong checksum.
    pub corrupt_reads: u64,
    /// Faults that scrubs have found.
    pub scrub_faults: u64,
    /// Changes that are prepared and not committed.
    #[serde(default)]
    pub open_changes: u64,
}

/// The database of etcd, as a node has seen it last.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct EtcdState {
    /// The size of its file.
    pub size_bytes: u64,
    /// The part of it that has data.
    pub in_use_bytes: u64,
    /// The size from which on etcd takes no change.
    pub quota_bytes: u64,
    /// Whether it takes none.
    pub is_full: bool,
}

/// A file with certificates.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CertificateEnd {
    /// The file.
    pub file: String,
    /// Its first end, in seconds since 1970.
    pub expires_s: u64,
}

/// The backends of a cluster, as one node sees them.
#[derive(Clone, Debug, Deserialize)]
pub struct ClusterState {
    /// The name of the cluster.
    pub cluster: String,
    /// The node.
    pub asked: String,
    /// Whether the cluster's state is in etcd.
    #[serde(default)]
    pub kept_in_etcd: bool,
    /// The epoch of its state.
    pub epoch: u64,
    /// Replicas of each object.
    pub replicas: u64,
    /// Replicas in sync that a write needs.
    pub min_replicas: u64,
    /// `settled`, `filling` or `moved`.
    pub phase: String,
    /// The time that is left of the node's lease in etcd.
    pub lease_ms: Option<u64>,
    /// The reason why the node does not act by the state.
    pub fault: Option<String>,
    /// The backends.
    pub backends: Vec<BackendState>,
}

/// A backend, as one node sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct BackendState {
    /// Its name.
    pub name: String,
    /// Whether it has answered the node.
    pub in_reach: bool,
    /// Whether it has a lease; `None` without etcd.
    pub lives: Option<bool>,
    /// `in-sync`, `lagging` or `out`; `None` if it is no member.
    pub status: Option<String>,
    /// Changes that are prepared and not committed.
    pub open_changes: Option<u64>,
    /// Bytes of its store.
    pub bytes_used: Option<u64>,
    /// Its progress in catching up.
    pub catching_up: Option<ProgressReport>,
    /// Whether its store is another one than the state names.
    #[serde(default)]
    pub has_other_store: bool,
}

/// The switch, as its agent sees it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct SwitchState {
    /// The reason why it has no figures.
    pub error: Option<String>,
    /// The name of this host of a pair.
    pub host: Option<String>,
    /// Whether it decides.
    pub active: bool,
    /// The number of its term.
    pub term: u32,
    /// The phase of its term: 1 standby, 2 young, 3 settled.
    pub term_phase: u8,
    /// Nodes whose flows the switch does not know yet.
    pub nodes_awaited: usize,
    /// Flows in its table; `None` before they are counted for the first time.
    pub flows: Option<u64>,
    /// The most flows of its table.
    pub max_flows: u64,
    /// Flows by their owner.
    pub owners: Vec<OwnedFlows>,
    /// Packets by what became of them.
    pub packets: Vec<PacketTally>,
    /// The nodes.
    pub nodes: Vec<LeasedNode>,
    /// The keys of the nodes, by their service.
    pub keys: Vec<ServiceKeys>,
}

/// The flows of one owner.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OwnedFlows {
    /// The name of a node, or the address of a host that is none.
    pub owner: String,
    /// The number of flows.
    pub flows: u64,
}

/// Packets that the switch treated in one way for one reason.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PacketTally {
    /// `forward`, `punt` or `drop`.
    pub verdict: String,
    /// The reason.
    pub reason: String,
    /// The number of packets.
    pub count: u64,
}

/// The secrets of the keys of a service's nodes, the newest first.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ServiceKeys {
    /// The name of the service.
    pub service: String,
    /// The secrets.
    pub secrets: Vec<SecretInUse>,
}

/// A secret, and the nodes that have a lease by a key of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SecretInUse {
    /// A number that tells it from others.
    pub id: String,
    /// The names of the nodes.
    pub nodes: Vec<String>,
}

/// A node, as the agent of the switch sees it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LeasedNode {
    /// Its name.
    pub name: String,
    /// Its address.
    #[serde(default)]
    pub address: String,
    /// Whether it has a lease.
    pub up: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_kind_of_a_service_tells_whether_it_keeps_objects_and_else_its_servers_do() {
        for (service, servers, keeps_objects) in [
            (json!("objects"), Value::Null, true),
            (json!("upstream"), json!([]), false),
            (json!("combined"), json!([]), true),
            (Value::Null, Value::Null, true),
            (Value::Null, json!([]), false),
        ] {
            let document = json!({
                "name": "fe0",
                "time_ms": 0,
                "service": service,
                "servers": servers,
                "nodes": [],
            });
            let state: State = serde_json::from_value(document).unwrap();
            assert_eq!(state.keeps_objects(), keeps_objects, "{service} {servers}");
        }
    }
}
