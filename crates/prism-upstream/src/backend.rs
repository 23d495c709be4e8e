//! A backend of an upstream as another node knows it: its servers, and its last report.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::affinity::{Affinity, server_name};
use crate::sources::{BackendServers, PlacedServer};

/// A backend as this node knows it.
pub(crate) struct Backend {
    pub(crate) name: String,
    /// Whether it is this node.
    pub(crate) is_own: bool,
    /// Its servers.
    pub(crate) servers: Vec<PlacedServer>,
    /// Their names in cookies.
    cookie_names: Vec<String>,
    /// Whether a server of it is up, by its last report.
    is_up: AtomicBool,
    /// Whether one drains, by its last report.
    drains: AtomicBool,
    /// Requests under way there, by its last report.
    reported: AtomicU32,
    /// Requests sent there from here since.
    sent: AtomicU32,
}

impl Backend {
    /// The backend with its servers. `is_own`: it is this node.
    pub(crate) fn new(placed: BackendServers, is_own: bool) -> Self {
        let BackendServers { backend, servers } = placed;
        let names = servers.iter();
        let names = names.map(|one| server_name(&backend, one.address, one.is_only));
        Self {
            cookie_names: names.collect(),
            name: backend,
            is_own,
            servers,
            is_up: true.into(),
            drains: false.into(),
            reported: AtomicU32::new(0),
            sent: AtomicU32::new(0),
        }
    }

    /// Learns the report of the backend; `None` if it did not answer.
    pub(crate) fn learn(&self, report: Option<Report>) {
        // One that does not answer is the last choice.
        let report = report.unwrap_or_default();
        self.is_up.store(report.is_up, Ordering::Relaxed);
        self.drains.store(report.drains, Ordering::Relaxed);
        self.reported.store(report.under_way, Ordering::Relaxed);
        self.sent.store(0, Ordering::Relaxed);
    }

    /// Whether a server of it is up, by its last report.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Counts a request that goes there.
    pub(crate) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the server that `affinity` names is one of its own.
    pub(crate) fn has(&self, affinity: &Affinity) -> bool {
        let mut names = self.cookie_names.iter();
        names.any(|name| affinity.is_to(name))
    }

    /// Whether a server of it is up for a request, by its last report.
    pub(crate) fn is_up_for(&self, affinity: &Affinity) -> bool {
        let drains = || self.drains.load(Ordering::Relaxed) && self.has(affinity);
        self.is_up.load(Ordering::Relaxed) || drains()
    }

    pub(crate) fn last_report(&self) -> Report {
        Report {
            is_up: self.is_up.load(Ordering::Relaxed),
            drains: self.drains.load(Ordering::Relaxed),
            under_way: self.under_way(),
        }
    }

    /// Requests under way there, as far as this node knows.
    pub(crate) fn under_way(&self) -> u32 {
        let sent = self.sent.load(Ordering::Relaxed);
        self.reported.load(Ordering::Relaxed).saturating_add(sent)
    }
}

/// The state of one upstream at one backend, as backends tell each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Report {
    /// Whether a server of it is up.
    pub(crate) is_up: bool,
    /// Whether a server of it drains, and is well. The former release does not say it.
    #[serde(default)]
    pub(crate) drains: bool,
    /// Requests under way.
    pub(crate) under_way: u32,
}
