//! The flows that this worker owns, as the switch has confirmed them or is to hear of them
//! (docs/design/terms.md). `prism_proto::{registry, announce}` decide what is announced and when.
//!
//! A flow enters with an answer of the switch, or without one while a term is young. It leaves with
//! its connection: [`crate::connection_state::ConnectionState`] forgets it when it is dropped.
//!
//! Not here: the announcements themselves (`announcements`).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prism_proto::announce::{Announced, Announcer};
use prism_proto::control::{FlowKey, Owner, Pass, Term};
use prism_proto::lease::TermNotice;
use prism_proto::registry::{Full, OwnedFlow, Registry};
use prism_proto::steering::CommandOutcome;
use prism_sys::clock::monotonic_ns;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::copy_backlog::CopyBacklog;
use crate::counters::Counters;
use crate::held_flows::HeldFlows;
use crate::passes::Passes;

/// The time after the beginning of a term in which its lease has told nearly every worker of it.
const UNTOLD: Duration = Duration::from_millis(500);

/// The announcement of a flow.
pub(crate) struct Announcement {
    pub(crate) owned: OwnedFlow,
    /// The term that it is announced to.
    pub(crate) term: Term,
    /// The pass by which this worker owns it.
    pub(crate) pass: Option<Pass>,
}

/// The flows of one worker.
#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) registry: RefCell<Registry>,
    announcer: RefCell<Announcer>,
    /// The last terms that the agent has called young and settled.
    young: Cell<Term>,
    settled: Cell<Term>,
    /// When this worker began to announce.
    begun_at: Cell<Option<Instant>>,
    /// Flows that were announced above a tombstone, with their new epochs.
    raised: RefCell<HashMap<FlowKey, u64>>,
    passes: RefCell<Passes>,
    /// There may be something to announce.
    wake: Notify,
    /// The term in which all flows were announced.
    done: watch::Sender<Term>,
    /// The last term that this worker has begun to announce to.
    begun: watch::Sender<Term>,
    /// The copies of the flows, for each host of a pair.
    pub(crate) copies: CopyBacklog,
    counters: Arc<Counters>,
    held_flows: Arc<HeldFlows>,
}

impl Flows {
    /// The flows of a new worker, at a switch of `hosts` hosts that take copies.
    pub(crate) fn new(hosts: usize, counters: Arc<Counters>, held_flows: Arc<HeldFlows>) -> Self {
        Self {
            registry: RefCell::default(),
            announcer: RefCell::default(),
            young: Cell::default(),
            settled: Cell::default(),
            begun_at: Cell::default(),
            raised: RefCell::default(),
            passes: RefCell::default(),
            wake: Notify::new(),
            done: watch::Sender::default(),
            begun: watch::Sender::default(),
            copies: CopyBacklog::new(hosts),
            counters,
            held_flows,
        }
    }

    /// Wakes the announcements if `term` is a new one.
    pub(crate) fn hear_of(&self, term: Term) {
        if self.is_new_term(term) {
            self.wake.notify_one();
        }
    }

    /// Whether the switch lacks flows, so that it decides nothing.
    pub(crate) fn is_young(&self) -> bool {
        self.announcer.borrow().is_young()
    }

    /// Whether hand-offs have to wait. Without the agent's word, the switch is asked after a
    /// moment: no request waits for a lease.
    pub(crate) fn are_unknown(&self) -> bool {
        let is_told = self.young.get() == self.announcer.borrow().term();
        let is_new = || (self.begun_at.get()).is_some_and(|at| at.elapsed() < UNTOLD);
        self.is_young() && (is_told || is_new())
    }

    /// The last term in which the switch confirmed the flow.
    pub(crate) fn term_of(&self, flow: &FlowKey) -> Option<Term> {
        Some(self.registry.borrow().get(flow)?.term)
    }

    /// The lease has a new connection. Returns the terms in which all flows are announced, from
    /// now on.
    pub(crate) fn on_new_lease(&self) -> watch::Receiver<Term> {
        self.announcer.borrow_mut().on_new_lease();
        self.wake.notify_one();
        self.done.subscribe()
    }

    /// The term in which all flows were announced, if it is settled and the present one.
    pub(crate) fn settled_term(&self) -> Option<Term> {
        let announcer = self.announcer.borrow();
        let term = *self.done.borrow();
        let is_present = term == announcer.term() && term != Term::NONE;
        (is_present && !announcer.is_young()).then_some(term)
    }

    /// Waits until this worker announces to a later term than `told`.
    pub(crate) async fn hear_of_another(&self, told: Term) {
        // The sender lives as long as `self`.
        let _ = self.begun.subscribe().wait_for(|term| *term > told).await;
    }

    /// Says that all flows are announced, if they are. Returns the term if it is over with it.
    pub(crate) fn say_done(&self) -> Option<Term> {
        let mut announcer = self.announcer.borrow_mut();
        if let Some(term) = announcer.poll_done() {
            self.done.send_replace(term);
        }
        let term = announcer.term();
        if !announcer.is_done() || self.settled.get() < term {
            return None;
        }
        announcer.settle(term);
        Some(term)
    }

    /// Holds the flow if this is the confirmation in `term` that it is `here`. Returns its epoch.
    pub(crate) fn note(&self, outcome: CommandOutcome, term: Term, here: Owner) -> Option<u64> {
        let CommandOutcome::Answered(answer) = outcome else {
            return None;
        };
        let mut registry = self.registry.borrow_mut();
        let before = registry.len();
        let noted = registry.note(&answer, term, here);
        self.count_flow(&answer.flow, before, registry.len());
        drop(registry);
        match noted {
            Ok(is_here) => is_here.then(|| {
                self.copies.touch(answer.flow);
                answer.epoch
            }),
            Err(full) => self.warn_full(full),
        }
    }

