//! The records of hand-offs that nodes write while their trace is on.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cluster::Cluster;

/// One node's record of one hand-off, as the admin socket gives it.
#[derive(Debug, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) client_port: u16,
    pub(crate) part: Part,
    pub(crate) at_ns: [u64; 7],
}

/// The node's part in it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    Source,
    Transit,
    Target,
}

/// Switches the trace of all nodes on.
pub(crate) fn start(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        cluster.prism().ask(&node, "trace on")?;
    }
    Ok(())
}

/// Gives the records of all nodes, and switches the trace off.
pub(crate) fn take(cluster: &Cluster) -> Result<Vec<Record>> {
    let mut all = Vec::new();
    for node in cluster.nodes() {
        let mut answer = cluster.prism().ask(&node, "trace take")?;
        let records = answer.get_mut("records");
        let records = records.context("the node sent no records")?.take();
        all.extend(serde_json::from_value::<Vec<Record>>(records)?);
        cluster.prism().ask(&node, "trace off")?;
    }
    Ok(all)
}
