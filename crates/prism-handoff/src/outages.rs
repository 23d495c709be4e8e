//! Whether the switch answers, as one worker sees it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The time without commands after one that was not answered, and the least length of an outage.
const HOLD_OFF_NS: u64 = 500_000_000;
/// The longest time for which a silent switch may mean that this host is cut off.
const CUT_OFF_NS: u64 = 60_000_000_000;

/// The present outage of the switch, and the end of the last one. Times in nanoseconds are of
/// `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    down_until_ns: Cell<u64>,
    /// When the switch fell silent, while it is.
    silent_since_ns: Cell<u64>,
    back_at: Cell<Option<Instant>>,
    has_answered: Cell<bool>,
    /// A command was not answered.
    pub(crate) begun: Notify,
    over: Notify,
}

impl Outages {
    /// Whether the switch counts as in reach.
    pub(crate) fn is_reachable(&self, now_ns: u64) -> bool {
        now_ns >= self.down_until_ns.get()
    }

    /// The last command was not answered. Commands without a client that waits should await
    /// [`Self::over`], which the clock query resolves.
    pub(crate) fn is_silent(&self) -> bool {
        self.down_until_ns.get() != 0
    }

    /// The time for which this host may still count as cut off from everybody, as the switch has
    /// fallen silent. A switch that never answered, or not for long, is just not used.
    pub(crate) fn cut_off_for(&self, now_ns: u64) -> Option<Duration> {
        let since_ns = self.silent_since_ns.get();
        let is_cut_off = self.is_silent() && self.has_answered.get();
        let left_ns = CUT_OFF_NS.checked_sub(now_ns.saturating_sub(since_ns))?;
        is_cut_off.then(|| Duration::from_nanos(left_ns))
    }

    /// Whether an outage has ended since `then`.
    pub(crate) fn has_ended_since(&self, then: Instant) -> bool {
        self.back_at.get().is_some_and(|at| at >= then)
    }

    /// Waits until a silent switch answers.
    pub(crate) async fn over(&self) {
        while self.is_silent() {
            self.over.notified().await;
        }
    }

    /// Notes an answer. Returns whether it ends an outage.
    pub(crate) fn on_answer(&self, now_ns: u64) -> bool {
        let has_answered = self.has_answered.replace(true);
        if self.down_until_ns.replace(0) == 0 {
            return false;
        }
        let silent_ns = now_ns.saturating_sub(self.silent_since_ns.get());
        let was_outage = has_answered && silent_ns >= HOLD_OFF_NS;
        if was_outage {
            self.back_at.set(Some(Instant::now()));
        }
        self.over.notify_waiters();
        was_outage
    }

    /// Notes a command that was not answered.
    pub(crate) fn on_silence(&self, now_ns: u64) {
        let until_ns = now_ns.saturating_add(HOLD_OFF_NS);
        if self.down_until_ns.replace(until_ns) == 0 {
            self.silent_since_ns.set(now_ns);
        }
        self.begun.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_host_is_cut_off_by_a_switch_that_falls_silent_and_for_a_minute_at_most() {
        let outages = Outages::default();
        outages.on_silence(MS);
        assert_eq!(outages.cut_off_for(2 * MS), None);
        assert!(!outages.on_answer(1000 * MS));
        assert_eq!(outages.cut_off_for(1000 * MS), None);
        outages.on_silence(2000 * MS);
        outages.on_silence(2600 * MS);
        let left = outages.cut_off_for(12_000 * MS);
        assert_eq!(left, Some(Duration::from_secs(50)));
        assert_eq!(outages.cut_off_for(62_001 * MS), None);
    }

    #[test]
    fn an_outage_lasts_from_the_first_silence_to_an_answer() {
        let (outages, before) = (Outages::default(), Instant::now());
        assert!(!outages.on_answer(MS) && !outages.is_silent());
        // One command that is not answered is no outage.
        outages.on_silence(10 * MS);
        assert!(outages.is_silent() && !outages.is_reachable(11 * MS));
        assert!(!outages.on_answer(20 * MS) && !outages.has_ended_since(before));
        outages.on_silence(1000 * MS);
        outages.on_silence(1400 * MS);
        assert!(outages.is_reachable(1900 * MS) && outages.is_silent());
        assert!(outages.on_answer(1900 * MS) && outages.has_ended_since(before));
        assert!(!outages.is_silent() && !outages.has_ended_since(Instant::now()));
    }
}
