//! Work of a worker that no client waits for: sending verdicts, closing sockets that were left
//! behind, preparing new ones. The best time is when a client has just been answered, or takes no
//! more bytes for now. Work that finds no such time is done 20 ms later, a few pieces at once. (A
//! delay of 1 ms costs more: on a virtual machine, waking a sleeping worker by its timer takes five
//! times as long.)
//!
//! Batched work becomes less by waiting: a verdict leaves with the next hand-off to the same node.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::Notify;

/// The longest delay of a piece of work, on a worker that is not overloaded.
const DELAY: Duration = Duration::from_millis(20);
/// Pieces of work that are done at once: some 50 µs.
const AT_ONCE: usize = 6;

/// One worker's deferred work.
#[derive(Default)]
pub(crate) struct DeferredWork {
    list: RefCell<VecDeque<Work>>,
    batched: RefCell<Vec<Work>>,
    added: Notify,
}

type Work = Box<dyn FnOnce()>;

impl DeferredWork {
    /// Adds `work`, which may spawn and must not block.
    pub(crate) fn add(&self, work: impl FnOnce() + 'static) {
        self.added.notify_one();
        self.list.borrow_mut().push_back(Box::new(work));
    }

    /// Adds `work` that waits the whole delay, because it may become needless meanwhile.
    pub(crate) fn add_batched(&self, work: impl FnOnce() + 'static) {
        self.added.notify_one();
        self.batched.borrow_mut().push(Box::new(work));
    }

    /// Does some of the work, at a time when no client waits.
    pub(crate) fn run_some(&self) {
        for _ in 0..AT_ONCE {
            // The list is free while the work runs, which may add more.
            let next = self.list.borrow_mut().pop_front();
            match next {
                Some(work) => work(),
                None => return,
            }
        }
    }

    /// Does all of the work. At a worker's end it would refer to the worker, and never be freed.
    pub(crate) fn finish(&self) {
        self.list.borrow_mut().extend(self.batched.take());
        while !self.list.borrow().is_empty() {
            self.run_some();
        }
    }

    /// Does the work that found no better time, until dropped.
    pub(crate) async fn run(&self) {
        loop {
            self.added.notified().await;
            tokio::time::sleep(DELAY).await;
            self.list.borrow_mut().extend(self.batched.take());
            while !self.list.borrow().is_empty() {
                self.run_some();
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::rc::Rc;

    use super::*;

    type Done = Rc<RefCell<Vec<usize>>>;

    fn add(deferred: &DeferredWork, done: &Done, numbers: std::ops::Range<usize>) {
        for n in numbers {
            let done = done.clone();
            deferred.add(move || done.borrow_mut().push(n));
        }
    }

    #[test]
    fn only_some_work_is_done_at_once() {
        let (deferred, done) = (DeferredWork::default(), Done::default());
        add(&deferred, &done, 0..AT_ONCE + 1);
        assert!(done.borrow().is_empty());
        deferred.run_some();
        assert_eq!(done.borrow().len(), AT_ONCE);
        deferred.run_some();
        deferred.run_some();
        assert_eq!(*done.borrow(), Vec::from_iter(0..AT_ONCE + 1));
    }

    #[tokio::test]
    async fn batched_work_waits_the_whole_delay() {
        let (deferred, done) = (Rc::new(DeferredWork::default()), Done::default());
        let noted = done.clone();
        deferred.add_batched(move || noted.borrow_mut().push(7));
        deferred.run_some();
        assert!(done.borrow().is_empty());
        let work = async {
            while done.borrow().is_empty() {
                tokio::time::sleep(DELAY).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = deferred.run() => {}
        }
        assert_eq!(*done.borrow(), [7]);
    }

    #[tokio::test]
    async fn work_that_finds_no_better_time_is_done_later() {
        let (deferred, done) = (Rc::new(DeferredWork::default()), Done::default());
        let work = async {
            for round in 1..3 {
                add(&deferred, &done, 0..3 * AT_ONCE);
                while done.borrow().len() < round * 3 * AT_ONCE {
                    tokio::time::sleep(DELAY).await;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = deferred.run() => {}
        }
    }
}
