//! This node as one of several replicas: which nodes have a key, and how changes
//! get to the others. What is kept, and when a change counts, is the store's.
//!
//! A store waits for others where it may block; the connections to them belong to
//! the workers. So the store leaves a job with a worker, and waits for its answer.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use prism_cluster::{MinReplicas, NodeName, Phase, Status, TooFewCopies, View};
use prism_handoff::Health;
use prism_store::{
    Bytes, Decided, Error, Place, Prepare, Repair, Replicas, Scope, ScrubFault, Unprepared,
};
use tokio::sync::{mpsc, oneshot, watch};

use prism_membership::{Lease, LeaseTerm};

use crate::shares::Lister;

/// Jobs that wait for one worker.
const JOBS_MAX: usize = 1024;

/// Something for other replicas.
pub enum Job {
    Prepare {
        others: Vec<String>,
        /// As it travels.
        header: Arc<Vec<u8>>,
        len: u64,
        bytes: Arc<Bytes>,
        answer: SyncSender<Result<(), Unprepared>>,
    },
    Decided {
        others: Vec<String>,
        decided: Decided,
    },
    /// To be put right with the bytes of others.
    Mend(ScrubFault),
    /// Asked by the admin socket.
    Survey(oneshot::Sender<serde_json::Value>),
}

/// Who has what, and the way to them.
pub struct Replication {
    name: String,
    /// The cluster as this node acts by it.
    view: RwLock<Arc<View>>,
    /// Its epoch, for those who wait for a later one.
    adopted: watch::Sender<u64>,
    min_replicas: MinReplicas,
    lease: Lease,
    /// The identity of this node's store, where the cluster asks for it.
    store: OnceLock<u64>,
    workers: Mutex<Vec<mpsc::Sender<Job>>>,
    next: AtomicUsize,
    health: Arc<Health>,
    /// What is being mended, or waits for it.
    mending: Mutex<HashSet<Place>>,
}

