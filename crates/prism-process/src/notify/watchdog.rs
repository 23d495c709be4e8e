//! The proof that this process is alive: each of its threads beats, and the main loop tells the
//! service manager as long as all of them do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Notifier;

/// The thread that reports, and the threads that have to beat.
pub struct Watchdog {
    /// For the other messages of this process.
    pub notifier: Notifier,
    beats: Vec<(String, Arc<AtomicBool>)>,
    /// After a message that the service ends, threads may end too.
    is_stopping: AtomicBool,
}

/// One thread's part in a [`Watchdog`].
pub struct Beat {
    beaten: Arc<AtomicBool>,
    every: Option<Duration>,
}

impl Watchdog {
    /// A watchdog without threads.
    pub fn new(notifier: Notifier) -> Self {
        Self {
            notifier,
            beats: Vec::new(),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// The part of one more thread. The process counts as alive only while [`Beat::keep`] runs.
    pub fn add(&mut self, thread: &str) -> Beat {
        let beaten = Arc::new(AtomicBool::new(true));
        self.beats.push((thread.to_owned(), beaten.clone()));
        // Twice between two reports.
        let every = self.period().map(|period| period / 2);
        Beat { beaten, every }
    }

    /// The time between two reports, half of the longest time that the service manager allows.
    /// `None` if it wants none.
    pub fn period(&self) -> Option<Duration> {
        self.notifier.limit.map(|limit| limit / 2)
    }

    /// Reports each [`Watchdog::period`]. Never returns.
    pub async fn keep(&self) {
        let Some(period) = self.period() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(period).await;
            self.report();
        }
    }

    /// Tells the service manager that the process is alive, if every thread has beaten since
    /// the last call. Otherwise logs the names of the threads that have not.
    pub fn report(&self) {
        let still = self
            .beats
            .iter()
            .filter(|(_, beaten)| !beaten.swap(false, Ordering::Relaxed));
        let still: Vec<_> = still.map(|(thread, _)| thread.as_str()).collect();
        if still.is_empty() || self.is_stopping.load(Ordering::Relaxed) {
            self.notifier.alive();
        } else {
            tracing::error!(
                threads = ?still,
                "threads stand still; the service manager restarts this process if they stay so"
            );
        }
    }

    /// The service ends; from now on threads may end.
    pub fn stopping(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.notifier.stopping();
    }
}

/// Reports from a loop of a thread, instead of [`Watchdog::keep`].
pub struct Reporter<'a> {
    watchdog: &'a Watchdog,
    last: Instant,
}

impl<'a> Reporter<'a> {
    /// A reporter whose next report is a period away.
    pub fn new(watchdog: &'a Watchdog) -> Self {
        Self {
            watchdog,
            last: Instant::now(),
        }
    }

    /// One turn of the loop. Reports if the last report is a [`Watchdog::period`] old.
    pub fn turn(&mut self) {
        let period = self.watchdog.period();
        if period.is_some_and(|period| self.last.elapsed() >= period) {
            self.last = Instant::now();
            self.watchdog.report();
        }
    }
}

impl Beat {
    /// Beats while this thread runs its tasks. Never returns.
    pub async fn keep(self) {
        let Some(every) = self.every else {
            return std::future::pending().await;
        };
        loop {
            self.beaten.store(true, Ordering::Relaxed);
            tokio::time::sleep(every).await;
        }
    }
}
