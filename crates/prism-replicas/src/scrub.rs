//! When a backend's store is looked through, how fast, and what was found. What
//! looking through means is `prism-store`'s; asking for it, the admin socket's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prism_store::{Place, ScrubFault, Store};
use serde_json::{Value, json};

use crate::{Node, now_ms};

/// Faults of a run that are kept to be shown; all are counted and logged.
const FAULTS_KEPT: usize = 1_000;
/// How long a run sleeps at most before it looks whether it is to end.
const NAP: Duration = Duration::from_millis(50);

/// The runs of one node.
#[derive(Debug, Default)]
pub struct Scrubber {
    state: Mutex<State>,
    changed: Condvar,
    mended: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Asked for, and not begun; bytes per second, 0 for as fast as it goes.
    wanted: Option<u64>,
    /// The present run or the last.
    run: Run,
    is_running: bool,
    ending: bool,
    /// Of all runs that have ended.
    faults: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Run {
    /// From 1 on; 0 before the first.
    number: u64,
    started_ms: u64,
    finished_ms: Option<u64>,
    objects: u64,
    files: u64,
    bytes: u64,
    fault_count: u64,
    faults: VecDeque<ScrubFault>,
    /// It went through to the end.
    complete: bool,
    error: Option<String>,
}

impl Scrubber {
    /// Looks through the store whenever it is due or asked for, until
    /// [`Scrubber::end`].
    pub fn run(&self, node: &Node, store: &Store) {
        let interval = Duration::from_secs(node.config.store.scrub_interval_s.into());
        let background = node.config.store.scrub_bytes_per_s;
        // One that panicked is over.
        self.locked().is_running = false;
        // A new store is due after an interval, not at once.
        if store.integrity().last_scrub_ms() == 0
            && let Err(error) = store.integrity().note_scrub(now_ms())
        {
            tracing::warn!(%error, "the time of the scrub was not noted");
        }
        while let Some(rate) = self.wait(store, interval, background) {
            self.once(store, rate);
        }
    }

    /// Ends the present run and [`Scrubber::run`].
    pub fn end(&self) {
        self.locked().ending = true;
        self.changed.notify_all();
    }

    /// Asks for a run, unless there is one; gives its number.
    pub fn ask(&self, rate: u64) -> u64 {
        let mut state = self.locked();
        if state.is_running {
            return state.run.number;
        }
        state.wanted = Some(rate);
        self.changed.notify_all();
        state.run.number + 1
    }

    /// The present run, or the last.
    pub fn status(&self) -> Value {
        let state = self.locked();
        let run = &state.run;
        json!({
            "run": run.number,
            "running": state.is_running || state.wanted.is_some(),
            "started_ms": run.started_ms,
            "finished_ms": run.finished_ms,
            "complete": run.complete,
            "error": run.error,
            "objects": run.objects,
            "files": run.files,
            "bytes": run.bytes,
            "fault_count": run.fault_count,
            "faults": run.faults.iter().map(shown).collect::<Vec<_>>(),
        })
    }

    /// A damaged block was put right.
    pub fn count_mended(&self) {
        self.mended.fetch_add(1, Ordering::Relaxed);
    }

    /// Blocks that were put right.
    pub fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    /// Runs, bytes and faults so far.
    pub fn totals(&self) -> (u64, u64, u64) {
        let state = self.locked();
        let (bytes, faults) = match state.is_running {
            true => (state.run.bytes, state.run.fault_count),
            false => (0, 0),
        };
        (state.run.number, state.bytes + bytes, state.faults + faults)
    }

    /// Waits until a run is due, and gives its speed; `None` to end.
    fn wait(&self, store: &Store, interval: Duration, background: u64) -> Option<u64> {
        let mut state = self.locked();
        loop {
            if state.ending {
                return None;
            }
            if let Some(rate) = state.wanted {
                return Some(rate);
            }
            let due = match interval.is_zero() {
                true => Duration::MAX,
                false => {
                    let age = now_ms().saturating_sub(store.integrity().last_scrub_ms());
                    interval.saturating_sub(Duration::from_millis(age))
                }
            };
            if due.is_zero() {
                return Some(background);
            }
            // A clock that is set is noticed within the hour.
            let nap = due.min(Duration::from_secs(3_600));
            let woken = self.changed.wait_timeout(state, nap);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn once(&self, store: &Store, rate: u64) {
        {
            let mut state = self.locked();
            state.wanted = None;
            state.is_running = true;
            state.run = Run {
                number: state.run.number + 1,
                started_ms: now_ms(),
                ..Run::default()
            };
        }
        let mut speed = Speed::new(rate);
        let mut pace = |bytes| {
            speed.take(bytes, || self.locked().ending);
            let mut state = self.locked();
            state.run.bytes += bytes;
            !state.ending
        };
        let mut found = |fault: &ScrubFault| {
            tracing::error!(%fault, "scrub found damage");
            let mut state = self.locked();
            state.run.fault_count += 1;
            if state.run.faults.len() < FAULTS_KEPT {
                state.run.faults.push_back(fault.clone());
            }
        };
        let result = store.integrity().scrub(&mut pace, &mut found);
        let mut state = self.locked();
        match result {
            Ok(report) => {
                state.run.objects = report.objects;
                state.run.files = report.files;
                state.run.complete = report.complete;
            }
            Err(error) => {
                tracing::error!(%error, "scrub broken off");
                state.run.error = Some(error.to_string());
            }
        }
        let run = &mut state.run;
        run.finished_ms = Some(now_ms());
        let (bytes, faults) = (run.bytes, run.fault_count);
        tracing::info!(bytes, faults, complete = run.complete, "scrub ended");
        if run.complete
            && let Err(error) = store.integrity().note_scrub(run.started_ms)
        {
            tracing::warn!(%error, "the time of the scrub was not noted");
        }
        state.is_running = false;
        state.bytes += bytes;
        state.faults += faults;
        if !state.run.complete && !state.ending && state.wanted.is_none() {
            // Not at once again, as a run that is due would.
            let nap = self.changed.wait_timeout(state, Duration::from_secs(60));
            drop(nap);
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shown(fault: &ScrubFault) -> Value {
    let mut shown = match &fault.place {
        Place::Object {
            bucket,
            key,
            upload,
            part,
            offset,
        } => json!({
            "bucket": bucket,
            "key": key,
            "upload": upload.map(|id| id.to_string()),
            "part": part,
            "offset": offset,
        }),
        Place::Store { path, offset } => json!({ "path": path, "offset": offset }),
    };
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("what".into(), fault.what.clone().into());
    }
    shown
}

/// Keeps a run below a number of bytes per second.
struct Speed {
    rate: u64,
    begun: Instant,
    bytes: u64,
}

impl Speed {
    fn new(rate: u64) -> Self {
        Self {
            rate,
            begun: Instant::now(),
            bytes: 0,
        }
    }

    /// Sleeps for as long as these bytes may take.
    fn take(&mut self, bytes: u64, mut ending: impl FnMut() -> bool) {
        self.bytes += bytes;
        if self.rate == 0 {
            return;
        }
        let due = Duration::from_secs_f64(self.bytes as f64 / self.rate as f64);
        while !ending() {
            let left = due.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_no_faster_than_told_and_ends_when_told() {
        let mut speed = Speed::new(1_000_000);
        let begun = Instant::now();
        for _ in 0..10 {
            speed.take(10_000, || false);
        }
        assert!(begun.elapsed() >= Duration::from_millis(100));
        speed.take(1_000_000_000, || true);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
