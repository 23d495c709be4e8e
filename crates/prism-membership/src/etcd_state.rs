//! This node's part in a cluster whose state is in etcd.
//!
//! One thread runs four tasks. It follows etcd (`follow`), holds this node's lease
//! (`hold`), makes the cluster's steps (`act`), and compares the state with the stores
//! (`vouch`). The tasks are independent, because a lease must not wait for anything.

mod act;
mod follow;
mod hold;
mod known;
mod vouch;

use std::cell::{Cell, OnceCell};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context;
use prism_cluster::{NodeName, Report, State, Testimony, View};
use prism_config::{Config, Etcd};
use prism_etcd::{Client, LeaseId};
use prism_handoff::supervise::supervise;
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;

use super::directory::{Directory, Host};
use super::etcd::{self, Keys, Pause};
use super::registry::{Calls, Registry};
use super::{Cluster, Kind, Lease, Users, first_state};

pub use known::Known;
pub use vouch::Fault;

/// The workers' side of that thread. Dropping it ends the thread. The lease then ends by
/// itself, so a node that restarts quickly is not missed.
pub(super) struct EtcdState {
    reports: watch::Sender<Report>,
    testimony: watch::Sender<Option<Testimony>>,
    name: NodeName,
    known: watch::Receiver<Arc<Known>>,
    pause: watch::Receiver<Pause>,
    fault: watch::Receiver<Option<Fault>>,
    /// True asks for the lease to be given back.
    giving_back: watch::Sender<bool>,
    /// True once etcd has ended the lease.
    given_back: watch::Receiver<bool>,
    pub(super) registry: Registry,
    _end: oneshot::Sender<()>,
}

impl EtcdState {
    /// The pauses of writes that steps ask for.
    pub(super) fn pauses(&self) -> watch::Receiver<Pause> {
        self.pause.clone()
    }

    /// Asks the cluster to go on without this backend. Waits until all others act by a state
    /// in which it is out. Returns at once if this backend has keys that no other one has.
    pub(super) async fn leave(&self) {
        if self.known().is_only_owner(&self.name) {
            return;
        }
        self.report(|report| report.leaving = true);
        let mut known = self.known.clone();
        let is_over = |known: &Arc<Known>| known.is_without(&self.name);
        // The channel does not close: the thread, which has the sender, ends with `self`.
        let _ = known.wait_for(is_over).await;
    }

    /// Gives the lease back, so that the other backends need not wait for its end.
    pub(super) async fn give_back_lease(&self) {
        self.giving_back.send_replace(true);
        let _ = self.given_back.clone().wait_for(|given| *given).await;
    }

    pub(super) fn report(&self, change: impl FnOnce(&mut Report)) {
        self.reports.send_if_modified(|report| {
            let before = *report;
            change(report);
            *report != before
        });
    }

    /// Updates the store's testimony: the store has saved `state` and acts by it.
    pub(super) fn set_saved_state(&self, state: &State) {
        self.testimony
            .send_if_modified(|testimony| match testimony {
                Some(testimony) => {
                    (testimony.epoch, testimony.state) = (state.epoch, Some(state.clone()));
                    true
                }
                None => false,
            });
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault.borrow().clone()
    }

    pub(super) fn news(&self) -> watch::Receiver<Arc<Known>> {
        self.known.clone()
    }

    pub(super) fn known(&self) -> Arc<Known> {
        self.known.borrow().clone()
    }
}

/// This node.
struct Me {
    name: NodeName,
    host: Host,
    /// The state of a new cluster by this node's file; `None` for a frontend.
    first: Option<State>,
    /// A random number of this process.
    run: u64,
    reports: watch::Receiver<Report>,
    /// The testimony of its store, if it has one.
    testimony: watch::Receiver<Option<Testimony>>,
    lease: Lease,
    /// True asks for the lease to be given back.
    giving_back: watch::Receiver<bool>,
    given_back: watch::Sender<bool>,
}

/// The thread's side.
struct Participant {
    config: Config,
    client: Client,
    keys: Keys,
    /// `None` for an observer, such as the switch's agent.
    me: Option<Me>,
    known: watch::Sender<Arc<Known>>,
    pause: watch::Sender<Pause>,
    /// The reason why no node may act by `known`.
    fault: watch::Sender<Option<Fault>>,
    /// The last lease that etcd has granted.
    granted: Cell<Option<LeaseId>>,
    /// The latest view, as soon as there is one.
    view: OnceCell<watch::Sender<Arc<View>>>,
    /// Gets the receiver of `view` when there is a first view.
    ready: mpsc::Sender<watch::Receiver<Arc<View>>>,
    directory: watch::Sender<Arc<Directory>>,
    users: watch::Sender<Users>,
}