    /// Keeps the pass by which this worker is to own the flow at `epoch`.
    pub(crate) fn keep_pass(&self, flow: FlowKey, epoch: u64, pass: Pass) {
        let mut passes = self.passes.borrow_mut();
        passes.keep(flow, epoch, pass, monotonic_ns());
    }

    /// Holds a flow that no other host can have, though the switch has not confirmed it. `term` is
    /// the present one.
    pub(crate) fn hold(&self, flow: FlowKey, here: Owner, epoch: u64, term: Term) {
        let mut registry = self.registry.borrow_mut();
        let before = registry.len();
        let owned = OwnedFlow {
            flow,
            owner: here,
            epoch,
            is_blocked: false,
            is_confirmed: false,
            term: registry.get(&flow).map_or(term, |owned| owned.term),
        };
        let held = registry.hold(owned);
        self.count_flow(&flow, before, registry.len());
        drop(registry);
        match held {
            Ok(()) => self.announcer.borrow_mut().touch(flow),
            Err(full) => self.warn_full(full).unwrap_or_default(),
        }
        self.wake.notify_one();
    }

    /// Forgets a flow that was held at `epoch` or before. Returns the last term in which the switch
    /// confirmed it.
    pub(crate) fn forget(&self, flow: &FlowKey, epoch: u64) -> Option<Term> {
        let mut raised = self.raised.borrow_mut();
        if raised.get(flow).is_some_and(|to| *to <= epoch) {
            raised.remove(flow);
        }
        let mut registry = self.registry.borrow_mut();
        let before = registry.len();
        let term = registry.get(flow)?.term;
        registry.forget(flow, epoch);
        self.count_flow(flow, before, registry.len());
        Some(term)
    }

    /// Whether this worker has the flow.
    pub(crate) fn has(&self, flow: &FlowKey) -> bool {
        self.registry.borrow().get(flow).is_some()
    }

    /// The epoch of a connection whose last command had `epoch`. It may have been announced above
    /// that.
    pub(crate) fn raised(&self, flow: &FlowKey, epoch: u64) -> u64 {
        let raised = self.raised.borrow();
        raised.get(flow).map_or(epoch, |to| epoch.max(*to))
    }

    /// Handles the agent's news of the present term.
    pub(crate) fn on_notice(&self, notice: TermNotice) {
        if notice.is_settled {
            self.settled.set(notice.term);
        } else {
            self.young.set(notice.term);
            self.announcer.borrow_mut().on_new_lease();
        }
        self.wake.notify_one();
    }

    /// Whether `term` is later than the one that this worker announces to.
    pub(crate) fn is_new_term(&self, term: Term) -> bool {
        term > self.announcer.borrow().term()
    }

    /// Begins to announce to the switch in `term`.
    pub(crate) fn begin_term(&self, term: Term) {
        self.announcer.borrow_mut().begin(term);
        self.begun.send_replace(term);
        self.begun_at.set(Some(Instant::now()));
    }

    /// The present term counts as settled, whether the agent says so or not.
    pub(crate) fn assume_settled(&self) {
        self.settled.set(self.announcer.borrow().term());
    }

    /// Waits until there may be something to announce.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// The next flow to announce.
    pub(crate) fn poll(&self) -> Option<OwnedFlow> {
        let registry = self.registry.borrow();
        self.announcer.borrow_mut().poll(&registry)
    }

    /// The announcement of a flow in the present term.
    pub(crate) fn announcement(&self, owned: OwnedFlow) -> Announcement {
        Announcement {
            owned,
            term: self.announcer.borrow().term(),
            pass: self.passes.borrow().of(&owned.flow, owned.epoch),
        }
    }

    /// Handles the answer to an announcement. `present` is the present term. Returns whether the
    /// switch has the flow by it.
    pub(crate) fn on_announced(
        &self,
        announcement: &Announcement,
        outcome: CommandOutcome,
        present: Term,
    ) -> bool {
        let Announcement { owned, term, .. } = announcement;
        let announced = {
            let mut registry = self.registry.borrow_mut();
            let mut announcer = self.announcer.borrow_mut();
            announcer.handle(*term, owned, outcome, &mut registry)
        };
        match announced {
            Announced::Known => {
                self.counters.flows_announced.add_one();
                self.copies.touch(owned.flow);
            }
            // It is moving, or its packets go elsewhere. The socket then ends when it has heard
            // nothing for too long.
            Announced::Lost => {
                self.counters.flows_elsewhere.add_one();
                self.forget(&owned.flow, owned.epoch);
            }
            Announced::Outranked { above } => {
                let epoch = above.saturating_add(1);
                self.raised.borrow_mut().insert(owned.flow, epoch);
                self.hold(owned.flow, owned.owner, epoch, present);
            }
            Announced::Void => {}
        }
        self.wake.notify_one();
        matches!(announced, Announced::Known)
    }

    /// `flow` may have entered the registry, or left it.
    fn count_flow(&self, flow: &FlowKey, before: usize, after: usize) {
        match after.cmp(&before) {
            std::cmp::Ordering::Greater => {
                self.counters.flows_owned.add_one();
                self.held_flows.add(flow);
            }
            std::cmp::Ordering::Less => {
                self.counters.flows_owned.sub_one();
                self.held_flows.remove(flow);
            }
            std::cmp::Ordering::Equal => {}
        }
    }

    fn warn_full<T>(&self, full: Full) -> Option<T> {
        self.counters.flows_not_held.add_one();
        tracing::debug!(error = %full);
        None
    }
}
