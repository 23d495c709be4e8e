//! A worker copies its flows to the standby of a pair of switches, so that the packets of most
//! flows go on as soon as the standby takes over. Announcing ([`crate::announce`]) covers the rest.
//!
//! A copy is an announcement to the own address of one host of the pair. A standby takes it as a
//! hint. An arbiter compares it only, and is left alone then: its answer has the present term. A
//! pass over all flows follows each silence of the standby, and is repeated in case it has lost its
//! table.
//!
//! Sans-IO: the driver starts the commands of [`Copier::poll`], and gives their outcomes to
//! [`Copier::handle`]. `now_ns` is the caller's monotonic clock. The driver copies only what the
//! host of the worker can freeze (docs/design/terms.md).

use std::collections::BTreeMap;

use crate::control::{FlowKey, FlowState, Ops, Owner, Status, Term};
use crate::registry::{OwnedFlow, Position, Registry};
use crate::steering::{Command, CommandOutcome};

/// The most copies under way to one host.
pub const MAX_UNDER_WAY: usize = 64;
/// The deadline of one copy.
pub const DEADLINE_NS: u64 = 500_000_000;
/// The time from the start of a pass over all flows to that of the next.
pub const PASS_NS: u64 = 60_000_000_000;
/// A standby forgets a flow that was not copied for this time: three passes.
pub const KEPT_NS: u64 = 3 * PASS_NS;
/// The wait before a silent host, or one in a new term, is tried again.
const RETRY_NS: u64 = 1_000_000_000;
/// The time for one flow of a pass, so that hand-offs find the worker idle: 32,000 a second.
const STEP_NS: u64 = 31_250;
/// A pass that has fallen behind catches up with this many steps.
const MAX_STEPS_BEHIND: u64 = MAX_UNDER_WAY as u64;
/// The most changed flows that wait. If there are more, a pass follows.
const MAX_CHANGED: usize = 16_384;

/// A copy to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// An announcement.
    pub command: Command,
    /// The host was not known to have this state.
    is_news: bool,
}

/// The host that copies go to.
#[derive(Debug)]
enum Host {
    /// It was silent, or the term is new: one copy at this time finds out.
    Unknown { ask_ns: u64 },
    /// It decides in the present term.
    Arbiter,
    /// It takes copies.
    Standby,
}

/// A pass over the registry.
#[derive(Debug)]
enum Pass {
    /// The next one begins at this time.
    Waits { until_ns: u64 },
    /// The flows up to `after` are copied.
    Walks {
        begun_ns: u64,
        after: Option<Position>,
        step_ns: u64,
    },
}

/// The copies of one worker's flows to one host.
#[derive(Debug)]
pub struct Copier {
    term: Term,
    host: Host,
    /// Changed flows; with the epoch of the release of one that has ended.
    changed: BTreeMap<FlowKey, Option<u64>>,
    pass: Pass,
    /// Flows that the first pass has seen; `None` after it.
    walked: Option<usize>,
    under_way: usize,
    news_under_way: usize,
    /// Copies that the host has refused since the last pass began.
    refused: usize,
}

impl Default for Copier {
    fn default() -> Self {
        Self {
            term: Term::NONE,
            host: Host::Unknown { ask_ns: 0 },
            changed: BTreeMap::new(),
            pass: Pass::Waits { until_ns: 0 },
            walked: Some(0),
            under_way: 0,
            news_under_way: 0,
            refused: 0,
        }
    }
}

impl Copier {
    /// The registry has a new state of `flow`.
    pub fn touch(&mut self, flow: FlowKey) {
        self.change(flow, None);
    }

    /// The flow has ended, and was released at `epoch`.
    pub fn release(&mut self, flow: FlowKey, epoch: u64) {
        self.change(flow, Some(epoch));
    }

    /// The next copy. `term` is the present term of the switch that decides.
    pub fn poll(&mut self, registry: &Registry, term: Term, now_ns: u64) -> Option<Copy> {
        if term != self.term {
            self.term = term;
            self.lose(now_ns);
        }
        let copy = match self.host {
            Host::Unknown { ask_ns } if self.under_way == 0 && ask_ns <= now_ns => {
                let first = next_confirmed(registry, None);
                if first.is_none() {
                    self.lose(now_ns);
                }
                Copy::of(&first?.1, false)
            }
            Host::Standby if self.under_way < MAX_UNDER_WAY => self
                .next_changed(registry)
                .or_else(|| self.walk(registry, now_ns))?,
            _ => return None,
        };
        self.under_way += 1;
        self.news_under_way += usize::from(copy.is_news);
        Some(copy)
    }

