//! The runs of the scrubber: their time, their pace, and their findings.
//!
//! Not here: reading and comparing the store (`prism-store`), and the commands (the admin socket).

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prism_config::seconds;
use prism_store::{Place, ScrubFault, ScrubReport, Store};
use serde_json::{Value, json};

use crate::node::{Node, now_ms};
use crate::pace::Pace;

/// Most faults of a run that its status shows. All faults are counted and logged.
const MAX_SHOWN_FAULTS: usize = 1_000;

/// The runs of one node.
#[derive(Debug, Default)]
pub struct Scrubber {
    state: Mutex<State>,
    changed: Condvar,
}

/// Sums over all runs of a scrubber, the present one included.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubTotals {
    /// Runs that have begun.
    pub runs: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Faults found.
    pub faults: u64,
    /// Repairs: blocks, and objects that were replaced whole.
    pub repaired: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The pace of a run that was asked for and has not begun, in bytes per second; 0 for no
    /// bound.
    wanted: Option<u64>,
    /// The present run, or the last one.
    run: Run,
    is_running: bool,
    ending: bool,
    totals: ScrubTotals,
}

#[derive(Debug, Default)]
struct Run {
    started_ms: u64,
    finished_ms: Option<u64>,
    bytes: u64,
    fault_count: u64,
    faults: Vec<ScrubFault>,
    /// The store's report, if the run has not failed.
    report: ScrubReport,
    error: Option<String>,
}

impl Scrubber {
    /// Scrubs the store whenever that is due or asked for, until [`Scrubber::end`]. Blocks.
    pub fn run(&self, node: &Node, store: &Store) {
        // A run that panicked is over.
        self.state.lock().is_running = false;
        // A new store is due after an interval.
        if store.integrity().last_scrub_ms() == 0
            && let Err(error) = store.integrity().note_scrub(now_ms())
        {
            tracing::warn!(%error, "cannot save the time of the scrub");
        }
        while let Some(rate) = self.wait(node, store) {
            self.scrub_once(store, rate);
        }
    }

    /// Looks again when a run is due, after a change of the configuration.
    pub fn look_again(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Ends the present run and [`Scrubber::run`].
    pub fn end(&self) {
        self.state.lock().ending = true;
        self.changed.notify_all();
    }

    /// Asks for a run of `rate` bytes per second, unless one is running. Returns its number.
    pub fn ask(&self, rate: u64) -> u64 {
        let mut state = self.state.lock();
        if state.is_running {
            return state.totals.runs;
        }
        state.wanted = Some(rate);
        self.changed.notify_all();
        state.totals.runs + 1
    }

    /// The present run, or the last one, as a JSON document.
    pub fn status(&self) -> Value {
        let state = self.state.lock();
        let run = &state.run;
        json!({
            "run": state.totals.runs,
            "running": state.is_running || state.wanted.is_some(),
            "started_ms": run.started_ms,
            "finished_ms": run.finished_ms,
            "complete": run.report.complete,
            "error": run.error,
            "objects": run.report.objects,
            "files": run.report.files,
            "bytes": run.bytes,
            "fault_count": run.fault_count,
            "faults": run.faults.iter().map(shown).collect::<Vec<_>>(),
        })
    }

    /// Counts a repair.
    pub(crate) fn count_repaired(&self) {
        self.state.lock().totals.repaired += 1;
    }

    /// Sums over all runs.
    pub fn totals(&self) -> ScrubTotals {
        self.state.lock().totals
    }

    /// Waits until a run is due, and returns its pace; `None` to end.
    fn wait(&self, node: &Node, store: &Store) -> Option<u64> {
        let mut state = self.state.lock();
        loop {
            if state.ending {
                return None;
            }
            if let Some(rate) = state.wanted {
                return Some(rate);
            }
            let settings = node.core.config.now().store.clone();
            let interval = seconds(settings.scrub_interval_s);
            let due = if interval.is_zero() {
                Duration::MAX
            } else {
                let age = now_ms().saturating_sub(store.integrity().last_scrub_ms());
                interval.saturating_sub(Duration::from_millis(age))
            };
            if due.is_zero() {
                return Some(settings.scrub_bytes_per_s);
            }
            // A change of the clock is noticed within an hour.
            let nap = due.min(Duration::from_secs(3_600));
            self.changed.wait_for(&mut state, nap);
        }
    }

    fn scrub_once(&self, store: &Store, rate: u64) {
        {
            let mut state = self.state.lock();
            state.wanted = None;
            state.is_running = true;
            state.totals.runs += 1;
            state.run = Run {
                started_ms: now_ms(),
                ..Run::default()
            };
        }
        let pace = Pace::new(rate);
        let mut read = |bytes| self.count(bytes, &pace);
        let mut found = |fault: &ScrubFault| {
            tracing::error!(%fault, "scrub found damage");
            let mut state = self.state.lock();
            state.run.fault_count += 1;
            state.totals.faults += 1;
            if state.run.faults.len() < MAX_SHOWN_FAULTS {
                state.run.faults.push(fault.clone());
            }
        };
        let result = store.integrity().scrub(&mut read, &mut found);
        let mut state = self.state.lock();
        match result {
            Ok(report) => state.run.report = report,
            Err(error) => {
                tracing::error!(%error, "the scrub failed");
                state.run.error = Some(error.to_string());
            }
        }
        let run = &mut state.run;
        run.finished_ms = Some(now_ms());
        let bytes = run.bytes;
        let faults = run.fault_count;
        let complete = run.report.complete;
        tracing::info!(bytes, faults, complete, "the scrub has ended");
        if complete && let Err(error) = store.integrity().note_scrub(run.started_ms) {
            tracing::warn!(%error, "cannot save the time of the scrub");
        }
        state.is_running = false;
        if !complete && !state.ending && state.wanted.is_none() {
            // A run that failed is due again at once, so it waits.
            let nap = Duration::from_secs(60);
            self.changed.wait_for(&mut state, nap);
        }
    }

    /// Counts bytes that were read, and waits until they have had their time. Returns whether the
    /// run goes on.
    fn count(&self, bytes: u64, pace: &Pace) -> bool {
        let wait = pace.wait_after(bytes, Instant::now());
        let mut state = self.state.lock();
        self.changed
            .wait_while_for(&mut state, |state| !state.ending, wait);
        state.run.bytes += bytes;
        state.totals.bytes += bytes;
        !state.ending
    }
}

fn shown(fault: &ScrubFault) -> Value {
    let mut shown = match &fault.place {
        Place::Object(at) => json!({
            "bucket": at.bucket,
            "key": at.key,
            "upload": at.upload.map(|id| id.to_string()),
            "part": at.part,
            "offset": at.offset,
        }),
        Place::Store { path, offset } => json!({ "path": path, "offset": offset }),
    };
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("what".into(), fault.what.clone().into());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_no_faster_than_told_and_ends_when_told() {
        let (scrubber, pace) = (Scrubber::default(), Pace::new(1_000_000));
        let begun = Instant::now();
        for _ in 0..10 {
            assert!(scrubber.count(10_000, &pace));
        }
        assert!(begun.elapsed() >= Duration::from_millis(100));
        scrubber.end();
        assert!(!scrubber.count(1_000_000_000, &pace));
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(scrubber.totals().bytes, 1_000_100_000);
    }
}
