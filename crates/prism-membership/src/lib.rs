//! What a node knows of its cluster, and what it is in it: one interface, whoever
//! keeps the state.
//!
//! With a static configuration the file says everything, nobody comes or goes, and
//! only the users may change. With etcd the nodes agree there on who has which keys;
//! [`etcd_state`] follows and moves that. Not here: what a node does with it (`node`), and
//! which steps are safe (`prism-cluster`).

mod directory;
pub mod etcd;
mod etcd_state;
mod lease;
mod registry;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prism_cluster::{NodeName, Placing, Report, State, Testimony, View};
use prism_config::{Config, Credential};
use prism_replica::Bucket;
use tokio::sync::watch;

pub use directory::{Directory, Host};
pub use etcd_state::{Fault, Known, observe};
pub use lease::{Lease, LeaseTerm};
pub use registry::Registry;
use users::UsersFile;

/// Those who may call.
pub type Users = Arc<Vec<Credential>>;

/// The agreed records of buckets, by name.
pub type Buckets = BTreeMap<String, Arc<Bucket>>;

/// The cluster, as a node sees it.
pub struct Cluster {
    /// Which backends have which keys.
    pub view: watch::Receiver<Arc<View>>,
    /// Where the nodes are.
    pub directory: watch::Receiver<Arc<Directory>>,
    /// Who may call.
    pub users: watch::Receiver<Users>,
    /// Whether this node may serve what it stores.
    pub lease: Lease,
    kind: Kind,
}

enum Kind {
    Fixed {
        /// Where users change in a file.
        file: Option<UsersFile>,
        /// The others have no news ever.
        _senders: (watch::Sender<Arc<View>>, watch::Sender<Arc<Directory>>),
    },
    Etcd(etcd_state::EtcdState),
}

impl Cluster {
    /// The cluster that a configuration names, as the node `name`, whose store, if it
    /// has one, has noted `said`. Waits for etcd, where that has the state.
    ///
    /// # Errors
    /// When the configuration or one of its files cannot be used.
    pub fn open(config: &Config, name: &str, said: Option<Testimony>) -> anyhow::Result<Self> {
        if config.cluster.etcd.is_some() {
            return etcd_state::join(config, name, said);
        }
        let file = UsersFile::open(&config.s3)?;
        let users = file.users();
        Self::fixed(config, users, Some(file))
    }

    /// One that never changes, with these users.
    ///
    /// # Errors
    /// When the configuration names no backend.
    pub fn of_users(config: &Config, users: &[Credential]) -> anyhow::Result<Self> {
        let (_, users) = watch::channel(Arc::new(users.to_vec()));
        Self::fixed(config, users, None)
    }

    fn fixed(
        config: &Config,
        users: watch::Receiver<Users>,
        file: Option<UsersFile>,
    ) -> anyhow::Result<Self> {
        let view = View::new(first_state(config)?).context("the cluster's backends")?;
        let (view_sender, view) = watch::channel(Arc::new(view));
        let (directory_sender, directory) = watch::channel(Arc::new(Directory::of(config)));
        Ok(Self {
            view,
            directory,
            users,
            lease: Lease::for_ever(),
            kind: Kind::Fixed {
                file,
                _senders: (view_sender, directory_sender),
            },
        })
    }

    /// Keeps the users as their file says, until dropped. `again` asks for a look at
    /// once.
    pub async fn keep_current(&self, mut again: impl AsyncFnMut()) {
        match &self.kind {
            Kind::Fixed {
                file: Some(file), ..
            } => file.keep_current(again).await,
            _ => loop {
                again().await;
            },
        }
    }

    /// This node has adopted a state, and its store has noted it: it acts by no earlier
    /// one any more.
    pub fn adopted(&self, state: &State) {
        if let Kind::Etcd(etcd) = &self.kind {
            etcd.noted(state);
        }
        self.report(|report| report.epoch = report.epoch.max(state.epoch));
    }

    /// Why nothing is served, where what etcd has is not to be acted by.
    pub fn fault(&self) -> Option<Fault> {
        match &self.kind {
            Kind::Etcd(state) => state.fault(),
            Kind::Fixed { .. } => None,
        }
    }

    /// Whenever writes are to pause; none where nothing ever changes.
    pub fn pauses(&self) -> Option<watch::Receiver<etcd::Pause>> {
        match &self.kind {
            Kind::Etcd(state) => Some(state.pauses()),
            Kind::Fixed { .. } => None,
        }
    }

    /// No write is under way here, for this pause.
    pub fn paused(&self, pause: etcd::Pause) {
        self.report(|report| report.paused = pause.number);
    }

    /// Has the cluster go on without this backend, which lives until it does: at most
    /// for so long.
    pub async fn leave(&self, limit: Duration) {
        let Kind::Etcd(state) = &self.kind else {
            return;
        };
        if self.lease.left().is_none() {
            return;
        }
        match tokio::time::timeout(limit, state.leave()).await {
            Ok(()) => tracing::info!("the cluster goes on without this backend"),
            Err(_) => tracing::warn!("the cluster cannot go on without this backend"),
        }
    }

    /// Gives this backend's lease back, if it has one: it serves nothing any more.
    pub async fn give_back_lease(&self) {
        if let Kind::Etcd(state) = &self.kind
            && self.lease.left().is_some()
        {
            state.give_back_lease().await;
        }
    }

    /// This node has all that it is to have as of this epoch.
    pub fn caught_up(&self, epoch: u64) {
        self.report(|report| report.caught_up = epoch);
    }

    /// This node has a store of this identity. It has no lease before that is known.
    pub fn has_store(&self, identity: u64) {
        self.report(|report| report.store = identity);
    }

    /// By what this node finds where objects are, as a digest: the file, or what etcd has.
    pub fn placement_digest(&self, config: &Config) -> u64 {
        match config.etcd_prefix().filter(|_| self.is_in_etcd()) {
            Some(prefix) => Placing::digest_in_etcd(&prefix),
            None => self.view.borrow().state().placing.digest(),
        }
    }

    /// Whether the state is kept in etcd, and so may change.
    pub fn is_in_etcd(&self) -> bool {
        matches!(self.kind, Kind::Etcd(_))
    }

    fn report(&self, change: impl FnOnce(&mut Report)) {
        if let Kind::Etcd(state) = &self.kind {
            state.report(change);
        }
    }

    /// The registry of buckets in etcd; none in a static cluster, where a backend's store is
    /// the registry.
    pub fn registry(&self) -> Option<&Registry> {
        match &self.kind {
            Kind::Etcd(state) => Some(&state.registry),
            Kind::Fixed { .. } => None,
        }
    }

    /// Resolves when something in etcd has changed; never where nothing is kept there.
    pub async fn news(&self, seen: &mut u64) {
        let Kind::Etcd(state) = &self.kind else {
            return std::future::pending().await;
        };
        let mut known = state.news();
        let is_new = |known: &Arc<Known>| known.revision != *seen;
        let revision = known.wait_for(is_new).await.map(|known| known.revision);
        match revision {
            Ok(revision) => *seen = revision,
            Err(_) => std::future::pending().await,
        }
    }

    /// What etcd has; none where nothing is kept there.
    pub fn known(&self) -> Option<Arc<Known>> {
        match &self.kind {
            Kind::Etcd(state) => Some(state.known()),
            Kind::Fixed { .. } => None,
        }
    }
}

/// The state of a cluster that has nothing yet.
fn first_state(config: &Config) -> anyhow::Result<State> {
    let names = config.backends().map(|n| NodeName::new(n.name.clone()));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    Ok(State::new(Placing::new(names, config.cluster.replicas)?))
}
