//! This node as one of several replicas: which nodes have a key, and how changes
//! get to the others. What is kept, and when a change counts, is the store's.
//!
//! A store waits for others where it may block; the connections to them belong to
//! the workers. So the store leaves a job with a worker, and waits for its answer.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prism_cluster::{NodeName, Placement};
use prism_s3::Operation;
use prism_store::{Bytes, Decided, Place, Prepare, Repair, Replicas, ScrubFault, Unprepared};
use tokio::sync::{mpsc, oneshot};

/// Jobs that wait for one worker.
const JOBS_MAX: usize = 1024;
/// A node that was out of reach is asked last for so long.
const AVOIDED: Duration = Duration::from_secs(2);
/// The epoch of a cluster whose members do not change.
const EPOCH: u64 = 1;

/// Something for other replicas.
pub(super) enum Job {
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
pub(crate) struct Replication {
    name: String,
    placement: Placement,
    replicas: usize,
    workers: Mutex<Vec<mpsc::Sender<Job>>>,
    next: AtomicUsize,
    /// When a node was found out of reach.
    unreachable: Mutex<HashMap<String, Instant>>,
    /// What is being mended, or waits for it.
    mending: Mutex<HashSet<Place>>,
}

impl Replication {
    pub(super) fn new(name: &str, placement: Placement, replicas: u16) -> Self {
        Self {
            name: name.to_owned(),
            placement,
            replicas: usize::from(replicas.max(1)),
            workers: Mutex::default(),
            next: AtomicUsize::new(0),
            unreachable: Mutex::default(),
            mending: Mutex::default(),
        }
    }

    /// There are keys that another node has as well.
    pub(super) fn is_on(&self) -> bool {
        self.replicas > 1
    }

    /// All backends, by name.
    pub(super) fn backends(&self) -> impl ExactSizeIterator<Item = &NodeName> {
        self.placement.nodes()
    }

    /// Who makes the changes of a key.
    pub(super) fn primary(&self, bucket: &str, key: &str) -> Option<&str> {
        self.placement.owner(bucket, key).map(NodeName::as_str)
    }

    /// Who has a key, the primary first.
    pub(super) fn holders(&self, bucket: &str, key: &str) -> impl Iterator<Item = &str> {
        let owners = self.placement.owners(bucket, key, self.replicas);
        owners.map(NodeName::as_str)
    }

    /// Who may answer an operation on a key, in the order in which they are to be
    /// asked: this node first, those out of reach last.
    pub(super) fn answerers(&self, operation: &Operation, bucket: &str, key: &str) -> Vec<String> {
        if !self.is_on() || !only_reads(operation) {
            return self
                .primary(bucket, key)
                .map(str::to_owned)
                .into_iter()
                .collect();
        }
        self.readers(bucket, key)
    }

    /// The same, for reading.
    pub(super) fn readers(&self, bucket: &str, key: &str) -> Vec<String> {
        let mut holders: Vec<String> = self.holders(bucket, key).map(str::to_owned).collect();
        if self.is_on() {
            fastrand::shuffle(&mut holders);
            holders.sort_by_key(|name| (*name != self.name, self.is_avoided(name)));
        }
        holders
    }

    /// Whether this node lists a key, where `without` are out of reach: one of
    /// those that have it does.
    pub(super) fn lists(&self, bucket: &str, key: &str, without: &[String]) -> bool {
        if !self.is_on() {
            return true;
        }
        let mut holders = self.holders(bucket, key);
        holders.find(|name| !without.iter().any(|gone| gone == name)) == Some(&self.name)
    }

    /// How many nodes may be out of reach with every key still in reach.
    pub(super) fn spare(&self) -> usize {
        self.replicas - 1
    }

    /// The cluster as this node sees it; none if no worker answers.
    pub(super) async fn survey(&self) -> Option<serde_json::Value> {
        let (answer, answered) = oneshot::channel();
        match self.leave(Job::Survey(answer)) {
            true => answered.await.ok(),
            false => None,
        }
    }

    pub(super) fn avoid(&self, name: &str) {
        let mut unreachable = locked(&self.unreachable);
        unreachable.insert(name.to_owned(), Instant::now());
    }

