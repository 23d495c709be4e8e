//! A worker fills a switch that has begun a term: it announces all its flows, paced by the answers,
//! and then says that it is done.
//!
//! Sans-IO: the driver starts the commands of [`Announcer::poll`], gives their outcomes to
//! [`Announcer::handle`], and says [`Announcer::poll_done`] on its lease's connection. Before it
//! begins, it silences each target's socket that waits for the switch, and looks whether the
//! target must insist: such a flow is announced too.

use std::collections::VecDeque;

use crate::control::{Answer, FlowKey, FlowState, Status, Term};
use crate::registry::{OwnedFlow, Position, Registry};
use crate::steering::CommandOutcome;

/// The most announcements under way. With answers after 1 ms, 64,000 flows take a second.
pub const MAX_UNDER_WAY: usize = 64;
/// The deadline of one announcement, which is then begun again.
pub const DEADLINE_NS: u64 = 500_000_000;
/// The most flows that wait to be announced again. If there are more, all are.
const MAX_AGAIN: usize = 4096;

/// The outcome of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The switch knows the flow. Commands for it now belong to this term.
    Known,
    /// The flow has another owner, or its client has a new connection. A connection that serves
    /// is to be dropped silently. A hand-off goes on, and learns the owner from its own commands.
    Lost,
    /// A tombstone has a greater epoch, `above`, and no host has the flow. A connection that serves
    /// is held and announced at the epoch after that.
    Outranked {
        /// The epoch of the tombstone.
        above: u64,
    },
    /// The announcement is void: it is made again, or the flow has left this worker.
    Void,
}

#[derive(Debug, Default)]
enum Phase {
    /// No term, or one that is settled.
    #[default]
    Quiet,
    /// The flows up to `after` are announced.
    Walking { after: Option<Position> },
    /// All were announced at least once.
    Walked { said: bool },
}

/// The announcements of one worker.
#[derive(Debug, Default)]
pub struct Announcer {
    term: Term,
    phase: Phase,
    under_way: usize,
    again: VecDeque<FlowKey>,
}

impl Announcer {
    /// The term that is announced to.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// The switch has begun `term`. Announcements to a former term become void. Returns whether it
    /// is a new one.
    pub fn begin(&mut self, term: Term) -> bool {
        if term <= self.term {
            return false;
        }
        *self = Self {
            term,
            phase: Phase::Walking { after: None },
            ..Self::default()
        };
        true
    }

    /// The switch knows all flows. The switch ends flows that nobody has announced by then.
    pub fn settle(&mut self, term: Term) {
        if term == self.term {
            self.phase = Phase::Quiet;
            self.again.clear();
        }
    }

    /// Whether the switch does not know all flows yet, so that no hand-off should begin.
    #[must_use]
    pub fn is_young(&self) -> bool {
        !matches!(self.phase, Phase::Quiet)
    }

    /// A flow has changed without a confirmation of the switch.
    pub fn touch(&mut self, flow: FlowKey) {
        if !self.is_young() {
            return;
        }
        if self.again.len() >= MAX_AGAIN {
            self.again.clear();
            self.phase = Phase::Walking { after: None };
            return;
        }
        self.again.push_back(flow);
    }

    /// The next flow to announce.
    pub fn poll(&mut self, registry: &Registry) -> Option<OwnedFlow> {
        if self.under_way >= MAX_UNDER_WAY || !self.is_young() {
            return None;
        }
        let next = self.next_again(registry).or_else(|| self.walk(registry))?;
        self.under_way += 1;
        Some(next)
    }

    /// Handles the outcome of an announcement of `sent` to `term`.
    pub fn handle(
        &mut self,
        term: Term,
        sent: &OwnedFlow,
        outcome: CommandOutcome,
        registry: &mut Registry,
    ) -> Announced {
        if term != self.term {
            return Announced::Void;
        }
        self.under_way = self.under_way.saturating_sub(1);
        let held = registry.get(&sent.flow);
        let is_present = held.is_some_and(|held| held.epoch == sent.epoch);
        match outcome {
            CommandOutcome::Unanswered => self.touch(sent.flow),
            CommandOutcome::Answered(answer) if answer.status == Status::Ok => {
                registry.confirm(&sent.flow, sent.epoch, term);
                return Announced::Known;
            }
            CommandOutcome::Answered(answer) if is_present && is_elsewhere(&answer, sent) => {
                return Announced::Lost;
            }
            CommandOutcome::Answered(answer) if is_present && answer.status == Status::Stale => {
                return match answer.state {
                    FlowState::Absent => Announced::Outranked {
                        above: answer.epoch,
                    },
                    _ => Announced::Void,
                };
            }
            CommandOutcome::Answered(_) => {}
        }
        Announced::Void
    }

    /// All flows are announced: to be said once for each connection of the lease.
    pub fn poll_done(&mut self) -> Option<Term> {
        let is_done = self.is_done();
        match &mut self.phase {
            Phase::Walked { said } if is_done && !*said => {
                *said = true;
                Some(self.term)
            }
            _ => None,
        }
    }

    /// Whether all flows are announced.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_idle = self.under_way == 0 && self.again.is_empty();
        is_idle && matches!(self.phase, Phase::Walked { .. })
    }

    /// The lease has a new connection, on which it is said again.
    pub fn on_new_lease(&mut self) {
        if let Phase::Walked { said } = &mut self.phase {
            *said = false;
        }
    }

    fn next_again(&mut self, registry: &Registry) -> Option<OwnedFlow> {
        while let Some(flow) = self.again.pop_front() {
            if let Some(owned) = registry.get(&flow) {
                return Some(owned);
            }
        }
        None
    }

    fn walk(&mut self, registry: &Registry) -> Option<OwnedFlow> {
        let Phase::Walking { after } = &mut self.phase else {
            return None;
        };
        match registry.next(*after) {
            Some((position, owned)) => {
                *after = Some(position);
                Some(owned)
            }
            None => {
                self.phase = Phase::Walked { said: false };
                None
            }
        }
    }
}

/// Whether the connection is over here: another worker has the flow, or the term was settled
/// without it. If the switch has the flow of this worker, at whatever epoch, it is not. One that
/// the switch never confirmed can still be claimed.
fn is_elsewhere(answer: &Answer, sent: &OwnedFlow) -> bool {
    let is_absent = answer.state == FlowState::Absent;
    match answer.status {
        Status::Stale => !is_absent && answer.owner != sent.owner,
        Status::OldTerm if is_absent => sent.is_confirmed,
        Status::OldTerm => answer.owner != sent.owner,
        _ => false,
    }
}

#[cfg(test)]
#[path = "announce_tests.rs"]
mod tests;
