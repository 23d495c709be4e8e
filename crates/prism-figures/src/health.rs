//! The health of a cluster, in a word.

use crate::alerts::Alert;
use crate::servers::{any_gets_requests, are_all_out};
use crate::state::{BackendState, NodeState, State};

/// The health of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterHealth {
    /// There is no alert.
    Healthy,
    /// It serves, and there is an alert.
    Degraded,
    /// No frontend serves, no backend serves reads, or all servers are out. A combined service is
    /// down only if both are so: its object store answers without the servers, and they without it.
    Down,
}

impl ClusterHealth {
    /// The health of a cluster in this state, which has these alerts.
    pub fn of(state: &State, alerts: &[Alert]) -> Self {
        let serves = |role: &str| {
            let mut nodes = state.nodes.iter().filter(|node| has_role(node, role));
            nodes.any(|node| node.error.is_none() && node.not_ready.is_none())
        };
        let reads = state.cluster.as_ref().is_none_or(|cluster| {
            let is_read = |backend: &BackendState| {
                backend.in_reach && matches!(backend.status.as_deref(), None | Some("in-sync"))
            };
            cluster.fault.is_none() && cluster.backends.iter().any(is_read)
        });
        // The agent of the switch alone knows of no nodes' figures.
        let is_known = !state.nodes.is_empty();
        let answers = if state.keeps_objects() {
            reads || any_gets_requests(state)
        } else {
            reads && !are_all_out(state)
        };
        if !is_known || !serves("frontend") || !answers {
            Self::Down
        } else if alerts.is_empty() {
            Self::Healthy
        } else {
            Self::Degraded
        }
    }
}

fn has_role(node: &NodeState, role: &str) -> bool {
    // A node of no known roles is that of `prism serve`, which has both.
    let roles = node.roles.as_ref();
    roles.is_none_or(|roles| roles.iter().any(|found| found == role))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use serde_json::json;

    use super::ClusterHealth::{Degraded, Down, Healthy};
    use super::*;
    use crate::alerts::alerts;

    /// The health of a service by its kind, the status of its backend, and whether its server gets
    /// requests; `None` without upstreams.
    fn health(service: &str, status: &str, gets_requests: Option<bool>) -> ClusterHealth {
        let servers = gets_requests.map(|gets_requests| {
            let state = if gets_requests {
                "healthy"
            } else {
                "unhealthy"
            };
            json!([{ "upstream": "/", "state": state, "gets_requests": gets_requests }])
        });
        let state = json!({
            "name": "fe0",
            "time_ms": 0,
            "service": service,
            "servers": servers,
            "nodes": [{ "name": "fe0", "roles": ["frontend"] }],
            "cluster": {
                "cluster": "lab",
                "asked": "fe0",
                "epoch": 7,
                "replicas": 1,
                "min_replicas": 1,
                "phase": "settled",
                "backends": [{ "name": "be0", "in_reach": true, "status": status }],
            },
        });
        let state: State = serde_json::from_value(state).unwrap();
        ClusterHealth::of(&state, &alerts(&state))
    }

    #[test]
    fn a_combined_service_is_down_only_if_neither_part_answers() {
        for (service, status, gets_requests, expected) in [
            ("objects", "in-sync", None, Healthy),
            ("objects", "lagging", None, Down),
            ("upstream", "in-sync", Some(true), Healthy),
            ("upstream", "in-sync", Some(false), Down),
            ("combined", "in-sync", Some(true), Healthy),
            ("combined", "in-sync", Some(false), Degraded),
            ("combined", "lagging", Some(true), Degraded),
            ("combined", "lagging", Some(false), Down),
        ] {
            let found = health(service, status, gets_requests);
            assert_eq!(found, expected, "{service} {status} {gets_requests:?}");
        }
    }
}