impl Replication {
    pub(crate) fn new(
        name: &str,
        view: Arc<View>,
        min_replicas: MinReplicas,
        lease: Lease,
        health: Arc<Health>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            adopted: watch::Sender::new(view.epoch()),
            view: RwLock::new(view),
            min_replicas,
            lease,
            store: OnceLock::new(),
            workers: Mutex::default(),
            next: AtomicUsize::new(0),
            health,
            mending: Mutex::default(),
        }
    }

    /// The cluster as this node sees it now. Whoever asks twice may be answered by
    /// two views, which are one step apart.
    pub fn view(&self) -> Arc<View> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        view.clone()
    }

    /// From now on this node acts by `view`, if it is a later one.
    pub fn adopt(&self, view: Arc<View>) {
        let mut present = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if view.epoch() > present.epoch() {
            let epoch = view.epoch();
            *present = view;
            drop(present);
            self.adopted.send_replace(epoch);
        }
    }

    /// Waits until this node acts by a view behind that of `epoch`, at most for so long;
    /// whether it does.
    pub async fn wait_beyond(&self, epoch: u64, limit: Duration) -> bool {
        let mut adopted = self.adopted.subscribe();
        let later = adopted.wait_for(|adopted| *adopted > epoch);
        tokio::time::timeout(limit, later).await.is_ok()
    }

    /// The cluster speaks of this store when it speaks of this node; of another one
    /// nothing is served.
    pub fn set_store(&self, identity: u64) {
        let _ = self.store.set(identity);
    }

    /// To be asked before anything is looked up here or begun: none where this node
    /// must not serve what it stores.
    pub fn begin(&self) -> Option<LeaseTerm> {
        let held = self.lease.begin()?;
        let is_meant = |store: &u64| self.view().state().is_store_of(&self.name, *store);
        self.store.get().is_none_or(is_meant).then_some(held)
    }

    /// To be asked after it, before anybody is told what was found.
    pub fn is_still(&self, held: Option<LeaseTerm>) -> bool {
        held.is_some_and(|held| self.lease.is_still(held))
    }

    /// There are keys that another node has as well, or is about to have.
    pub fn is_on(&self) -> bool {
        self.view().is_replicated()
    }

    /// Every backend of the cluster, by name.
    pub fn backends(&self) -> Vec<String> {
        self.those(|_| true)
    }

    /// Those that are told of everything.
    pub fn takers(&self) -> Vec<String> {
        self.those(|status| status != Status::Out)
    }

    /// Those that know every bucket, and have all keys between them: of those that
    /// keys are read at, the ones in sync.
    pub fn in_sync(&self) -> Vec<String> {
        let mut names = self.those(|status| status == Status::InSync);
        let view = self.view();
        names.retain(|name| view.state().placing.members.contains(name.as_str()));
        names
    }

    /// Whether this node is one of them.
    pub fn is_in_sync(&self) -> bool {
        let view = self.view();
        let state = view.state();
        let is_member = state.placing.members.contains(self.name.as_str());
        is_member && state.status(&self.name) == Some(Status::InSync)
    }

    fn those(&self, wanted: impl Fn(Status) -> bool) -> Vec<String> {
        let view = self.view();
        let backends = view.state().backends.iter();
        let wanted = backends.filter(|(_, backend)| wanted(backend.status));
        wanted.map(|(name, _)| name.to_string()).collect()
    }

    /// Who makes the changes of a key.
    pub fn primary(&self, bucket: &str, key: &str) -> Option<String> {
        let view = self.view();
        view.primary(bucket, key).map(NodeName::to_string)
    }

    /// Whether that is this node.
    pub fn is_primary(&self, bucket: &str, key: &str) -> bool {
        let view = self.view();
        let primary = view.primary(bucket, key);
        primary.is_some_and(|name| name.as_str() == self.name)
    }

    /// Every other backend that the changes of a key are made at.
    pub fn other_writers(&self, bucket: &str, key: &str) -> Vec<String> {
        others_of(&self.view(), &self.name, bucket, key)
    }

    /// Whether a change of a key that is made here as well comes from the key's primary.
    /// Changes of another epoch are left to the store's own check.
    pub fn may_come_from(&self, primary: &str, epoch: u64, scope: &Scope) -> bool {
        let view = self.view();
        if view.epoch() != epoch {
            return true;
        }
        let (bucket, key) = (scope.bucket.as_str(), scope.key.as_str());
        let makes = view.primary(bucket, key);
        makes.is_some_and(|name| name.as_str() == primary)
            && view
                .writers(bucket, key)
                .iter()
                .any(|name| name.as_str() == self.name)
    }

    /// Who may answer an operation on a key, in the order in which they are to be
    /// asked: this node first, those out of reach last.
    pub fn answerers(&self, reads_only: bool, bucket: &str, key: &str) -> Vec<String> {
        let view = self.view();
        if !view.is_replicated() || !reads_only {
            let primary = view.primary(bucket, key);
            return primary.map(NodeName::to_string).into_iter().collect();
        }
        self.readers_of(&view, bucket, key)
    }

    /// Whether this node may answer a request about a key.
    pub fn may_answer(&self, reads_only: bool, bucket: &str, key: &str) -> bool {
        let (view, is_this) = (self.view(), |name: &NodeName| name.as_str() == self.name);
        match reads_only {
            true => view.readers(bucket, key).any(is_this),
            false => view.primary(bucket, key).is_some_and(is_this),
        }
    }

    /// Whether a key may be read here.
    pub fn is_reader(&self, bucket: &str, key: &str) -> bool {
        let view = self.view();
        view.readers(bucket, key)
            .any(|name| name.as_str() == self.name)
    }

    /// Nodes at which a key may be read, this one first if it is one.
    pub fn readers(&self, bucket: &str, key: &str) -> Vec<String> {
        self.readers_of(&self.view(), bucket, key)
    }

    fn readers_of(&self, view: &View, bucket: &str, key: &str) -> Vec<String> {
        let readers = view.readers(bucket, key);
        let mut readers: Vec<String> = readers.map(NodeName::to_string).collect();
        if readers.len() > 1 {
            fastrand::shuffle(&mut readers);
            let now = Instant::now();
            readers.sort_by_key(|name| (*name != self.name, self.health.comes_last(name, now)));
        }
        readers
    }

    /// What this node lists, where `without` are out of reach.
    pub fn lister<'a>(&'a self, bucket: &'a str, without: &'a [String]) -> Lister<'a> {
        Lister::new(self.view(), &self.name, bucket, without)
    }

    /// How many copies of a key have to be in sync for it to be written, by the view.
    pub fn min_replicas(&self) -> u16 {
        self.min_replicas.of(self.view().state().placing.replicas)
    }

    /// How many of those in sync may be out of reach with every key still in reach.
    pub fn spare(&self) -> usize {
        let view = self.view();
        let placing = &view.state().placing;
        let members = placing.members.iter();
        let in_sync = |name: &&NodeName| view.state().status(name.as_str()) == Some(Status::InSync);
        let missing = members.clone().count() - members.filter(in_sync).count();
        usize::from(placing.replicas).saturating_sub(missing + 1)
    }

    /// Nobody has to get hold of anything, and nothing moves.
    pub fn is_calm(&self) -> bool {
        let view = self.view();
        let state = view.state();
        let mut backends = state.backends.values();
        state.phase == Phase::Settled && backends.all(|b| b.status == Status::InSync)
    }

    /// The cluster as this node sees it; none if no worker answers.
    pub async fn survey(&self) -> Option<serde_json::Value> {
        let (answer, answered) = oneshot::channel();
        match self.leave(Job::Survey(answer)) {
            true => answered.await.ok(),
            false => None,
        }
    }

    /// `name` did not do what it was asked for: others are asked first for a while.
    pub fn avoid(&self, name: &str) {
        self.health.avoid(name, Instant::now());
    }

    /// A job to mend this is over.
    pub fn mended(&self, fault: &ScrubFault) {
        locked(&self.mending).remove(&whole(&fault.place));
    }

    /// A worker that carries jobs out; whether it is the first.
    pub fn join(&self) -> (mpsc::Receiver<Job>, bool) {
        let (sender, receiver) = mpsc::channel(JOBS_MAX);
        let mut workers = locked(&self.workers);
        workers.push(sender);
        (receiver, workers.len() == 1)
    }

    /// Leaves a job with the workers in turn; drops it if all have too many, and
    /// says whether one has taken it.
    fn leave(&self, mut job: Job) -> bool {
        let workers = locked(&self.workers);
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for n in 0..workers.len() {
            let Some(worker) = workers.get(first.wrapping_add(n) % workers.len()) else {
                return false;
            };
            match worker.try_send(job) {
                Ok(()) => return true,
                Err(
                    mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back),
                ) => job = back,
            }
        }
        false
    }
}

