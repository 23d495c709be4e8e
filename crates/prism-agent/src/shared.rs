//! The state that the agent's loop and the thread beside it share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prism_config::{HostAddrs, Running, Services};
use prism_figures::ServiceKeys;
use prism_membership::Directory;
use prism_switch::{LastCensus, Leases};
use tokio::sync::watch;

use crate::interfaces::Interfaces;
use crate::role::Role;
use crate::secrets::{self, Secrets};
use crate::tables::nodes;

/// The state of the agent.
pub(crate) struct Shared {
    /// The version of the program.
    pub(crate) version: &'static str,
    pub(crate) pin_dir: String,
    pub(crate) max_flows: u32,
    pub(crate) running: Running<Services>,
    /// The nodes of each service that etcd knows; empty without etcd.
    pub(crate) observed: Vec<watch::Receiver<Arc<Directory>>>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) role: Role,
    pub(crate) census: Arc<LastCensus>,
    /// The secrets that the switch has.
    pub(crate) secrets: watch::Sender<Secrets>,
    /// The interfaces that lead to nodes.
    pub(crate) interfaces: watch::Sender<Interfaces>,
    pub(crate) pauses: Pauses,
}

/// Signals to the agent's loop.
#[derive(Default)]
pub(crate) struct Pauses {
    /// The process ends.
    pub(crate) stop: AtomicBool,
    /// The agent returns from its loop, to look for news.
    pub(crate) pause: AtomicBool,
}

impl Shared {
    /// The nodes of each service at present.
    pub(crate) fn nodes(&self) -> Vec<Directory> {
        nodes(&self.running.now(), &self.observed)
    }

    /// The names and addresses of all nodes.
    pub(crate) fn addresses(&self) -> Vec<(String, HostAddrs)> {
        let services = self.nodes().into_iter();
        let all = services.fold(Directory::default(), |all, other| all.joined_by(&other));
        let nodes = all.iter();
        nodes
            .map(|(name, host)| (name.to_owned(), host.address))
            .collect()
    }

    /// The secrets of the nodes' keys, and which nodes use them.
    pub(crate) fn keys(&self) -> Vec<ServiceKeys> {
        let config = self.running.now();
        let directories = nodes(&config, &self.observed);
        secrets::shown(&config, &self.secrets.borrow(), &directories, &self.leases)
    }
}

/// Makes the agent pause whenever the nodes change. Never returns.
pub(crate) async fn pause_for(mut news: watch::Receiver<Arc<Directory>>, shared: Arc<Shared>) {
    // The nodes may have changed before this task started.
    news.mark_changed();
    while news.changed().await.is_ok() {
        news.borrow_and_update();
        shared.pauses.pause.store(true, Ordering::Relaxed);
    }
    std::future::pending().await
}
