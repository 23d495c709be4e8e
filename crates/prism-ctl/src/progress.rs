//! The progress of long work on standard error: a line that changes on a terminal, else plain
//! lines at a bounded rate.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use prism_process::printable;

use crate::table::age;

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// A rate is that of this last time, so that it follows a change and does not jump.
const WINDOW: Duration = Duration::from_secs(10);
/// Most samples: one for each 200 ms of the window.
const MAX_SAMPLES: usize = 50;

/// The line of progress.
pub(crate) struct Progress {
    is_terminal: bool,
    last: Option<(Instant, String)>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            last: None,
        }
    }

    /// Shows the progress. `phase` is the part whose change is worth a line of its own.
    pub(crate) fn show(&mut self, phase: &str, details: &str) {
        let mut err = std::io::stderr().lock();
        let (phase, text) = (printable(phase), printable(&format!("{phase}{details}")));
        // A closed standard error is no reason to stop the work.
        if self.is_terminal {
            let _ = write!(err, "\r\x1b[K{text}");
            let _ = err.flush();
            self.last = Some((Instant::now(), phase));
            return;
        }
        let is_due = self
            .last
            .as_ref()
            .is_none_or(|(at, last)| *last != phase || at.elapsed() >= LINE_EVERY);
        if is_due {
            let _ = writeln!(err, "{text}");
            self.last = Some((Instant::now(), phase));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal && self.last.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The rate of work, and the time that is left.
#[derive(Default)]
pub(crate) struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    /// Notes that `done` units are done. A smaller number begins anew.
    pub(crate) fn note(&mut self, now: Instant, done: u64) {
        if self.0.back().is_some_and(|(_, last)| *last > done) {
            self.0.clear();
        }
        let is_old = |(at, _): &(Instant, u64)| now.duration_since(*at) > WINDOW;
        while self.0.front().is_some_and(is_old) || self.0.len() >= MAX_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back((now, done));
    }

    /// Units in a second; `None` if they are not known yet.
    pub(crate) fn rate(&self) -> Option<f64> {
        let first = self.0.front()?;
        let last = self.0.back()?;
        let passed_s = last.0.duration_since(first.0).as_secs_f64();
        (passed_s > 0.0).then(|| last.1.saturating_sub(first.1) as f64 / passed_s)
    }

    /// The time until `all` units are done, as in ", 3 min 20 s left"; empty if it is not known.
    pub(crate) fn left(&self, all: u64) -> String {
        let done = self.0.back().map_or(0, |(_, done)| *done);
        let rate = self.rate().filter(|rate| *rate > 0.0);
        match (rate, all.checked_sub(done)) {
            (Some(rate), Some(left)) => format!(", {} left", age((left as f64 / rate) as u64)),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_rate_of_the_last_seconds() {
        let (begun, mut pace) = (Instant::now(), Pace::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        pace.note(at(0), 0);
        assert_eq!((pace.rate(), pace.left(10).as_str()), (None, ""));
        for second in 1..=20 {
            pace.note(at(second), second * 5);
        }
        assert_eq!(pace.left(400), ", 1 min 0 s left");
        // Ten times as fast; the slow time leaves the window.
        for second in 21..=31 {
            pace.note(at(second), 100 + (second - 20) * 50);
        }
        assert_eq!(pace.rate(), Some(50.0));
        // A new try counts from its own beginning.
        pace.note(at(32), 0);
        assert_eq!(pace.rate(), None);
        assert!(pace.0.len() <= MAX_SAMPLES);
    }
}
