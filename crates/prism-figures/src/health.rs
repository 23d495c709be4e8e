//! The health of a cluster, in a word.

use crate::alerts::Alert;
use crate::servers::are_all_out;
use crate::state::{BackendState, NodeState, State};

/// The health of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterHealth {
    /// There is no alert.
    Healthy,
    /// It serves, and there is an alert.
    Degraded,
    /// No frontend serves, no backend serves reads, or all servers are out.
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
        let answers = reads && !are_all_out(state);
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
