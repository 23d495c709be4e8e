//! The cluster as one node sees it: members, addresses, users and lease. The interface is
//! the same for a static file and for etcd.
//!
//! With a static file only the users change. With etcd the backends agree there on the
//! owners of keys; [`etcd_state`] follows and advances that state.
//!
//! Not here: acting by the state (`prism-replicas`), and the rules of safe steps (`prism-cluster`).

mod directory;
pub mod etcd;
mod etcd_state;
mod lease;
mod ledger;
mod noted;
mod own_store;
mod registry;
mod users;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::Context;
use prism_cluster::{LineageMark, NodeName, Placing, Report, State, View};
use prism_common::followed::ReloadRequests;
use prism_config::{Config, ConfigFile, Credential};
use tokio::sync::watch;

pub use directory::{Directory, Host};
pub use etcd_state::{AcmeRecord, AcmeRecords, ClusterRecords, Observed, observe};
pub use lease::{Lease, LeaseTerm};
pub use ledger::Ledger;
pub use noted::{Noted, NotedUser, NotedUsers, StoreMarks, UserClaim, UserRights};
pub use own_store::OwnStore;
pub use prism_cluster::Fault;
pub use prism_etcd::Database;
pub use registry::{AgreedBucket, Buckets, Registry};
pub use users::Users;

use etcd_state::EtcdThread;
use users::UsersFile;

/// The longest wait for etcd's answer about one user. The client waits for it.
const USER_IN: Duration = Duration::from_secs(2);

/// Time between two looks at a lease that has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The cluster, as a node sees it.
pub struct Cluster {
    /// The owners of keys.
    pub view: watch::Receiver<Arc<View>>,
    /// The nodes' addresses.
    pub directory: watch::Receiver<Arc<Directory>>,
    /// The users.
    pub users: watch::Receiver<Users>,
    /// The right of this node to serve from its store.
    pub lease: Lease,
    /// The right of this node to admit requests by its users. It ends when etcd has not
    /// confirmed them for `cluster.etcd.lease_ttl_s`.
    pub users_lease: Lease,
    kind: ClusterKind,
}

enum ClusterKind {
    Fixed {
        /// The file of users; `None` if they are fixed.
        file: Option<UsersFile>,
        /// The etcd with the certificate by ACME, if there is one.
        certificate: Option<EtcdThread>,
        /// Keep the channels of view and directory open, which never have news.
        _senders: (watch::Sender<Arc<View>>, watch::Sender<Arc<Directory>>),
    },
    Etcd(EtcdThread),
}

impl Cluster {
    /// Joins the cluster of a configuration as the node `name`. `store` is the node's, if it is a
    /// backend. Blocks until etcd answers, if the state is there.
    ///
    /// # Errors
    /// The configuration, one of its files or the store cannot be used.
    pub fn open(config: &Config, name: &str, store: Option<Arc<OwnStore>>) -> anyhow::Result<Self> {
        if !config.service.keeps_objects() {
            let (_, users) = watch::channel(Arc::default());
            let acme = config.service.acme.as_ref();
            let certificate = acme.map(|_| etcd_state::observe_all(config)).transpose()?;
            return Self::fixed(config, users, None, certificate);
        }
        if config.cluster.etcd.is_some() {
            return etcd_state::join(config, name, store);
        }
        let file = UsersFile::open(&config.s3)?;
        Self::fixed(config, file.users(), Some(file), None)
    }

    /// A cluster that never changes, with these users.
    ///
    /// # Errors
    /// The configuration names no backend.
    pub fn of_users(config: &Config, users: &[Credential]) -> anyhow::Result<Self> {
        let (_, users) = watch::channel(Arc::new(users.to_vec()));
        Self::fixed(config, users, None, None)
    }

