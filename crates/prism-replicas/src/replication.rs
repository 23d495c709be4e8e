//! This node as one of several replicas, for all of its threads: the nodes that have a key, and
//! the jobs of its store for other replicas.
//!
//! The store waits for other replicas on threads that may block, but the streams to them belong
//! to the workers. So the store submits a job to a worker, and waits for the answer.
//!
//! Not here: what is stored, and when a change counts (`prism-store`, `prism_cluster::replica`).

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use prism_cluster::{MinReplicas, NodeName, Phase, Status, TooFewCopies, View};
use prism_core::{Core, JOBS_MAX, Jobs, Work};
use prism_membership::LeaseTerm;
use prism_s3::S3Error;
use prism_service::join_all;
use prism_store::{Bytes, Decided, Error, Place, Prepare, Repair, Replicas, Scope, ScrubFault};
use tokio::sync::oneshot;

use crate::Replicator;
use crate::framed::encode_header;
use crate::quota::QuotaChange;
use crate::quotas::{NamedQuota, QuotaReport};

/// A change on its way to other replicas.
pub(crate) struct Outgoing {
    /// Its description, as it precedes the bytes.
    pub(crate) header: Vec<u8>,
    pub(crate) len: u64,
    pub(crate) bytes: Bytes,
}

/// The nodes that have each key, and the jobs for them.
pub struct Replication {
    core: Arc<Core>,
    min_replicas: MinReplicas,
    /// The identity of this node's store; only with etcd.
    store: OnceLock<Arc<AtomicU64>>,
    pub(crate) jobs: Jobs<Work<Replicator>>,
    /// Files that are being repaired, or wait for it.
    under_repair: Mutex<HashSet<Place>>,
}

