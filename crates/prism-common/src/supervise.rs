//! Tasks that last as long as their worker: after an error or a panic such a task begins again,
//! with a pause, a warning and a count.
//!
//! Not here: tasks of one connection or one hand-off, which end with it.

use std::any::Any;
use std::fmt::Display;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use std::task::Poll;
use std::time::{Duration, Instant};

use crate::counter::TASKS_RESTARTED;

/// The pause before the first restart, well within the grace of a lease (500 ms), whose task is one
/// of these.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause; each pause doubles. A task that has run for as long counts as healthy again.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// How a supervised task may end.
pub trait Ending {
    /// The error after which it begins again; `None` if it has ended in order.
    fn fault(self) -> Option<String>;
}

impl Ending for () {
    fn fault(self) -> Option<String> {
        None
    }
}

impl<E: Display> Ending for Result<(), E> {
    fn fault(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

/// Runs `work` until it ends in order. After an error or a panic it begins again.
pub async fn supervise<E: Ending>(task: &'static str, mut work: impl AsyncFnMut() -> E) {
    let mut pauses = Pauses::default();
    loop {
        let begun = Instant::now();
        let ended = caught(work()).await;
        match pauses.after(task, ended.map(Ending::fault), begun.elapsed()) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return,
        }
    }
}

/// Spawns `work` as a supervised task of this thread's `LocalSet`.
pub fn keep<E: Ending + 'static>(task: &'static str, work: impl AsyncFnMut() -> E + 'static) {
    tokio::task::spawn_local(supervise(task, work));
}

/// [`supervise`] for a thread.
pub fn supervise_thread<E: Ending>(task: &'static str, mut work: impl FnMut() -> E) {
    let mut pauses = Pauses::default();
    loop {
        let begun = Instant::now();
        let ended = caught_once(&mut work);
        match pauses.after(task, ended.map(Ending::fault), begun.elapsed()) {
            Some(pause) => std::thread::sleep(pause),
            None => return,
        }
    }
}

/// The pauses before the restarts of one task.
#[derive(Default)]
struct Pauses {
    last: Option<Duration>,
}

impl Pauses {
    /// The pause before the next start of a task that has ended after `ran`; `None` if it has ended
    /// in order.
    fn after(
        &mut self,
        task: &'static str,
        ended: Result<Option<String>, String>,
        ran: Duration,
    ) -> Option<Duration> {
        let (Ok(Some(fault)) | Err(fault)) = ended else {
            return None;
        };
        let last = self.last.filter(|_| ran < MAX_PAUSE);
        let pause = last.map_or(FIRST_PAUSE, |last| MAX_PAUSE.min(last * 2));
        self.last = Some(pause);
        TASKS_RESTARTED.add_one();
        tracing::warn!(task, %fault, ?pause, "a task has failed and begins again");
        Some(pause)
    }
}

/// The result of `work`, or the message of its panic.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|cx| match caught_once(|| work.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// The result of `work`, or the message of its panic, after which it is not called again. Tasks
/// borrow the cells that they share for one call only, so all are whole.
fn caught_once<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| said(&*panic))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("without a message"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use std::io;

    use super::*;

    fn fails(nth: u32) -> io::Result<()> {
        match nth {
            1 => Err(io::Error::other("no descriptors left")),
            2 => panic!("an index"),
            _ => Ok(()),
        }
    }

    #[tokio::test]
    async fn a_task_that_fails_or_panics_begins_again_until_it_ends_in_order() {
        let (before, mut begun) = (TASKS_RESTARTED.read(), 0);
        supervise("test", async || {
            begun += 1;
            tokio::task::yield_now().await;
            fails(begun)
        })
        .await;
        assert_eq!(begun, 3);
        assert!(TASKS_RESTARTED.read() >= before + 2);
    }

    #[test]
    fn the_work_of_a_thread_that_fails_or_panics_begins_again() {
        let mut begun = 0;
        supervise_thread("test", || {
            begun += 1;
            fails(begun)
        });
        assert_eq!(begun, 3);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_shrink_when_the_task_has_run_for_long() {
        let mut pauses = Pauses::default();
        let mut after = |ran| pauses.after("test", Err("again".into()), ran);
        let short: Vec<_> = (0..9).map(|_| after(Duration::ZERO)).collect();
        assert_eq!(short.first(), Some(&Some(FIRST_PAUSE)));
        assert_eq!(short.get(1), Some(&Some(2 * FIRST_PAUSE)));
        assert_eq!(short.last(), Some(&Some(MAX_PAUSE)));
        assert_eq!(after(MAX_PAUSE), Some(FIRST_PAUSE));
    }
}