impl Replicas for Replication {
    fn epoch(&self) -> u64 {
        self.view().epoch()
    }

    fn others(&self, bucket: &str, key: &str) -> Result<Vec<String>, Error> {
        let view = self.view();
        let primary = view.primary(bucket, key);
        if primary.is_none_or(|primary| primary.as_str() != self.name) {
            return Err(Error::NotPrimary);
        }
        let enough = view.check_copies(bucket, key, self.min_replicas);
        enough.map_err(|TooFewCopies { in_sync, min }| Error::TooFewCopies { in_sync, min })?;
        Ok(others_of(&view, &self.name, bucket, key))
    }

    fn prepare(
        &self,
        others: &[String],
        prepare: Prepare,
        bytes: Bytes,
    ) -> Receiver<Result<(), Unprepared>> {
        let (answer, answered) = sync_channel(1);
        let len = prepare.body_len().unwrap_or(0);
        match serde_json::to_vec(&prepare) {
            Ok(header) => drop(self.leave(Job::Prepare {
                others: others.to_vec(),
                header: Arc::new(header),
                len,
                bytes: Arc::new(bytes),
                answer,
            })),
            Err(error) => {
                let why = Unprepared::Failed(self.name.clone(), error.to_string());
                let _ = answer.send(Err(why));
            }
        }
        // Without a worker the answer's sender is gone: that is heard as well.
        answered
    }

    fn decided(&self, others: &[String], decided: Decided) {
        let others = others.to_vec();
        self.leave(Job::Decided { others, decided });
    }
}

impl Repair for Replication {
    fn damaged(&self, fault: &ScrubFault) {
        let place = whole(&fault.place);
        let mut mending = locked(&self.mending);
        // Of more than that, the next reader or scrub will tell again.
        if mending.len() < JOBS_MAX && mending.insert(place.clone()) {
            drop(mending);
            if !self.leave(Job::Mend(fault.clone())) {
                locked(&self.mending).remove(&place);
            }
        }
    }
}

fn others_of(view: &View, name: &str, bucket: &str, key: &str) -> Vec<String> {
    let writers = view.writers(bucket, key).into_iter();
    let others = writers.filter(|writer| writer.as_str() != name);
    others.map(NodeName::to_string).collect()
}

/// The file that a place is in: it is mended whole.
fn whole(place: &Place) -> Place {
    let mut place = place.clone();
    if let Place::Object { offset, .. } = &mut place {
        *offset = 0;
    }
    place
}

/// No lock here guards anything a panic could leave half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "replication_tests.rs"]
mod tests;
