//! How long connections wait for bytes while a switch fails.

use std::fmt;
use std::time::{Duration, Instant};

use crate::support::client::Wait;

/// A failure of a switch.
pub struct Outage {
    /// Which switch failed, and how.
    pub what: String,
    pub begun: Instant,
    /// When the other switch had the addresses, or this one its links.
    pub replaced: Instant,
    /// When all connections had gone on.
    pub over: Instant,
}

impl Outage {
    /// The longest wait of each connection that ended in this outage, in order.
    fn pauses(&self, waits: &[Vec<Wait>]) -> Vec<Duration> {
        let longest = |waits: &Vec<Wait>| {
            let here = waits.iter().filter(|w| self.has(w)).map(|w| w.took);
            here.max().unwrap_or_default()
        };
        let mut pauses: Vec<_> = waits.iter().map(longest).collect();
        pauses.sort_unstable();
        pauses
    }

    fn has(&self, wait: &Wait) -> bool {
        (self.begun..=self.over).contains(&wait.until)
    }

    /// One line: the pauses of the connections, from the begin of the outage.
    pub fn describe(&self, waits: &[Vec<Wait>]) -> String {
        let pauses = self.pauses(waits);
        let replaced = self.replaced - self.begun;
        let most = pauses.last().copied().unwrap_or_default();
        format!(
            "{}: replaced after {replaced:.2?}; pauses {}; the longest {:.2?} beyond",
            self.what,
            Spread(&pauses),
            most.saturating_sub(replaced)
        )
    }
}

/// The middle of all pauses, and the longest ones.
struct Spread<'p>(&'p [Duration]);

impl fmt::Display for Spread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.len().saturating_sub(1);
        let at = |percent| {
            self.0
                .get(last * percent / 100)
                .copied()
                .unwrap_or_default()
        };
        let (half, most) = (at(50), at(100));
        write!(
            f,
            "50 % {half:.2?}, 90 % {:.2?}, 99 % {:.2?}, all {most:.2?}",
            at(90),
            at(99)
        )
    }
}