impl Replication {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            min_replicas: MinReplicas(core.config.now().cluster.min_replicas),
            core,
            store: OnceLock::new(),
            jobs: Jobs::default(),
            under_repair: Mutex::default(),
        }
    }

    /// The cluster as this node sees it now. Two calls may return different views.
    pub fn view(&self) -> Arc<View> {
        self.core.view.now()
    }

    /// Sets the identity of this node's store, which may change. This node serves only while the
    /// view names that store for it.
    pub(crate) fn set_store(&self, identity: Arc<AtomicU64>) {
        let _ = self.store.set(identity);
    }

    /// The present term of the lease, for the start of a read or a change. `None`: this node
    /// must not serve from its store.
    pub fn begin(&self) -> Option<LeaseTerm> {
        let term = self.core.cluster.lease.begin()?;
        let is_meant = |store: &Arc<AtomicU64>| {
            let store = store.load(Ordering::Acquire);
            self.view().state().is_store_of(&self.core.name, store)
        };
        self.store.get().is_none_or(is_meant).then_some(term)
    }

    /// Whether the cluster knows another store for this node than its present one, which must not
    /// serve.
    pub(crate) fn has_other_store(&self) -> bool {
        let own = self.store.get().map(|store| store.load(Ordering::Acquire));
        let view = self.view();
        let known = view.state().backends.get(self.core.name.as_str());
        let known = known.map_or(0, |backend| backend.store);
        own.is_some_and(|own| ![0, own].contains(&known))
    }

    /// Whether the lease has lasted since [`Self::begin`]. Asked before the answer leaves.
    pub(crate) fn is_still(&self, term: Option<LeaseTerm>) -> bool {
        term.is_some_and(|term| self.core.cluster.lease.is_still(term))
    }

    /// All backends of the cluster, by name.
    pub(crate) fn backends(&self) -> Vec<String> {
        self.backends_with(|_| true)
    }

    /// The members in sync. They know all buckets, and have all keys between them.
    pub fn in_sync(&self) -> Vec<String> {
        members_in_sync(&self.view())
            .map(NodeName::to_string)
            .collect()
    }

    /// Whether this node is a member in sync.
    pub fn is_in_sync(&self) -> bool {
        members_in_sync(&self.view()).any(|name| name.as_str() == self.core.name)
    }

    /// The backends whose status is wanted.
    pub(crate) fn backends_with(&self, wanted: impl Fn(Status) -> bool) -> Vec<String> {
        let view = self.view();
        let backends = view.state().backends.iter();
        let wanted = backends.filter(|(_, backend)| wanted(backend.status));
        wanted.map(|(name, _)| name.to_string()).collect()
    }

    /// The primary of a key; `None` if no replica is in sync.
    pub fn primary(&self, bucket: &str, key: &str) -> Option<String> {
        let view = self.view();
        view.primary(bucket, key).map(NodeName::to_string)
    }

    /// The other backends that get the changes of a key.
    pub(crate) fn other_writers(&self, bucket: &str, key: &str) -> Vec<String> {
        others_of(&self.view(), &self.core.name, bucket, key)
    }

    /// Whether `primary` may send this node a change of a key. The store itself checks changes of
    /// another epoch.
    pub(crate) fn may_come_from(&self, primary: &str, epoch: u64, scope: &Scope) -> bool {
        let view = self.view();
        if view.epoch() != epoch {
            return true;
        }
        let bucket = scope.bucket.as_str();
        let key = scope.key.as_str();
        let present = view.primary(bucket, key);
        let writers = view.writers(bucket, key);
        present.is_some_and(|name| name.as_str() == primary)
            && writers.iter().any(|name| name.as_str() == self.core.name)
    }

    /// Whether this node is the primary of a key, which decides about its changes.
    pub fn is_primary(&self, bucket: &str, key: &str) -> bool {
        let view = self.view();
        let primary = view.primary(bucket, key);
        primary.is_some_and(|name| name.as_str() == self.core.name)
    }

    /// Whether this node may answer a read of a key now.
    pub fn may_read(&self, bucket: &str, key: &str) -> bool {
        let view = self.view();
        view.readers(bucket, key)
            .any(|name| name.as_str() == self.core.name)
    }

    /// The nodes that may answer a read of a key now, in the order to ask them: this node first,
    /// nodes out of reach last.
    pub fn readers(&self, bucket: &str, key: &str) -> Vec<String> {
        let view = self.view();
        let readers = view.readers(bucket, key).map(NodeName::to_string);
        self.in_order(readers.collect())
    }

    /// The same if this node may not answer; `None` if it may.
    pub fn other_readers(&self, bucket: &str, key: &str) -> Option<Vec<String>> {
        let view = self.view();
        let mut readers = Vec::new();
        for name in view.readers(bucket, key) {
            if name.as_str() == self.core.name {
                return None;
            }
            readers.push(name.to_string());
        }
        Some(self.in_order(readers))
    }

    fn in_order(&self, mut readers: Vec<String>) -> Vec<String> {
        if readers.len() > 1 {
            fastrand::shuffle(&mut readers);
            let now = Instant::now();
            let health = self.core.process.health.lock();
            readers.sort_by_key(|name| (*name != self.core.name, health.comes_last(name, now)));
        }
        readers
    }

    /// Whether this node lists a key of its store by `view`, while the nodes `without` are out
    /// of reach. Exactly one of the replicas of a key does.
    pub(crate) fn lists(&self, view: &View, bucket: &str, key: &str, without: &[String]) -> bool {
        // In the first epoch a store without replicas has only its own keys.
        if view.epoch() == 1 && !view.is_replicated() {
            return true;
        }
        let mut readers = view.readers(bucket, key).map(NodeName::as_str);
        let first = readers.find(|name| !without.iter().any(|gone| gone == name));
        first == Some(self.core.name.as_str())
    }

    /// The number of members in sync that may be out of reach while every key stays in reach.
    pub fn spare(&self) -> usize {
        let view = self.view();
        let placing = &view.state().placing;
        let missing = placing.members.len() - members_in_sync(&view).count();
        usize::from(placing.replicas).saturating_sub(missing + 1)
    }

    /// Whether all backends are in sync and no keys move.
    pub(crate) fn is_calm(&self) -> bool {
        let view = self.view();
        let state = view.state();
        let mut backends = state.backends.values();
        state.phase == Phase::Settled && backends.all(|b| b.status == Status::InSync)
    }

    /// The quotas of all names, in their order.
    ///
    /// # Errors
    /// Unavailable if the registry of buckets is out of reach, or no worker answers.
    pub async fn quotas(&self) -> Result<Vec<NamedQuota>, S3Error> {
        let (answer, answered) = oneshot::channel();
        self.jobs.run(async move |worker: &Replicator| {
            let _ = answer.send(worker.quotas().await);
        });
        let answered = answered.await;
        answered.unwrap_or_else(|_| Err(prism_s3::Code::ServiceUnavailable.into()))
    }

    /// The quota of a name and the usage of its bucket, after this change if there is one.
    ///
    /// # Errors
    /// [`prism_s3::Code::NoSuchBucket`] without a bucket and a quota;
    /// [`prism_s3::Code::InvalidRequest`] if too many names without a bucket have quotas;
    /// unavailable if the registry of buckets is out of reach, or no worker answers.
    pub async fn quota(
        &self,
        bucket: String,
        change: Option<QuotaChange>,
    ) -> Result<QuotaReport, S3Error> {
        let (answer, answered) = oneshot::channel();
        self.jobs.run(async move |worker: &Replicator| {
            let _ = answer.send(worker.quota(&bucket, change).await);
        });
        let answered = answered.await;
        answered.unwrap_or_else(|_| Err(prism_s3::Code::ServiceUnavailable.into()))
    }

    /// Whether the node `name` has not answered a short time ago.
    pub(crate) fn is_avoided(&self, name: &str) -> bool {
        self.core
            .process
            .health
            .lock()
            .comes_last(name, Instant::now())
    }

    /// Notes that the node `name` did not answer: others are asked first for a while.
    pub(crate) fn avoid(&self, name: &str) {
        self.core.process.health.lock().avoid(name, Instant::now());
    }

    /// Notes that the repair of `fault` is over.
    pub(crate) fn repair_ended(&self, fault: &ScrubFault) {
        self.under_repair.lock().remove(&file_of(&fault.place));
    }
}

