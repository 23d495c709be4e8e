//! What a worker does when nobody waits for it: telling sources that their
//! connections have arrived, closing sockets that were left, preparing new ones.
//! On the way between a request and its answer each of these would cost the client
//! as much as a step of the hand-off.
//!
//! The best time is when a client has just been answered, or takes no more for now.
//! What finds no such time is done a little later, a few at once. (Not after a
//! millisecond: where the kernel has to program its timer for a worker that sleeps,
//! waking it takes five times as long on a virtual machine.)
//!
//! Some chores become less by waiting: verdicts leave with the next hand-off to the same
//! node, if there is one by then. Those are always done a little later.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::Notify;

/// How long a chore waits at most, on a worker that is not overloaded.
const DELAY: Duration = Duration::from_millis(20);
/// Chores done at once: some 50 µs.
const SOME: usize = 6;

/// One worker's chores.
#[derive(Default)]
pub(crate) struct Chores {
    list: RefCell<VecDeque<Chore>>,
    lasting: RefCell<Vec<Chore>>,
    some: Notify,
}

type Chore = Box<dyn FnOnce()>;

impl Chores {
    /// `chore` will be done soon. It may spawn, and must not block.
    pub(crate) fn add(&self, chore: impl FnOnce() + 'static) {
        self.some.notify_one();
        self.list.borrow_mut().push_back(Box::new(chore));
    }

    /// `chore` will be done when it has waited, however good a time comes before: it
    /// may have become needless by then.
    pub(crate) fn add_lasting(&self, chore: impl FnOnce() + 'static) {
        self.some.notify_one();
        self.lasting.borrow_mut().push(Box::new(chore));
    }

    /// Now is a good time.
    pub(crate) fn do_some(&self) {
        for _ in 0..SOME {
            // Not held while it works: it may add another.
            let next = self.list.borrow_mut().pop_front();
            match next {
                Some(chore) => chore(),
                None => return,
            }
        }
    }

    /// Does what is left, until dropped.
    pub(crate) async fn run(&self) {
        loop {
            self.some.notified().await;
            tokio::time::sleep(DELAY).await;
            self.list.borrow_mut().extend(self.lasting.take());
            while !self.list.borrow().is_empty() {
                self.do_some();
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

    fn add(chores: &Chores, done: &Done, numbers: std::ops::Range<usize>) {
        for n in numbers {
            let done = done.clone();
            chores.add(move || done.borrow_mut().push(n));
        }
    }

    #[test]
    fn a_good_time_is_not_made_long() {
        let (chores, done) = (Chores::default(), Done::default());
        add(&chores, &done, 0..SOME + 1);
        assert!(done.borrow().is_empty());
        chores.do_some();
        assert_eq!(done.borrow().len(), SOME);
        chores.do_some();
        chores.do_some();
        assert_eq!(*done.borrow(), Vec::from_iter(0..SOME + 1));
    }

    #[tokio::test]
    async fn what_is_to_last_waits_for_no_good_time() {
        let (chores, done) = (Rc::new(Chores::default()), Done::default());
        let noted = done.clone();
        chores.add_lasting(move || noted.borrow_mut().push(7));
        chores.do_some();
        assert!(done.borrow().is_empty());
        let work = async {
            while done.borrow().is_empty() {
                tokio::time::sleep(DELAY).await;
            }
        };
        tokio::select! {
            () = work => {}
            () = chores.run() => {}
        }
        assert_eq!(*done.borrow(), [7]);
    }

    #[tokio::test]
    async fn what_finds_no_good_time_is_done_all_the_same() {
        let (chores, done) = (Rc::new(Chores::default()), Done::default());
        let work = async {
            for round in 1..3 {
                add(&chores, &done, 0..3 * SOME);
                while done.borrow().len() < round * 3 * SOME {
                    tokio::time::sleep(DELAY).await;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = chores.run() => {}
        }
    }
}