    fn is_avoided(&self, name: &str) -> bool {
        let unreachable = locked(&self.unreachable);
        let since = unreachable.get(name);
        since.is_some_and(|since| since.elapsed() < AVOIDED)
    }

    /// A job to mend this is over.
    pub(super) fn mended(&self, fault: &ScrubFault) {
        locked(&self.mending).remove(&whole(&fault.place));
    }

    /// A worker that carries jobs out; whether it is the first.
    pub(super) fn join(&self) -> (mpsc::Receiver<Job>, bool) {
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
        EPOCH
    }

    fn others(&self, bucket: &str, key: &str) -> Option<Vec<String>> {
        let mut holders = self.holders(bucket, key);
        let is_primary = holders.next() == Some(&self.name);
        is_primary.then(|| holders.map(str::to_owned).collect())
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

/// The file that a place is in: it is mended whole.
fn whole(place: &Place) -> Place {
    let mut place = place.clone();
    if let Place::Object { offset, .. } = &mut place {
        *offset = 0;
    }
    place
}

/// Whether every replica may answer.
fn only_reads(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::GetObject { .. }
            | Operation::HeadObject { .. }
            | Operation::GetObjectAttributes { .. }
            | Operation::GetObjectTagging { .. }
    )
}

/// No lock here guards anything a panic could leave half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What precedes the bytes of a change: the length of its description, and that.
pub(super) fn prefix(header: &[u8]) -> io::Result<Vec<u8>> {
    let len = u32::try_from(header.len()).map_err(io::Error::other)?;
    Ok([&len.to_be_bytes(), header].concat())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn replication(name: &str, replicas: u16) -> Replication {
        let names = ["a", "b", "c", "d"].map(|name| name.parse().unwrap());
        let placement = Placement::new(names.to_vec()).unwrap();
        Replication::new(name, placement, replicas)
    }

    #[test]
    fn one_replica_lists_a_key_whoever_is_out_of_reach() {
        let nodes = ["a", "b", "c", "d"].map(|name| replication(name, 3));
        for key in 0..50 {
            let key = key.to_string();
            for without in [vec![], vec!["b".to_owned()], vec!["c".into(), "d".into()]] {
                let list = |node: &&Replication| node.lists("bucket", &key, &without);
                let listing: Vec<_> = nodes.iter().filter(list).map(|n| &n.name).collect();
                assert_eq!(listing.len(), 1, "{key} without {without:?}: {listing:?}");
                assert!(!without.contains(listing[0]));
            }
        }
        assert!(replication("a", 1).lists("bucket", "x", &[]));
    }

    #[test]
    fn a_replica_reads_its_own_and_others_read_where_somebody_is_in_reach() {
        let node = replication("a", 3);
        for key in 0..50 {
            let key = key.to_string();
            let readers = node.readers("bucket", &key);
            assert_eq!(readers.len(), 3);
            if readers.iter().any(|name| name == "a") {
                assert_eq!(readers[0], "a");
            }
            node.avoid("b");
            let readers = node.readers("bucket", &key);
            assert_ne!(readers[0], "b");
        }
        assert_eq!(replication("a", 1).readers("bucket", "x").len(), 1);
    }

    #[test]
    fn only_the_primary_has_others() {
        let nodes = ["a", "b", "c", "d"].map(|name| replication(name, 2));
        for key in 0..20 {
            let key = key.to_string();
            let primaries = nodes.iter().filter_map(|n| n.others("bucket", &key));
            let others: Vec<_> = primaries.collect();
            assert_eq!(others.len(), 1);
            assert_eq!(others[0].len(), 1);
        }
    }

    #[test]
    fn a_change_without_a_worker_is_answered() {
        let node = replication("a", 2);
        let prepare = Prepare {
            epoch: 1,
            stamp: prism_store::Stamp::NONE,
            changes: Vec::new(),
        };
        let answer = node.prepare(&["b".into()], prepare.clone(), Bytes::None);
        assert!(answer.recv().is_err());
        let (jobs, first) = node.join();
        assert!(first && !node.join().1);
        let answer = node.prepare(&["b".into()], prepare, Bytes::None);
        drop(jobs);
        node.workers.lock().unwrap().clear();
        assert!(answer.recv().is_err());
    }
}