impl Replicas for Replication {
    fn epoch(&self) -> u64 {
        self.view().epoch()
    }

    fn others(&self, bucket: &str, key: &str) -> Result<Vec<String>, Error> {
        let view = self.view();
        let primary = view.primary(bucket, key);
        if primary.is_none_or(|primary| primary.as_str() != self.core.name) {
            return Err(Error::NotPrimary);
        }
        let enough = view.check_copies(bucket, key, self.min_replicas);
        enough.map_err(|TooFewCopies { in_sync, min }| Error::TooFewCopies { in_sync, min })?;
        Ok(others_of(&view, &self.core.name, bucket, key))
    }

    fn prepare(
        &self,
        others: &[String],
        prepare: Prepare,
        bytes: Bytes,
    ) -> Receiver<Result<(), Error>> {
        let (answer, answered) = sync_channel(1);
        let len = prepare.body_len();
        match encode_header(&prepare) {
            Ok(header) => {
                let others = others.to_vec();
                let change = Outgoing { header, len, bytes };
                self.jobs.run(async move |worker: &Replicator| {
                    let asked = others.iter().map(|peer| worker.prepare_at(peer, &change));
                    let answers = join_all(asked.collect()).await;
                    let _ = answer.send(answers.into_iter().collect());
                });
            }
            Err(error) => {
                let _ = answer.send(Err(Error::Unreplicated {
                    node: self.core.name.clone(),
                    why: format!("failed: {error}").into(),
                    refusal: None,
                }));
            }
        }
        // Without a worker the sender is dropped, and the receiver returns an error.
        answered
    }

    fn decided(&self, others: Vec<String>, decided: Decided) {
        self.jobs.run(async move |worker: &Replicator| {
            worker.announce_outcome(&others, decided).await;
        });
    }
}

impl Repair for Replication {
    fn damaged(&self, fault: &ScrubFault) {
        let place = file_of(&fault.place);
        let mut under_repair = self.under_repair.lock();
        // The next read or scrub reports what is beyond the limit.
        if under_repair.len() < JOBS_MAX && under_repair.insert(place.clone()) {
            drop(under_repair);
            let fault = fault.clone();
            let is_submitted = self.jobs.run(async move |worker: &Replicator| {
                worker.repair(&fault).await;
                worker.node.replication.repair_ended(&fault);
            });
            if !is_submitted {
                self.under_repair.lock().remove(&place);
            }
        }
    }
}

fn members_in_sync(view: &View) -> impl Iterator<Item = &NodeName> {
    let members = view.state().placing.members.iter();
    members.filter(|name| view.state().status(name.as_str()) == Some(Status::InSync))
}

fn others_of(view: &View, name: &str, bucket: &str, key: &str) -> Vec<String> {
    let writers = view.writers(bucket, key).into_iter();
    let others = writers.filter(|writer| writer.as_str() != name);
    others.map(NodeName::to_string).collect()
}

/// The file that a place is in, which is repaired as a whole.
fn file_of(place: &Place) -> Place {
    let mut place = place.clone();
    if let Place::Object(at) = &mut place {
        at.offset = 0;
    }
    place
}

#[cfg(test)]
#[path = "replication_tests.rs"]
mod tests;