impl Participant {
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

    fn new(
        config: &Config,
        me: Option<Me>,
        ready: mpsc::Sender<watch::Receiver<Arc<View>>>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            client: etcd::client(config)?,
            keys: Keys::of(config)?,
            me,
            known: watch::Sender::new(Arc::default()),
            pause: watch::Sender::new(Pause::default()),
            fault: watch::Sender::new(None),
            granted: Cell::new(None),
            view: OnceCell::new(),
            ready,
            directory: watch::Sender::new(Arc::new(Directory::of(config))),
            users: watch::Sender::new(Arc::default()),
            config: config.clone(),
        })
    }

    fn lease_ttl(&self) -> Duration {
        let etcd = self.config.cluster.etcd.as_ref();
        etcd.map(Etcd::lease_ttl).unwrap_or_default()
    }

    /// Starts the thread, which runs until `end` is dropped.
    fn start(self, mut calls: Calls, end: oneshot::Receiver<()>) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let work = move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = supervise("following etcd", async || self.follow().await) => {}
                    () = supervise("the lease in etcd", async || self.hold().await) => {}
                    () = supervise("the cluster's steps", async || self.act().await) => {}
                    () = supervise("the state in etcd", async || self.vouch().await) => {}
                    () = supervise("the registry of buckets", async || calls.answer(&self.client, &self.keys).await) => {}
                    _ = end => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("cluster".into());
        thread.spawn(work).context("cannot start a thread")?;
        Ok(())
    }
}

/// Joins the cluster in etcd as the node `name`. `testimony` is that of its store.
/// Blocks until etcd answers and has a state.
pub(super) fn join(
    config: &Config,
    name: &str,
    testimony: Option<Testimony>,
) -> anyhow::Result<Cluster> {
    let node = config.node(name);
    let node = node.with_context(|| format!("the configuration has no node {name:?}"))?;
    let reports = watch::Sender::new(Report::default());
    let testimony = watch::Sender::new(testimony);
    let lease = match node.is_backend() {
        true => Lease::none(),
        // A frontend answers nothing from a store, so it needs no lease.
        false => Lease::for_ever(),
    };
    let (giving_back, given_back) = (watch::Sender::new(false), watch::Sender::new(false));
    let own_name = NodeName::new(name)?;
    let me = Me {
        name: own_name.clone(),
        host: Host::of(node),
        first: match node.is_backend() {
            true => Some(first_state(config)?.founded(fastrand::u64(1..))),
            false => None,
        },
        run: fastrand::u64(..),
        reports: reports.subscribe(),
        testimony: testimony.subscribe(),
        lease: lease.clone(),
        giving_back: giving_back.subscribe(),
        given_back: given_back.clone(),
    };
    let (ready, views) = mpsc::channel();
    let participant = Participant::new(config, Some(me), ready)?;
    let (known, directory) = (
        participant.known.subscribe(),
        participant.directory.subscribe(),
    );
    let (users, fault) = (participant.users.subscribe(), participant.fault.subscribe());
    let pause = participant.pause.subscribe();
    let (end, ended) = oneshot::channel();
    let (registry, calls) = Registry::new();
    participant.start(calls, ended)?;
    let view = views.recv().context("the thread that follows etcd ended")?;
    Ok(Cluster {
        view,
        directory,
        users,
        lease,
        kind: Kind::Etcd(EtcdState {
            reports,
            testimony,
            name: own_name,
            known,
            pause,
            fault,
            giving_back,
            given_back: given_back.subscribe(),
            registry,
            _end: end,
        }),
    })
}

/// Follows the directory only, for processes that are no node. It has the file's nodes until
/// etcd answers. Dropping the result ends it.
///
/// # Errors
/// The configuration or one of its files cannot be used.
pub fn observe(config: &Config) -> anyhow::Result<Observed> {
    let (ready, _) = mpsc::channel();
    let participant = Participant::new(config, None, ready)?;
    let directory = participant.directory.subscribe();
    let (end, ended) = oneshot::channel();
    participant.start(Registry::new().1, ended)?;
    Ok(Observed {
        directory,
        _end: end,
    })
}

/// The cluster as seen by a process that is no node.
pub struct Observed {
    /// The nodes' addresses.
    pub directory: watch::Receiver<Arc<Directory>>,
    _end: oneshot::Sender<()>,
}
