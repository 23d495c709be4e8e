//! Commits of small objects, in batches. Objects that arrive during a commit share the next
//! one. At most one blocking thread commits, and it ends when the queue is empty.

use std::sync::Arc;

use parking_lot::Mutex;
use prism_replicas::Node;
use prism_store::{Commit, Committed, Error, Store};
use tokio::sync::oneshot;

use crate::shared::Shared;

/// The objects that wait for a commit: at most one for each connection.
#[derive(Default)]
pub(crate) struct Commits {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// A thread commits, and will commit these objects too.
    has_worker: bool,
}

/// An object, and the way to tell its request the result.
type Waiting = (Commit, oneshot::Sender<Result<Committed, Error>>);

impl Commits {
    /// Adds an object. Returns whether no thread commits, so that the caller has to start one.
    fn add(&self, waiting: Waiting) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push(waiting);
        !std::mem::replace(&mut queue.has_worker, true)
    }

    /// Commits objects until none waits. Blocks on disk.
    fn commit_waiting(&self, store: &Store) {
        let shift = Shift(self);
        while let Some(waiting) = shift.next() {
            let (commits, answers): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
            for (answer, result) in answers.into_iter().zip(store.commit_all(commits)) {
                // The request may have been dropped meanwhile.
                let _ = answer.send(result);
            }
        }
    }
}

/// A thread's turn as the worker. If it panics, the waiting requests fail, and the next one
/// starts another worker.
struct Shift<'c>(&'c Commits);

impl Shift<'_> {
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.0.queue.lock();
        queue.has_worker = !queue.waiting.is_empty();
        queue.has_worker.then(|| std::mem::take(&mut queue.waiting))
    }
}

impl Drop for Shift<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.queue.lock() = Queue::default();
        }
    }
}

impl Shared {
    /// Commits an object that [goes with others](PutWriter::goes_with_others) in a batch.
    ///
    /// [`PutWriter::goes_with_others`]: prism_store::PutWriter::goes_with_others
    pub(crate) async fn commit(
        self: &Arc<Self>,
        node: &Arc<Node>,
        commit: Commit,
    ) -> Result<Committed, Error> {
        let (answer, answered) = oneshot::channel();
        if self.commits.add((commit, answer)) {
            let shared = self.clone();
            let node = node.clone();
            tokio::task::spawn_blocking(move || {
                if let Some(store) = &node.store {
                    shared.commits.commit_waiting(store);
                }
            });
        }
        // There is no answer if the worker panicked.
        answered.await.unwrap_or(Err(Error::WritesDisabled))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_store::{Bucket, Config, ObjectMeta, Proof, Stamp};

    use super::*;

    #[test]
    fn every_waiting_commit_is_answered_and_the_next_one_starts_a_worker() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            reserve_bytes: 0,
            ..Config::default()
        };
        let store = Store::open(dir.path(), config).unwrap();
        let bucket = Bucket::create(None, Stamp::NONE, 0).unwrap();
        store
            .buckets()
            .accept_record("bucket", &bucket, Proof::TRUSTED)
            .unwrap();
        let before = store.mark().commits;
        let commits = Commits::default();
        for round in 0..3 {
            let mut answers = Vec::new();
            for n in 0..10 {
                let mut writer = store.begin_put("bucket", &n.to_string(), Some(1)).unwrap();
                writer.write(&[round]).unwrap();
                // Keys with an odd number exist from the second round on, and fail then.
                let condition = (n % 2 == 1).then(|| -> prism_store::Condition {
                    Box::new(|current: Option<&ObjectMeta>| current.is_none())
                });
                let commit = writer.ready(ObjectMeta::default(), condition).unwrap();
                let (answer, answered) = oneshot::channel();
                assert_eq!(commits.add((commit, answer)), n == 0);
                answers.push(answered);
            }
            commits.commit_waiting(&store);
            for (n, mut answered) in answers.into_iter().enumerate() {
                match answered.try_recv().unwrap() {
                    Ok(committed) => assert_eq!(committed.len, 1),
                    Err(error) => {
                        assert!(n % 2 == 1 && round > 0, "{n}: {error}");
                        assert!(matches!(error, Error::ConditionFailed { exists: true }));
                    }
                }
            }
        }
        let batches = store.mark().commits - before;
        assert!(batches <= 3, "{batches}");
    }
}