    fn fixed(
        config: &Config,
        users: watch::Receiver<Users>,
        file: Option<UsersFile>,
        certificate: Option<EtcdThread>,
    ) -> anyhow::Result<Self> {
        let view = View::new(first_state(config)?).context("the cluster's backends")?;
        let (view_sender, view) = watch::channel(Arc::new(view));
        let (directory_sender, directory) = watch::channel(Arc::new(Directory::of(config)));
        Ok(Self {
            view,
            directory,
            users,
            lease: Lease::for_ever(),
            users_lease: Lease::for_ever(),
            kind: ClusterKind::Fixed {
                file,
                certificate,
                _senders: (view_sender, directory_sender),
            },
        })
    }

    /// Follows the file of users, if there is one. Never returns. The file is read at once at each
    /// of the `requests`.
    pub async fn keep_current(&self, requests: ReloadRequests) {
        match &self.kind {
            ClusterKind::Fixed {
                file: Some(file), ..
            } => file.keep_current(requests).await,
            _ => std::future::pending().await,
        }
    }

    fn etcd(&self) -> Option<&EtcdThread> {
        match &self.kind {
            ClusterKind::Etcd(etcd) => Some(etcd),
            ClusterKind::Fixed { .. } => None,
        }
    }

    /// Reports that this node has adopted a state, and that its store has recorded it. From
    /// now on the node acts by no earlier state.
    pub fn adopted(&self, state: &State) {
        if let Some(etcd) = self.etcd() {
            etcd.channels.testimony.send_if_modified(|testimony| {
                if let Some(testimony) = testimony {
                    (testimony.epoch, testimony.state) = (state.epoch, Some(state.clone()));
                }
                testimony.is_some()
            });
        }
        self.report(|report| report.epoch = report.epoch.max(state.epoch));
    }

