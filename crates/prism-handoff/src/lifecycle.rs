//! Whether a worker takes connections, and what it still does before it ends.

use std::cell::Cell;

use tokio::sync::{Notify, watch};

/// The phases of a worker's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkerPhase {
    /// It takes connections from clients and from peers.
    #[default]
    Open,
    /// It takes connections from clients only.
    Leaving,
    /// It takes no connections.
    Deaf,
}

/// The life of one worker.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    pub(crate) phase: watch::Sender<WorkerPhase>,
    /// Whether no listener accepts.
    pub(crate) pauses: watch::Sender<bool>,
    /// The number of open listeners for clients.
    pub(crate) listeners: watch::Sender<usize>,
    /// The number of imports that wait for the switch.
    pub(crate) importing: Cell<usize>,
    pub(crate) stopping: Notify,
}

impl Lifecycle {
    /// Whether peers may hand over no connections any more.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.phase.borrow() >= WorkerPhase::Leaving
    }

    /// Enters `phase`, unless a later one has begun.
    pub(crate) fn enter(&self, phase: WorkerPhase) {
        let enter = |present: &mut WorkerPhase| *present = phase.max(*present);
        self.phase.send_modify(enter);
    }
}
