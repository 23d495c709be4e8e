//! The flows that this worker owns, and their announcing to a switch that has lost its table
//! (docs/design/terms.md). `prism_proto::{registry, announce}` decide what is announced and when.
//!
//! A flow enters with an answer of the switch, or without one while a term is young. It leaves with
//! its connection: [`crate::connection::ConnectionState`] forgets it when it is dropped.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::announce::{Announced, Announcer, DEADLINE_NS};
use prism_proto::control::{FlowKey, Owner, Pass, Term};
use prism_proto::lease::TermNotice;
use prism_proto::registry::{Full, OwnedFlow, Registry};
use prism_proto::steering::CommandOutcome;
use prism_proto::term::YOUNG_NS;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::claims::Claims;
use crate::control::{Control, Stamp, now_ns};
use crate::passes::Passes;

/// The longest time that a term is young.
const YOUNG: Duration = Duration::from_nanos(YOUNG_NS);
/// The time after the beginning of a term in which its lease has told nearly every worker of it.
const UNTOLD: Duration = Duration::from_millis(500);

/// The flows of one worker.
#[derive(Debug, Default)]
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
}

impl Flows {
    /// Wakes [`announce_all`] if `term` is a new one.
    pub(crate) fn hear_of(&self, term: Term) {
        if term > self.announcer.borrow().term() {
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
    fn say_done(&self) -> Option<Term> {
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
}

impl Control {
    /// Holds the flow if this is the confirmation that it is `here`, and returns its epoch.
    pub(crate) fn note(&self, outcome: CommandOutcome, here: Owner) -> Option<u64> {
        let CommandOutcome::Answered(answer) = outcome else {
            return None;
        };
        let mut registry = self.flows.registry.borrow_mut();
        let before = registry.len();
        let noted = registry.note(&answer, self.term(), here);
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
        let mut passes = self.flows.passes.borrow_mut();
        passes.keep(flow, epoch, pass, now_ns());
    }

    /// Holds a flow that no other host can have, though the switch has not confirmed it.
    pub(crate) fn hold(&self, flow: FlowKey, here: Owner, epoch: u64) {
        let mut registry = self.flows.registry.borrow_mut();
        let before = registry.len();
        let owned = OwnedFlow {
            flow,
            owner: here,
            epoch,
            is_blocked: false,
            is_confirmed: false,
            term: registry.get(&flow).map_or(self.term(), |owned| owned.term),
        };
        let held = registry.hold(owned);
        self.count_flow(&flow, before, registry.len());
        drop(registry);
        match held {
            Ok(()) => self.flows.announcer.borrow_mut().touch(flow),
            Err(full) => self.warn_full(full).unwrap_or_default(),
        }
        self.flows.wake.notify_one();
    }

    /// Forgets a flow that was held at `epoch` or before. Returns the last term in which the switch
    /// confirmed it.
    pub(crate) fn forget(&self, flow: &FlowKey, epoch: u64) -> Option<Term> {
        let mut raised = self.flows.raised.borrow_mut();
        if raised.get(flow).is_some_and(|to| *to <= epoch) {
            raised.remove(flow);
        }
        let mut registry = self.flows.registry.borrow_mut();
        let before = registry.len();
        let term = registry.get(flow)?.term;
        registry.forget(flow, epoch);
        self.count_flow(flow, before, registry.len());
        Some(term)
    }

    /// Whether this worker has the flow.
    pub(crate) fn has(&self, flow: &FlowKey) -> bool {
        self.flows.registry.borrow().get(flow).is_some()
    }

    /// The epoch of a connection whose last command had `epoch`. It may have been announced above
    /// that.
    pub(crate) fn raised(&self, flow: &FlowKey, epoch: u64) -> u64 {
        let raised = self.flows.raised.borrow();
        raised.get(flow).map_or(epoch, |to| epoch.max(*to))
    }

    /// Handles the agent's news of its term. False: the agent is to hear of a greater one.
    pub(crate) fn on_notice(&self, notice: TermNotice) -> bool {
        if notice.term < self.term() {
            return false;
        }
        self.observe_term(notice.term);
        if notice.is_settled {
            self.flows.settled.set(notice.term)
        } else {
            self.flows.young.set(notice.term);
            self.flows.announcer.borrow_mut().on_new_lease();
        }
        self.flows.wake.notify_one();
        true
    }

    /// `flow` may have entered the registry, or left it.
    fn count_flow(&self, flow: &FlowKey, before: usize, after: usize) {
        match after.cmp(&before) {
            std::cmp::Ordering::Greater => {
                self.counters.flows_owned.add_one();
                self.process.held_flows.add(flow);
            }
            std::cmp::Ordering::Less => {
                self.counters.flows_owned.sub_one();
                self.process.held_flows.remove(flow);
            }
            std::cmp::Ordering::Equal => {}
        }
    }

    fn warn_full<T>(&self, full: Full) -> Option<T> {
        self.counters.flows_not_held.add_one();
        tracing::debug!(error = %full);
        None
    }

    /// Begins to announce if the switch has begun a term. Returns whether it has.
    fn begin_term(&self, claims: &Claims) -> bool {
        let flows = &self.flows;
        let term = self.term();
        if term <= flows.announcer.borrow().term() {
            return false;
        }
        // Without the clock of this term, an epoch could not follow what is announced.
        if self.switch_clock_ns().is_none() {
            self.ask_clock();
            return false;
        }
        tracing::info!(
            term = term.0,
            "the switch has begun a term: announcing flows"
        );
        flows.announcer.borrow_mut().begin(term);
        flows.begun.send_replace(term);
        flows.begun_at.set(Some(Instant::now()));
        for claimed in claims.unclaimed() {
            claimed.hold(self);
        }
        true
    }

    fn next_announcement(&self) -> Option<OwnedFlow> {
        let registry = self.flows.registry.borrow();
        self.flows.announcer.borrow_mut().poll(&registry)
    }

    /// Announces one flow, and handles the answer.
    async fn announce(&self, owned: OwnedFlow) {
        let term = self.flows.announcer.borrow().term();
        let pass = self.flows.passes.borrow().of(&owned.flow, owned.epoch);
        let command = owned.announcement();
        let outcome = self
            .call_in_with(Stamp::Latest(term), pass, command, DEADLINE_NS)
            .await;
        let announced = {
            let mut registry = self.flows.registry.borrow_mut();
            let mut announcer = self.flows.announcer.borrow_mut();
            announcer.handle(term, &owned, outcome, &mut registry)
        };
        match announced {
            Announced::Known => {
                self.counters.flows_announced.add_one();
                self.copies.touch(owned.flow);
                self.restamp(&owned.flow, owned.epoch, term);
            }
            // It is moving, or its packets go elsewhere. The socket then ends when it has heard
            // nothing for too long.
            Announced::Lost => {
                self.counters.flows_elsewhere.add_one();
                self.forget(&owned.flow, owned.epoch);
            }
            Announced::Outranked { above } => {
                let epoch = above.saturating_add(1);
                self.flows.raised.borrow_mut().insert(owned.flow, epoch);
                self.hold(owned.flow, owned.owner, epoch);
            }
            Announced::Void => {}
        }
        self.flows.wake.notify_one();
    }
}

/// Announces all flows of this worker whenever the switch begins a term, until dropped.
pub(crate) async fn announce_all(control: &Rc<Control>, claims: &Claims) {
    let flows = &control.flows;
    let settles = tokio::time::sleep(Duration::ZERO);
    let mut settles = pin!(settles);
    loop {
        tokio::select! {
            () = flows.wake.notified() => {}
            // The agent may be away. No term is young for longer.
            () = settles.as_mut(), if flows.is_young() => {
                flows.settled.set(flows.announcer.borrow().term());
                settles.as_mut().reset(Instant::now() + YOUNG);
            }
        }
        if control.begin_term(claims) {
            settles.as_mut().reset(Instant::now() + YOUNG);
        }
        while let Some(owned) = control.next_announcement() {
            let control = control.clone();
            tokio::task::spawn_local(async move { control.announce(owned).await });
        }
        if let Some(term) = flows.say_done() {
            control.settle(term);
        }
    }
}
