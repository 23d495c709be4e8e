//! Wakes the tasks that wait for a next request, when the node stops.
//!
//! There are many such tasks, and each begins to wait after every request. So each has one waker
//! in a place of its own, and no locks are taken.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The waiting tasks of one worker.
#[derive(Default)]
pub(crate) struct Idle(RefCell<Places>);

#[derive(Default)]
struct Places {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl Idle {
    /// Resolves when `stops` has become true and [`Idle::wake`] has been called.
    pub(crate) async fn until(&self, stops: impl Fn() -> bool) {
        let mut place = Place {
            idle: self,
            at: None,
        };
        poll_fn(|context| {
            if stops() {
                return Poll::Ready(());
            }
            place.keep(context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Has all waiting tasks check again.
    pub(crate) fn wake(&self) {
        let places = self.0.borrow();
        let waiting = places.wakers.iter().flatten();
        waiting.for_each(Waker::wake_by_ref);
    }
}

/// The place of one task. It is free again when this is dropped.
struct Place<'i> {
    idle: &'i Idle,
    at: Option<usize>,
}

impl Place<'_> {
    fn keep(&mut self, waker: &Waker) {
        let Places { wakers, free } = &mut *self.idle.0.borrow_mut();
        let at = *self.at.get_or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                wakers.push(None);
                wakers.len() - 1
            })
        });
        if let Some(kept) = wakers.get_mut(at) {
            match kept {
                Some(kept) => kept.clone_from(waker),
                None => *kept = Some(waker.clone()),
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(at) = self.at else {
            return;
        };
        let Places { wakers, free } = &mut *self.idle.0.borrow_mut();
        if let Some(kept) = wakers.get_mut(at) {
            *kept = None;
            free.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_waiting_tasks_are_woken_and_a_task_that_ends_frees_its_place() {
        let (idle, stops) = (Idle::default(), Cell::new(false));
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut first = pin!(idle.until(|| stops.get()));
        let mut poll = |mut future: std::pin::Pin<&mut dyn Future<Output = ()>>| {
            future.as_mut().poll(&mut context).is_ready()
        };
        assert!(!poll(first.as_mut()) && !poll(first.as_mut()));
        for _ in 0..5 {
            let mut other = pin!(idle.until(|| stops.get()));
            assert!(!poll(other.as_mut()));
            assert_eq!(idle.0.borrow().wakers.iter().flatten().count(), 2);
        }
        // Places are used again, and a future that ended before has left its own.
        assert_eq!(idle.0.borrow().wakers.len(), 2);
        assert_eq!(idle.0.borrow().wakers.iter().flatten().count(), 1);
        idle.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(!poll(first.as_mut()));
        stops.set(true);
        assert!(poll(first.as_mut()));
    }
}
