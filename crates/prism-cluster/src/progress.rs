//! The progress of a backend that catches up.

use serde::{Deserialize, Serialize};

/// The report of a node's progress in catching up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// The epoch as of which this node has all of its keys; 0 if it never had to fetch any, or
    /// lacks some.
    pub caught_up: u64,
    /// Whether it is catching up now.
    pub is_running: bool,
    /// The parts of the present try, or of the last one: the objects of each bucket with each
    /// other node, and its uploads.
    pub parts: u64,
    /// The parts of it that are done.
    pub parts_done: u64,
    /// Objects, uploads and parts that were compared with another node's. This and the following
    /// counts begin with the process.
    pub compared: u64,
    /// Objects, uploads and parts that were fetched.
    pub fetched: u64,
    /// Bytes that were fetched.
    pub fetched_bytes: u64,
    /// Objects, uploads and parts that were removed, because their primary has none.
    pub removed: u64,
    /// Objects, uploads and parts that were removed, because this node no longer has their keys.
    pub trimmed: u64,
    /// The last error; empty if the last try succeeded.
    pub hindrance: String,
}
