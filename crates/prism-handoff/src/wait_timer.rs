//! The time limit of waits that follow each other on one connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Stands for "never". Adding it to a time does not overflow.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// A timer for a series of waits. Most waits end long before their deadline. The timer is therefore
/// left as it is between waits, and re-armed only when it fires early.
#[derive(Debug, Default)]
pub(crate) struct WaitTimer(Option<Pin<Box<Sleep>>>);

impl WaitTimer {
    /// Waits for `work`; `TimedOut` if it is not done after `timeout`.
    pub(crate) async fn wait<T>(
        &mut self,
        timeout: Duration,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        self.wait_looking(timeout, LONGEST, |_| Ok(LONGEST), work)
            .await
    }

    /// [`Self::wait`] with looks: `look` is called after `first_look`, and then after the time that
    /// it returned last. Its argument is the start of the wait, and its error ends it.
    pub(crate) async fn wait_looking<T>(
        &mut self,
        timeout: Duration,
        first_look: Duration,
        mut look: impl FnMut(Instant) -> io::Result<Duration>,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let mut work = pin!(work);
        let mut times = None;
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            let (begun, look_at) = times.get_or_insert_with(|| {
                let now = Instant::now();
                (now, now + first_look.min(LONGEST))
            });
            let end = *begun + timeout.min(LONGEST);
            let wake = end.min(*look_at);
            let alarm = self.0.get_or_insert_with(|| Box::pin(sleep_until(wake)));
            if alarm.deadline() > wake {
                alarm.as_mut().reset(wake);
            }
            loop {
                ready!(alarm.as_mut().poll(context));
                let now = Instant::now();
                if now >= end {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                if now >= *look_at {
                    *look_at = now + look(*begun)?.min(LONGEST);
                }
                alarm.as_mut().reset(end.min(*look_at));
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    const UNIT: Duration = Duration::from_millis(10);

    async fn asleep(time: Duration) -> io::Result<()> {
        sleep(time).await;
        Ok(())
    }

    async fn nothing() -> io::Result<()> {
        pending().await
    }

    #[tokio::test]
    async fn each_wait_has_its_own_time_whatever_the_timer_was_set_to() {
        let mut wait_timer = WaitTimer::default();
        for units in [3, 1, 6, 0, 9, 1] {
            let begun = Instant::now();
            let done = wait_timer.wait(units * UNIT, nothing()).await;
            assert_eq!(done.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut));
            assert!(begun.elapsed() >= units * UNIT, "{units}");
        }
        // A timer that is far away does not delay a shorter wait.
        let mut wait_timer = WaitTimer::default();
        let work = asleep(UNIT);
        assert!(wait_timer.wait(Duration::MAX, work).await.is_ok());
        assert!(wait_timer.wait(UNIT, nothing()).await.is_err());
    }

    #[tokio::test]
    async fn a_wait_is_looked_at_as_often_as_was_said_and_ends_when_the_look_says_so() {
        let mut wait_timer = WaitTimer::default();
        let mut looks = 0;
        let look = |_| {
            looks += 1;
            Ok(2 * UNIT)
        };
        let work = asleep(12 * UNIT);
        let done = wait_timer.wait_looking(50 * UNIT, UNIT, look, work).await;
        assert!(done.is_ok());
        assert!((2..=6).contains(&looks), "{looks}");
        let begun = Instant::now();
        let look = |_| Err(io::ErrorKind::BrokenPipe.into());
        let ended = wait_timer.wait_looking(50 * UNIT, UNIT, look, nothing());
        let ended = ended.await.map_err(|e| e.kind());
        assert_eq!(ended, Err(io::ErrorKind::BrokenPipe));
        assert!(begun.elapsed() < 50 * UNIT);
    }

    #[tokio::test]
    async fn waits_that_end_in_time_take_nothing_from_those_behind_them() {
        let mut wait_timer = WaitTimer::default();
        // All together take longer than one may, so the timer fires in between.
        for _ in 0..10 {
            let work = asleep(UNIT);
            assert!(wait_timer.wait(50 * UNIT, work).await.is_ok());
        }
        for _ in 0..4 {
            let work = asleep(20 * UNIT);
            assert!(wait_timer.wait(50 * UNIT, work).await.is_ok());
        }
        let at_once = wait_timer.wait(Duration::ZERO, ready(Ok(7))).await;
        assert_eq!(at_once.ok(), Some(7));
        let begun = Instant::now();
        assert!(wait_timer.wait(5 * UNIT, nothing()).await.is_err());
        assert!(begun.elapsed() >= 5 * UNIT);
    }
}