    /// Handles the outcome of `sent`. `heard` is the term of the host.
    pub fn handle(&mut self, sent: &Copy, heard: Term, outcome: CommandOutcome, now_ns: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        let news = usize::from(sent.is_news);
        self.news_under_way = self.news_under_way.saturating_sub(news);
        let CommandOutcome::Answered(answer) = outcome else {
            return self.lose(now_ns);
        };
        if heard == self.term {
            self.lose(now_ns);
            self.host = Host::Arbiter;
            return;
        }
        let is_absent = answer.state == FlowState::Absent && sent.command.ops.has(Ops::OWN);
        match answer.status {
            Status::Ok => {}
            // It has a later state, or the tombstone of a flow that was not copied for long.
            Status::Stale if !is_absent => {}
            // It decides, in another term than this worker has heard of.
            Status::OldTerm => return self.lose(now_ns),
            _ => self.refused += 1,
        }
        if matches!(self.host, Host::Unknown { .. }) {
            self.host = Host::Standby;
            self.begin_pass(now_ns);
        }
    }

    /// Whether this host takes copies.
    #[must_use]
    pub fn has_standby(&self) -> bool {
        matches!(self.host, Host::Standby)
    }

    /// The flows of `registry` whose state this host is not known to have.
    #[must_use]
    pub fn lag(&self, registry: &Registry) -> usize {
        if !self.has_standby() {
            return registry.len();
        }
        let ahead = self.walked.map(|n| registry.len().saturating_sub(n));
        self.changed.len() + self.news_under_way + self.refused + ahead.unwrap_or(0)
    }

    /// The time when [`Self::poll`] may have a copy though nothing has changed.
    #[must_use]
    pub fn next_timeout_ns(&self) -> Option<u64> {
        match (&self.host, &self.pass) {
            (Host::Unknown { ask_ns }, _) if self.under_way == 0 => Some(*ask_ns),
            (Host::Standby, _) if self.under_way >= MAX_UNDER_WAY => None,
            (Host::Standby, Pass::Waits { until_ns }) => Some(*until_ns),
            (Host::Standby, Pass::Walks { step_ns, .. }) => Some(*step_ns),
            _ => None,
        }
    }

    fn change(&mut self, flow: FlowKey, released: Option<u64>) {
        if !self.has_standby() {
            return;
        }
        if self.changed.len() >= MAX_CHANGED {
            self.begin_pass(0);
        }
        self.changed.insert(flow, released);
    }

    /// The host is to be found again, and lacks any flow until then.
    fn lose(&mut self, now_ns: u64) {
        let ask_ns = now_ns.saturating_add(RETRY_NS);
        self.host = Host::Unknown { ask_ns };
        self.changed.clear();
    }

    /// Begins a pass that is to tell the host all flows.
    fn begin_pass(&mut self, now_ns: u64) {
        self.changed.clear();
        self.pass = Pass::Waits { until_ns: now_ns };
        self.walked = Some(0);
    }

    fn next_changed(&mut self, registry: &Registry) -> Option<Copy> {
        while let Some((flow, released)) = self.changed.pop_first() {
            let owned = registry.get(&flow).filter(|owned| owned.is_confirmed);
            match (owned, released) {
                (Some(owned), _) => return Some(Copy::of(&owned, true)),
                (None, Some(epoch)) => return Some(Copy::of_release(flow, epoch)),
                // It has moved, and its owner copies it.
                (None, None) => {}
            }
        }
        None
    }

    fn walk(&mut self, registry: &Registry, now_ns: u64) -> Option<Copy> {
        if let Pass::Waits { until_ns } = self.pass
            && until_ns <= now_ns
        {
            self.refused = 0;
            self.pass = Pass::Walks {
                begun_ns: now_ns,
                after: None,
                step_ns: now_ns,
            };
        }
        let Pass::Walks {
            begun_ns,
            after,
            step_ns,
        } = &mut self.pass
        else {
            return None;
        };
        if *step_ns > now_ns {
            return None;
        }
        let behind_ns = MAX_STEPS_BEHIND * STEP_NS;
        *step_ns = (*step_ns).max(now_ns.saturating_sub(behind_ns)) + STEP_NS;
        let Some((position, owned)) = next_confirmed(registry, *after) else {
            let until_ns = begun_ns.saturating_add(PASS_NS);
            self.pass = Pass::Waits { until_ns };
            self.walked = None;
            return None;
        };
        *after = Some(position);
        let is_first = self.walked.is_some();
        self.walked = self.walked.map(|n| n + 1);
        Some(Copy::of(&owned, is_first))
    }
}

impl Copy {
    fn of(owned: &OwnedFlow, is_news: bool) -> Self {
        let command = owned.announcement();
        Self { command, is_news }
    }

    fn of_release(flow: FlowKey, epoch: u64) -> Self {
        let command = Command {
            ops: Ops::RELEASE.and(Ops::ANNOUNCE),
            epoch,
            flow,
            owner: Owner::NONE,
        };
        let is_news = true;
        Self { command, is_news }
    }
}

/// The first flow behind `after` that the switch has decided.
fn next_confirmed(
    registry: &Registry,
    mut after: Option<Position>,
) -> Option<(Position, OwnedFlow)> {
    loop {
        let (position, owned) = registry.next(after)?;
        if owned.is_confirmed {
            return Some((position, owned));
        }
        after = Some(position);
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
