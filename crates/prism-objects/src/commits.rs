//! Commits of small objects: whoever comes while others are committed goes with the
//! next ones. No thread waits for any of them: at most one is at work, as long as
//! there is some.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prism_replicas::Node;
use prism_store::{Commit, Committed, Error, Store};
use tokio::sync::oneshot;

use crate::objects::Shared;

/// What is to be committed, and who asks: no more than there are connections.
#[derive(Default)]
pub(crate) struct Commits {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// A thread sees to what is waiting.
    at_work: bool,
}

struct Waiting {
    commit: Commit,
    answer: oneshot::Sender<Result<Committed, Error>>,
}

impl Commits {
    /// Adds one; says whether nobody is at work.
    fn add(&self, waiting: Waiting) -> bool {
        let mut queue = self.locked();
        queue.waiting.push(waiting);
        !std::mem::replace(&mut queue.at_work, true)
    }

    /// Commits what is waiting until there is nothing left. Blocks.
    fn work(&self, store: &Store) {
        let shift = Shift(self);
        while let Some(waiting) = shift.next() {
            let (commits, answers): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .map(|waiting| (waiting.commit, waiting.answer))
                .unzip();
            for (answer, result) in answers.into_iter().zip(store.commit_all(commits)) {
                // Whoever is gone does not want to know.
                let _ = answer.send(result);
            }
        }
    }

    /// No panic could leave the queue half-changed.
    fn locked(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's turn at work. Should it panic, who is waiting is told so, and the next
/// one that comes begins anew.
struct Shift<'c>(&'c Commits);

impl Shift<'_> {
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.0.locked();
        queue.at_work = !queue.waiting.is_empty();
        queue.at_work.then(|| std::mem::take(&mut queue.waiting))
    }
}

impl Drop for Shift<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.locked() = Queue::default();
        }
    }
}

impl Shared {
    /// Commits an object that [goes with others](PutWriter::goes_with_others)
    /// together with those that come meanwhile.
    ///
    /// [`PutWriter::goes_with_others`]: prism_store::PutWriter::goes_with_others
    pub(crate) async fn commit(
        self: &Arc<Self>,
        node: &Arc<Node>,
        commit: Commit,
    ) -> Result<Committed, Error> {
        let (answer, answered) = oneshot::channel();
        if self.commits.add(Waiting { commit, answer }) {
            let (shared, node) = (self.clone(), node.clone());
            tokio::task::spawn_blocking(move || {
                if let Some(store) = &node.store {
                    shared.commits.work(store);
                }
            });
        }
        // Nobody answers where the thread at work panicked.
        answered.await.unwrap_or(Err(Error::WritesDisabled))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_store::{Config, ObjectMeta};

    use super::*;

    #[test]
    fn each_of_those_that_wait_is_answered_and_the_next_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            reserve_bytes: 0,
            ..Config::default()
        };
        let store = Store::open(dir.path(), config).unwrap();
        store.buckets().create("bucket", 0).unwrap();
        let commits = Commits::default();
        for round in 0..3 {
            let mut answers = Vec::new();
            for n in 0..10 {
                let mut writer = store.begin_put("bucket", &n.to_string(), Some(1)).unwrap();
                writer.write(&[round]).unwrap();
                // Those with an odd number are there from the second round on.
                let condition = (n % 2 == 1).then(|| -> prism_store::Condition {
                    Box::new(|current: Option<&ObjectMeta>| current.is_none())
                });
                let meta = ObjectMeta::default();
                let commit = Commit {
                    writer,
                    meta,
                    condition,
                };
                let (answer, answered) = oneshot::channel();
                assert_eq!(commits.add(Waiting { commit, answer }), n == 0);
                answers.push(answered);
            }
            commits.work(&store);
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
        let stats = store.commit_stats();
        assert!(stats.batches <= 1 + 3, "{stats:?}");
    }
}
