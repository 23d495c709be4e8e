//! A cluster whose state is kept in etcd: this node's part in keeping it.
//!
//! One thread follows what etcd has (`follow`), holds this node's lease (`hold`),
//! makes the cluster's next step when it is time for one (`act`), and doubts what etcd
//! has where a store knows better (`vouch`). The four go on independently: a lease must
//! not wait for anything.

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

/// The node's side of it. Dropping it ends the thread; the lease is left to end by
/// itself, so that a node which is only started anew is not missed.
pub(super) struct EtcdState {
    reports: watch::Sender<Report>,
    said: watch::Sender<Option<Testimony>>,
    name: NodeName,
    known: watch::Receiver<Arc<Known>>,
    pause: watch::Receiver<Pause>,
    fault: watch::Receiver<Option<Fault>>,
    /// Gives the lease back, and tells when it has been.
    giving_back: watch::Sender<bool>,
    given_back: watch::Receiver<bool>,
    pub(super) registry: Registry,
    _end: oneshot::Sender<()>,
}

impl EtcdState {
    /// Writes are to pause, whenever that changes.
    pub(super) fn pauses(&self) -> watch::Receiver<Pause> {
        self.pause.clone()
    }

    /// Has the cluster go on without this backend while it still lives: until all others
    /// act by a state in which it is out. At once where it has keys that nobody else has.
    pub(super) async fn leave(&self) {
        if self.known().has_alone(&self.name) {
            return;
        }
        self.report(|report| report.leaving = true);
        let mut known = self.known.clone();
        let is_over = |known: &Arc<Known>| known.is_without(&self.name);
        // It does not end: its sender lives as long as this.
        let _ = known.wait_for(is_over).await;
    }

    /// Gives the lease back, which nobody has to wait for then.
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

    /// The store has noted the state that it acts by.
    pub(super) fn noted(&self, state: &State) {
        self.said.send_if_modified(|said| match said {
            Some(said) => {
                (said.epoch, said.state) = (state.epoch, Some(state.clone()));
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

/// Who this node is.
struct Me {
    name: NodeName,
    host: Host,
    /// What a new cluster begins with, if this node's file says it.
    first: Option<State>,
    /// Of this process.
    run: u64,
    reports: watch::Receiver<Report>,
    /// What its store has noted, if it has one.
    said: watch::Receiver<Option<Testimony>>,
    lease: Lease,
    /// The lease is to be given back.
    giving_back: watch::Receiver<bool>,
    given_back: watch::Sender<bool>,
}

/// The thread's side.
struct Keeper {
    config: Config,
    client: Client,
    keys: Keys,
    /// None for one who only looks.
    me: Option<Me>,
    known: watch::Sender<Arc<Known>>,
    pause: watch::Sender<Pause>,
    /// Why nobody is to act by what is known.
    fault: watch::Sender<Option<Fault>>,
    /// The last lease that etcd has granted.
    granted: Cell<Option<LeaseId>>,
    /// Since there is one.
    view: OnceCell<watch::Sender<Arc<View>>>,
    /// Is told when there is one.
    ready: mpsc::Sender<watch::Receiver<Arc<View>>>,
    directory: watch::Sender<Arc<Directory>>,
    users: watch::Sender<Users>,
}

impl Keeper {
    /// This node acts by `view` from now on, if it is a later one.
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

    /// Until `end` is dropped.
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
        thread.spawn(work).context("starting a thread")?;
        Ok(())
    }
}

/// The cluster in etcd, as the node `name`, whose store has noted `said`. Waits until
/// etcd answers and there is a state.
pub(super) fn join(
    config: &Config,
    name: &str,
    said: Option<Testimony>,
) -> anyhow::Result<Cluster> {
    let node = config.node(name).context("the node's configuration")?;
    let reports = watch::Sender::new(Report::default());
    let said = watch::Sender::new(said);
    let lease = match node.is_backend() {
        true => Lease::none(),
        // Who stores nothing answers nothing of its own.
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
        said: said.subscribe(),
        lease: lease.clone(),
        giving_back: giving_back.subscribe(),
        given_back: given_back.clone(),
    };
    let (ready, views) = mpsc::channel();
    let keeper = Keeper::new(config, Some(me), ready)?;
    let (known, directory) = (keeper.known.subscribe(), keeper.directory.subscribe());
    let (users, fault) = (keeper.users.subscribe(), keeper.fault.subscribe());
    let pause = keeper.pause.subscribe();
    let (end, ended) = oneshot::channel();
    let (registry, calls) = Registry::new();
    keeper.start(calls, ended)?;
    let view = views.recv().context("the thread that follows etcd ended")?;
    Ok(Cluster {
        view,
        directory,
        users,
        lease,
        kind: Kind::Etcd(EtcdState {
            reports,
            said,
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

/// The directory alone, for one who is no node: what the file says, until etcd
/// answers. Ends with what is returned.
///
/// # Errors
/// When the configuration or one of its files cannot be used.
pub fn observe(config: &Config) -> anyhow::Result<Observed> {
    let (ready, _) = mpsc::channel();
    let keeper = Keeper::new(config, None, ready)?;
    let directory = keeper.directory.subscribe();
    let (end, ended) = oneshot::channel();
    keeper.start(Registry::new().1, ended)?;
    Ok(Observed {
        directory,
        _end: end,
    })
}

/// What somebody sees who is no node.
pub struct Observed {
    /// Where the nodes are.
    pub directory: watch::Receiver<Arc<Directory>>,
    _end: oneshot::Sender<()>,
}
