//! This node's part in a cluster whose state is in etcd.
//!
//! One thread runs five tasks. It follows etcd (`follow`), holds this node's lease
//! (`hold`), makes the cluster's steps (`act`), compares the contents of etcd with what nodes
//! and stores remember (`vouch`), and looks at the size of etcd's database (`size`). The tasks are
//! independent, because a lease must not wait for anything.

mod act;
mod follow;
mod hold;
mod older_copy;
mod records;
mod size;
mod vouch;

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use prism_cluster::{Fault, NodeName, Report, SettledMark, State, Testimony, View};
use prism_common::supervise::supervise;
use prism_config::{Config, seconds};
use prism_etcd::{Database, EtcdClient, Fingerprint, LeaseId};
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;

use super::directory::{Directory, Host};
use super::etcd::{self, Keys};
use super::ledger::Ledger;
use super::noted::Noted;
use super::own_store::OwnStore;
use super::registry::Registry;
use super::users::Users;
use super::{Cluster, ClusterKind, Lease, first_state};

pub use records::{AcmeRecord, AcmeRecords, ClusterRecords};

/// Pause between two tries of a task.
const PAUSE: Duration = Duration::from_millis(200);

/// The workers' side of that thread. Dropping it ends the thread. The lease then ends by
/// itself, so a node that restarts quickly is not missed.
pub(super) struct EtcdThread {
    pub(super) channels: Arc<Channels>,
    pub(super) registry: Registry,
    pub(super) store_identity: Option<Arc<AtomicU64>>,
    _end: oneshot::Sender<()>,
}

/// The news that the thread and the workers have for each other.
#[derive(Default)]
pub(super) struct Channels {
    /// This node's report.
    pub(super) reports: watch::Sender<Report>,
    /// The testimony of this node's store, if it has one.
    pub(super) testimony: watch::Sender<Option<Testimony>>,
    /// True asks for the lease to be given back.
    pub(super) giving_back: watch::Sender<bool>,
    /// True once etcd has ended the lease.
    pub(super) given_back: watch::Sender<bool>,
    pub(super) known: watch::Sender<Arc<ClusterRecords>>,
    /// The reason why no node may act by `known`.
    pub(super) fault: watch::Sender<Option<Fault>>,
    /// The noted change that all other nodes have to know.
    pub(super) settled: Mutex<SettledMark>,
    /// The database of etcd, as it was seen last.
    pub(super) database: watch::Sender<Option<Database>>,
    directory: watch::Sender<Arc<Directory>>,
    users: watch::Sender<Users>,
}

/// This node.
struct Me {
    name: NodeName,
    host: Host,
    /// The state of a new cluster by this node's file; `None` for a frontend.
    first: Option<State>,
    /// A random number of this process.
    run: u64,
    lease: Lease,
}

/// The thread's side.
struct Participant {
    config: Config,
    ledger: Ledger,
    /// This node's store, if it has one.
    store: Option<Arc<OwnStore>>,
    /// The identity of that store.
    store_identity: Option<Arc<AtomicU64>>,
    /// Held while something is made durable.
    noting: tokio::sync::Mutex<()>,
    /// Whether `noted` has marks that are not durable yet.
    has_unsaved_marks: Cell<bool>,
    /// When `noted` was made durable last.
    noted_at: Cell<Option<Instant>>,
    /// The last contents that this node has noted.
    noted: RefCell<Noted>,
    /// The users in etcd that `noted` has.
    noted_users: Cell<Option<Fingerprint>>,
    /// `None` for an observer, such as the switch's agent.
    me: Option<Me>,
    channels: Arc<Channels>,
    /// The right to admit requests by the users in `channels`.
    users_lease: Lease,
    /// The last lease that etcd has granted.
    granted: Cell<Option<LeaseId>>,
    /// The latest view, as soon as there is one.
    view: OnceCell<watch::Sender<Arc<View>>>,
    /// Gets the receiver of `view` when there is a first view.
    ready: mpsc::Sender<watch::Receiver<Arc<View>>>,
}

