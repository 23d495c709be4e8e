//! The estimate of the switch's clock.

use crate::control::{Answer, Status};

/// A lower bound of the switch's clock minus our monotonic clock: the answer's time on the way is
/// missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockOffset {
    pub(super) offset_ns: i128,
    pub(super) at_ns: u64,
}

impl ClockOffset {
    /// Whether the first copy of the request was from the switch's future: its clock has been set
    /// back.
    pub(super) fn is_ahead(self, answer: &Answer, started_ns: u64) -> bool {
        let stamp = i128::from(started_ns) + self.offset_ns;
        answer.status == Status::Late && stamp > i128::from(answer.time_ns)
    }

    /// The better of two estimates. The answer with the shortest way says most, so the estimate
    /// does not go back for a slow one. But clocks drift apart, by up to 500 parts in a million
    /// (RFC 5905), so an old answer counts less.
    pub(super) fn refined(self, heard: Self) -> Self {
        let age_ns = heard.at_ns.saturating_sub(self.at_ns);
        let aged = self.offset_ns - i128::from(age_ns / 2000);
        Self {
            offset_ns: aged.max(heard.offset_ns),
            ..heard
        }
    }
}
