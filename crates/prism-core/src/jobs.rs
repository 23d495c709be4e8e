//! Jobs that the workers of a node do in turn. A stream to another node belongs to a worker, so
//! that other threads submit what needs one.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Jobs that wait for one worker.
pub const JOBS_MAX: usize = 1024;

/// Work for a worker: starts a task on its thread, whose state is `W`.
pub type Work<W> = Box<dyn FnOnce(Rc<W>) + Send>;

/// The queues of the workers.
#[derive(Debug)]
pub struct Jobs<J> {
    workers: Mutex<Vec<mpsc::Sender<J>>>,
    /// The worker of the next job.
    next: AtomicUsize,
}

impl<J> Default for Jobs<J> {
    fn default() -> Self {
        Self {
            workers: Mutex::default(),
            next: AtomicUsize::new(0),
        }
    }
}

impl<J> Jobs<J> {
    /// Adds a worker. Returns its queue, and whether it is the first.
    pub fn add_worker(&self) -> (mpsc::Receiver<J>, bool) {
        let (sender, receiver) = mpsc::channel(JOBS_MAX);
        let mut workers = self.workers.lock();
        workers.push(sender);
        (receiver, workers.len() == 1)
    }

    /// Gives a job to the workers in turn. False: all queues are full, and the job is dropped.
    pub fn submit(&self, mut job: J) -> bool {
        let workers = self.workers.lock();
        let first = self.next.fetch_add(1, Ordering::Relaxed) % workers.len().max(1);
        let (before, after) = workers.split_at(first);
        for worker in after.iter().chain(before) {
            match worker.try_send(job) {
                Ok(()) => return true,
                Err(TrySendError::Full(back) | TrySendError::Closed(back)) => job = back,
            }
        }
        false
    }
}

impl<W: 'static> Jobs<Work<W>> {
    /// Has a worker do `work` as a task of its own. False: all queues are full, and the work is
    /// dropped.
    pub fn run(&self, work: impl AsyncFnOnce(&W) + Send + 'static) -> bool {
        self.submit(Box::new(|worker| {
            tokio::task::spawn_local(async move { work(&worker).await });
        }))
    }
}

/// Starts the work of a worker's queue, until the worker ends.
pub async fn run_work<W>(worker: &Rc<W>, queue: &mut mpsc::Receiver<Work<W>>) {
    while let Some(work) = queue.recv().await {
        work(worker.clone());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn workers_get_jobs_in_turn_and_a_full_queue_is_passed_over() {
        let jobs = Jobs::default();
        assert!(!jobs.submit(0), "no worker takes it");
        let (mut first, is_first) = jobs.add_worker();
        let (mut second, is_second) = jobs.add_worker();
        assert!(is_first && !is_second);
        assert!(jobs.submit(1) && jobs.submit(2));
        let mut taken = [first.try_recv().unwrap(), second.try_recv().unwrap()];
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        drop(second);
        for job in 0..JOBS_MAX {
            assert!(jobs.submit(job));
        }
        assert!(!jobs.submit(0), "the only queue is full");
    }
}