impl Participant {
    /// Starts the thread, which runs until the result is dropped. `ready` gets the receiver of
    /// views when there is a first view.
    fn start(
        config: &Config,
        me: Option<Me>,
        store: Option<Arc<OwnStore>>,
        channels: Channels,
        users_lease: Lease,
        ready: mpsc::Sender<watch::Receiver<Arc<View>>>,
    ) -> anyhow::Result<EtcdThread> {
        let channels = Arc::new(channels);
        channels
            .directory
            .send_replace(Arc::new(Directory::of(config)));
        let noted = store.as_ref().map(|store| store.noted.clone());
        let noted = noted.unwrap_or_default();
        let testimony = channels.testimony.borrow();
        let identity = testimony.as_ref().map(|testimony| testimony.store);
        drop(testimony);
        let store_identity = identity.map(|identity| Arc::new(AtomicU64::new(identity)));
        let ledger = Ledger::new(etcd::client(config)?, Keys::of(config)?);
        if let Some(mark) = noted.mark {
            ledger.note(mark);
        }
        let this = Self {
            ledger,
            store,
            store_identity: store_identity.clone(),
            noting: tokio::sync::Mutex::default(),
            has_unsaved_marks: Cell::new(false),
            noted_at: Cell::new(None),
            noted: RefCell::new(noted),
            noted_users: Cell::new(None),
            me,
            channels: channels.clone(),
            users_lease,
            granted: Cell::new(None),
            view: OnceCell::new(),
            ready,
            config: config.clone(),
        };
        let (registry, mut calls) = Registry::new();
        let (_end, ended) = oneshot::channel();
        let runtime = prism_common::runtime()?;
        let work = move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = supervise("following etcd", async || this.follow().await) => {}
                    () = supervise("the lease in etcd", async || this.hold().await) => {}
                    () = supervise("the cluster's steps", async || this.act().await) => {}
                    () = supervise("the contents of etcd", async || this.vouch().await) => {}
                    () = supervise("the size of etcd", async || this.look_at_size().await) => {}
                    () = supervise("the registry of buckets", async || calls.answer(&this.ledger).await) => {}
                    _ = ended => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("cluster".into());
        thread.spawn(work).context("cannot start a thread")?;
        Ok(EtcdThread {
            channels,
            registry,
            store_identity,
            _end,
        })
    }

    fn client(&self) -> &EtcdClient {
        &self.ledger.client
    }

    fn keys(&self) -> &Keys {
        &self.ledger.keys
    }

    /// This node, if it is a backend.
    fn backend(&self) -> Option<&Me> {
        self.me.as_ref().filter(|me| me.host.is_backend())
    }

    /// Publishes `view` if it is later than the present one.
    fn show(&self, view: View) {
        let view = Arc::new(view);
        let Some(sender) = self.view.get() else {
            let sender = watch::Sender::new(view);
            let _ = self.ready.send(sender.subscribe());
            let _ = self.view.set(sender);
            return;
        };
        sender.send_if_modified(|present| {
            let before = present.state();
            let is_later =
                view.epoch() > before.epoch && view.state().succeeds(before.founding, before.epoch);
            if is_later {
                *present = view;
            }
            is_later
        });
    }

    fn lease_ttl(&self) -> Duration {
        let etcd = self.config.cluster.etcd.as_ref();
        etcd.map_or(Duration::ZERO, |etcd| seconds(etcd.lease_ttl_s))
    }
}

/// Publishes a value if it differs from the present one. Returns whether it does.
fn replace<T: PartialEq>(channel: &watch::Sender<T>, value: T) -> bool {
    channel.send_if_modified(|present| {
        let is_new = *present != value;
        *present = value;
        is_new
    })
}

/// Joins the cluster in etcd as the node `name`, with its store, if it has one. Blocks until
/// etcd answers and has a state.
pub(super) fn join(
    config: &Config,
    name: &str,
    store: Option<Arc<OwnStore>>,
) -> anyhow::Result<Cluster> {
    let node = config.node(name);
    let node = node.with_context(|| format!("the configuration has no node {name:?}"))?;
    let (lease, first) = if node.is_backend() {
        let mut first = first_state(config)?;
        first.founding = fastrand::u64(1..);
        (Lease::none(), Some(first))
    } else {
        // A frontend answers nothing from a store, so it needs no lease.
        (Lease::for_ever(), None)
    };
    let me = Me {
        name: NodeName::new(name)?,
        host: Host::of(node),
        first,
        run: fastrand::u64(..),
        lease: lease.clone(),
    };
    let testimony = store.as_ref().map(|store| store.testimony.clone());
    let channels = Channels {
        testimony: watch::Sender::new(testimony),
        ..Channels::default()
    };
    let (ready, views) = mpsc::channel();
    let users_lease = Lease::none();
    let etcd = Participant::start(
        config,
        Some(me),
        store,
        channels,
        users_lease.clone(),
        ready,
    )?;
    let view = views.recv().context("the thread that follows etcd ended")?;
    Ok(Cluster {
        view,
        directory: etcd.channels.directory.subscribe(),
        users: etcd.channels.users.subscribe(),
        lease,
        users_lease,
        kind: ClusterKind::Etcd(etcd),
    })
}

/// Follows the directory only, for processes that are no node. It has the file's nodes until
/// etcd answers. Dropping the result ends it.
///
/// # Errors
/// The configuration or one of its files cannot be used.
pub fn observe(config: &Config) -> anyhow::Result<Observed> {
    let etcd = observe_all(config)?;
    Ok(Observed {
        directory: etcd.channels.directory.subscribe(),
        _etcd: etcd,
    })
}

/// Follows the contents of etcd, and takes no part in the cluster.
pub(super) fn observe_all(config: &Config) -> anyhow::Result<EtcdThread> {
    let (ready, _) = mpsc::channel();
    let channels = Channels::default();
    Participant::start(config, None, None, channels, Lease::none(), ready)
}

/// The cluster as seen by a process that is no node.
pub struct Observed {
    /// The nodes' addresses.
    pub directory: watch::Receiver<Arc<Directory>>,
    _etcd: EtcdThread,
}
