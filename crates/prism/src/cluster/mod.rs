//! What a node knows of its cluster, and what it is in it: one interface, whoever
//! keeps the state.
//!
//! With a static configuration the file says everything, nobody comes or goes, and
//! only the users may change. With etcd the nodes agree there on who has which keys;
//! [`kept`] follows and moves that. Not here: what a node does with it (`node`), and
//! which steps are safe (`prism-cluster`).

mod directory;
pub(crate) mod etcd;
mod kept;
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

pub(crate) use directory::{Directory, Host};
pub(crate) use kept::{Fault, Known, observe};
pub(crate) use lease::{Held, Lease};
pub(crate) use registry::Registry;
use users::UsersFile;

/// Those who may call.
pub(crate) type Users = Arc<Vec<Credential>>;

/// The agreed records of buckets, by name.
pub(crate) type Buckets = BTreeMap<String, Arc<Bucket>>;

/// The cluster, as a node sees it.
pub(crate) struct Cluster {
    /// Which backends have which keys.
    pub(crate) view: watch::Receiver<Arc<View>>,
    /// Where the nodes are.
    pub(crate) directory: watch::Receiver<Arc<Directory>>,
    /// Who may call.
    pub(crate) users: watch::Receiver<Users>,
    /// Whether this node may serve what it stores.
    pub(crate) lease: Lease,
    kind: Kind,
}

enum Kind {
    Fixed {
        /// Where users change in a file.
        file: Option<UsersFile>,
        /// The others have no news ever.
        _senders: (watch::Sender<Arc<View>>, watch::Sender<Arc<Directory>>),
    },
    Kept(kept::Kept),
}

impl Cluster {
    /// The cluster that a configuration names, as the node `name`, whose store, if it
    /// has one, has noted `said`. Waits for etcd, where that has the state.
    ///
    /// # Errors
    /// When the configuration or one of its files cannot be used.
    pub(crate) fn open(
        config: &Config,
        name: &str,
        said: Option<Testimony>,
    ) -> anyhow::Result<Self> {
        if config.cluster.etcd.is_some() {
            return kept::join(config, name, said);
        }
        let file = UsersFile::open(&config.s3)?;
        let users = file.users();
        Self::fixed(config, users, Some(file))
    }

    /// One that never changes, with these users.
    ///
    /// # Errors
    /// When the configuration names no backend.
    pub(crate) fn of_users(config: &Config, users: &[Credential]) -> anyhow::Result<Self> {
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
    pub(crate) async fn keep_current(&self, mut again: impl AsyncFnMut()) {
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
    pub(crate) fn adopted(&self, state: &State) {
        if let Kind::Kept(kept) = &self.kind {
            kept.noted(state);
        }
        self.report(|report| report.epoch = report.epoch.max(state.epoch));
    }

    /// Why nothing is served, where what etcd has is not to be acted by.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match &self.kind {
            Kind::Kept(kept) => kept.fault(),
            Kind::Fixed { .. } => None,
        }
    }

    /// Whenever writes are to pause; none where nothing ever changes.
    pub(crate) fn pauses(&self) -> Option<watch::Receiver<etcd::Pause>> {
        match &self.kind {
            Kind::Kept(kept) => Some(kept.pauses()),
            Kind::Fixed { .. } => None,
        }
    }

    /// No write is under way here, for this pause.
    pub(crate) fn paused(&self, pause: etcd::Pause) {
        self.report(|report| report.paused = pause.number);
    }

    /// Has the cluster go on without this backend, which lives until it does: at most
    /// for so long.
    pub(crate) async fn leave(&self, limit: Duration) {
        let Kind::Kept(kept) = &self.kind else { return };
        if self.lease.left().is_none() {
            return;
        }
        match tokio::time::timeout(limit, kept.leave()).await {
            Ok(()) => tracing::info!("the cluster goes on without this backend"),
            Err(_) => tracing::warn!("the cluster cannot go on without this backend"),
        }
    }

    /// Gives this backend's lease back, if it has one: it serves nothing any more.
    pub(crate) async fn give_back_lease(&self) {
        if let Kind::Kept(kept) = &self.kind
            && self.lease.left().is_some()
        {
            kept.give_back_lease().await;
        }
    }

    /// This node has all that it is to have as of this epoch.
    pub(crate) fn caught_up(&self, epoch: u64) {
        self.report(|report| report.caught_up = epoch);
    }

    /// This node has a store of this identity. It has no lease before that is known.
    pub(crate) fn has_store(&self, identity: u64) {
        self.report(|report| report.store = identity);
    }

    /// By what this node finds where objects are, as a digest: the file, or what etcd has.
    pub(crate) fn placement_digest(&self, config: &Config) -> u64 {
        match config.etcd_prefix().filter(|_| self.is_kept()) {
            Some(prefix) => Placing::digest_in_etcd(&prefix),
            None => self.view.borrow().state().placing.digest(),
        }
    }

    /// Whether the state is kept in etcd, and so may change.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.kind, Kind::Kept(_))
    }

    fn report(&self, change: impl FnOnce(&mut Report)) {
        if let Kind::Kept(kept) = &self.kind {
            kept.report(change);
        }
    }

    /// The registry of buckets in etcd; none in a static cluster, where a backend's store is
    /// the registry.
    pub(crate) fn registry(&self) -> Option<&Registry> {
        match &self.kind {
            Kind::Kept(kept) => Some(&kept.registry),
            Kind::Fixed { .. } => None,
        }
    }

    /// Resolves when something in etcd has changed; never where nothing is kept there.
    pub(crate) async fn news(&self, seen: &mut u64) {
        let Kind::Kept(kept) = &self.kind else {
            return std::future::pending().await;
        };
        let mut known = kept.news();
        let is_new = |known: &Arc<Known>| known.revision != *seen;
        let revision = known.wait_for(is_new).await.map(|known| known.revision);
        match revision {
            Ok(revision) => *seen = revision,
            Err(_) => std::future::pending().await,
        }
    }

    /// What etcd has; none where nothing is kept there.
    pub(crate) fn known(&self) -> Option<Arc<Known>> {
        match &self.kind {
            Kind::Kept(kept) => Some(kept.known()),
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