    /// Changes this node's report of itself, which the other backends read in etcd.
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        if let Some(etcd) = self.etcd() {
            etcd.channels.reports.send_if_modified(|report| {
                let before = *report;
                change(report);
                *report != before
            });
        }
    }

    /// The identity of this node's store, which changes if the store turns out to be an older copy.
    /// `None` in a static cluster and at a frontend.
    pub fn store_identity(&self) -> Option<Arc<AtomicU64>> {
        self.etcd()?.store_identity.clone()
    }

    /// The reason why no node serves, if the state in etcd contradicts the stores.
    pub fn fault(&self) -> Option<Fault> {
        self.etcd()?.channels.fault.borrow().clone()
    }

    /// Asks the cluster to go on without this backend, called `name`, and waits until all others
    /// act by a state in which it is out, at most for `limit`. The backend serves meanwhile.
    /// Returns at once if this backend has keys that no other one has.
    pub async fn leave(&self, name: &str, limit: Duration) {
        let Some(known) = self.known().filter(|_| self.lease.left().is_some()) else {
            return;
        };
        if !known.is_only_owner(name) {
            self.report(|report| report.leaving = true);
            let is_over = self.wait_until(|known| known.is_without(name));
            if tokio::time::timeout(limit, is_over).await.is_err() {
                return tracing::warn!("the cluster cannot go on without this backend");
            }
        }
        tracing::info!("the cluster goes on without this backend");
    }

    /// Gives this backend's lease back, if it has one, so that the other backends need not wait
    /// for its end. The backend serves nothing from now on.
    pub async fn give_back_lease(&self) {
        if let Some(etcd) = self.etcd().filter(|_| self.lease.left().is_some()) {
            etcd.channels.giving_back.send_replace(true);
            let mut given_back = etcd.channels.given_back.subscribe();
            let _ = given_back.wait_for(|given| *given).await;
        }
    }

    /// The digest of all nodes' placement: of the file's backends, or of the prefix in etcd. It is
    /// the same for all services of a file.
    pub fn placement_digest(&self, config: &Config) -> u64 {
        let file = config.whole.as_deref();
        let prefix = file.map_or_else(|| config.etcd_prefix(), ConfigFile::etcd_prefix);
        if let Some(prefix) = prefix {
            return Placing::digest_in_etcd(&prefix);
        }
        let Some(file) = file else {
            return self.view.borrow().state().placing.digest();
        };
        let mut parts = file.parts();
        parts.sort_by(|a, b| a.service.name.cmp(&b.service.name));
        let digests = parts.iter().filter_map(|part| first_state(part).ok());
        digests.fold(0, |sum: u64, state| {
            sum.rotate_left(1) ^ state.placing.digest()
        })
    }

    /// Whether the state is in etcd, and so may change.
    pub fn is_in_etcd(&self) -> bool {
        self.etcd().is_some()
    }

    /// Whether this node may not know which of its users still exist. A node without users has
    /// nobody to refuse.
    pub fn has_doubtful_users(&self) -> bool {
        !self.users_lease.is_valid() && !self.users.borrow().is_empty()
    }

    /// Waits until [`Self::has_doubtful_users`] is no longer `before`. Never resolves in a static
    /// cluster.
    pub async fn doubt_changes(&self, before: bool) {
        while self.has_doubtful_users() == before {
            match self.users_lease.left() {
                None => std::future::pending().await,
                Some(left) => tokio::time::sleep(left.max(LOOK_EVERY)).await,
            }
        }
    }

    /// Asks etcd for the user with this access key, as of this moment. `None`: there is none.
    ///
    /// # Errors
    /// etcd does not answer in time, or too many calls wait. In a static cluster there is nobody
    /// to ask.
    pub async fn ask_for_user(&self, access_key: &str) -> anyhow::Result<Option<Credential>> {
        let etcd = self.etcd().context("the users are in a file")?;
        let asked = etcd.registry.user(access_key);
        tokio::time::timeout(USER_IN, asked).await?
    }

    /// The registry of buckets in etcd. `None` in a static cluster, where a backend's store is
    /// the registry.
    pub fn registry(&self) -> Option<&Registry> {
        Some(&self.etcd()?.registry)
    }

    /// Waits until the contents of etcd are as wanted, and returns them. Never resolves in a
    /// static cluster.
    pub async fn wait_until(
        &self,
        mut is_wanted: impl FnMut(&ClusterRecords) -> bool,
    ) -> Arc<ClusterRecords> {
        if let Some(etcd) = self.etcd() {
            let mut known = etcd.channels.known.subscribe();
            if let Ok(known) = known.wait_for(|known| is_wanted(known)).await {
                return known.clone();
            }
        }
        std::future::pending().await
    }

    /// The change of the contents of etcd that the node has to know which gets a request of this
    /// one. `None` in a static cluster.
    pub fn settled_mark(&self) -> Option<LineageMark> {
        self.etcd()?.channels.settled.lock().at(Instant::now())
    }

    /// Waits until the contents of etcd by which this node acts were made from those with this
    /// mark, at most for `limit`, and returns whether they were. True in a static cluster.
    pub async fn hear_of(&self, mark: LineageMark, limit: Duration) -> bool {
        let Some(etcd) = self.etcd() else {
            return true;
        };
        let has_heard = |known: &ClusterRecords| known.contents().descends_from(mark);
        if has_heard(&etcd.channels.known.borrow()) {
            return true;
        }
        let heard = Box::pin(self.wait_until(has_heard));
        tokio::time::timeout(limit, heard).await.is_ok()
    }

    /// Follows the contents of etcd; `None` if nothing is there.
    pub fn follow(&self) -> Option<watch::Receiver<Arc<ClusterRecords>>> {
        let etcd = match &self.kind {
            ClusterKind::Etcd(etcd) => Some(etcd),
            ClusterKind::Fixed { certificate, .. } => certificate.as_ref(),
        };
        Some(etcd?.channels.known.subscribe())
    }

    /// The database of etcd, as a member has told last; `None` in a static cluster,
    /// and before the first look.
    pub fn database(&self) -> Option<Database> {
        *self.etcd()?.channels.database.borrow()
    }

    /// The contents of etcd; `None` in a static cluster.
    pub fn known(&self) -> Option<Arc<ClusterRecords>> {
        Some(self.etcd()?.channels.known.borrow().clone())
    }
}

/// The state of a new cluster.
fn first_state(config: &Config) -> anyhow::Result<State> {
    let names = config.backends().map(|n| NodeName::new(n.name.clone()));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    Ok(State::new(Placing::new(names, config.cluster.replicas)?))
}
