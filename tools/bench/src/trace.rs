//! The records of hand-offs that nodes write while their trace is on.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::bed::Bed;

/// One node's record of one hand-off, as the admin socket gives it.
#[derive(Debug, Deserialize)]
pub(crate) struct StepRecord {
    pub(crate) id: u64,
    pub(crate) part: NodePart,
    pub(crate) at_ns: [u64; 7],
}

/// The node's part in it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodePart {
    Source,
    Transit,
    Target,
}

/// Switches the trace of all nodes on.
pub(crate) fn start(bed: &Bed<'_>) -> Result<()> {
    bed.ask_nodes("trace on")?;
    Ok(())
}

/// Gives the records of all nodes, and switches the trace off.
pub(crate) fn take(bed: &Bed<'_>) -> Result<Vec<StepRecord>> {
    let mut all = Vec::new();
    for mut answer in bed.ask_nodes("trace take")? {
        let records = answer.get_mut("records");
        let records = records.context("the node sent no records")?.take();
        all.extend(serde_json::from_value::<Vec<StepRecord>>(records)?);
    }
    bed.ask_nodes("trace off")?;
    Ok(all)
}
