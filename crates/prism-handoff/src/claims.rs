//! Claims connections that were accepted here and stay (`prism_proto::claim`). One task of each
//! worker claims them once they are old enough; no request waits for it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use prism_proto::claim::{self, CLAIM_AFTER_NS, Claim};
use prism_proto::control::{FlowKey, Owner};
use prism_sys::clock::monotonic_ns;
use tokio::sync::{Notify, Semaphore};

use crate::control::Control;

/// The largest number of claims under way at once; hand-offs need room among the commands too.
const MAX_CLAIMS: usize = 256;
/// The number of immediate attempts when the estimate of the switch's clock improves.
const MAX_TRIES: u8 = 3;
/// The pause before an unanswered claim is repeated.
const AGAIN_NS: u64 = 1_000_000_000;
/// Claims that are due within this time are made together.
const SLACK: Duration = Duration::from_millis(20);

/// The claim to one connection. It ends when it is dropped, with the connection or at a hand-off.
#[derive(Debug)]
pub(crate) struct Claimed {
    flow: FlowKey,
    here: Owner,
    /// The time when the connection was accepted, which gives the first epoch. A connection that
    /// its client has forgotten therefore does not outrank the client's next one at another
    /// frontend.
    since_ns: u64,
    epoch: Cell<Option<u64>>,
    is_held: Cell<bool>,
}

impl Claimed {
    /// The time when the connection was accepted.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    fn new(flow: FlowKey, here: Owner, epoch: Option<u64>, since_ns: u64) -> Rc<Self> {
        Rc::new(Self {
            flow,
            here,
            since_ns,
            epoch: Cell::new(epoch),
            is_held: Cell::new(false),
        })
    }

    /// Has the connection announced. The switch has not confirmed its claim.
    pub(crate) fn hold(&self, control: &Control) {
        let clock_ns = control.switch_clock_at(self.since_ns);
        if let Some(epoch) = self.epoch.get().or(clock_ns) {
            self.epoch.set(Some(epoch));
            control.hold(self.flow, self.here, epoch);
        }
    }

    /// The greatest epoch that was sent to the switch, and whether the switch has confirmed it.
    pub(crate) fn epoch(&self) -> Option<(u64, bool)> {
        Some((self.epoch.get()?, self.is_held.get()))
    }
}

/// The claims of one worker that are not due yet.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// In the order of their due times.
    young: RefCell<VecDeque<(u64, Weak<Claimed>)>>,
    /// Unanswered claims, in the order of their due times.
    again: RefCell<VecDeque<(u64, Weak<Claimed>)>>,
    changed: Notify,
}

impl Claims {
    /// Adds a connection that was accepted, or that stays after a failed hand-off. In the second
    /// case `epoch` is that of the last command for it.
    pub(crate) fn add(&self, flow: FlowKey, here: Owner, epoch: Option<u64>) -> Rc<Claimed> {
        let claimed = Claimed::new(flow, here, epoch, monotonic_ns());
        let due_ns = claimed.since_ns.saturating_add(CLAIM_AFTER_NS);
        let mut young = self.young.borrow_mut();
        if young.is_empty() {
            self.changed.notify_one();
        }
        young.push_back((due_ns, Rc::downgrade(&claimed)));
        claimed
    }

    /// Adds a connection that another process of this host had, to claim it at once. `since_ns` is
    /// the time when it was accepted. It is 0 if only `epoch` may give the next epoch.
    pub(crate) fn add_again(
        &self,
        flow: FlowKey,
        here: Owner,
        epoch: Option<u64>,
        since_ns: u64,
    ) -> Rc<Claimed> {
        let claimed = Claimed::new(flow, here, epoch, since_ns);
        let mut again = self.again.borrow_mut();
        again.push_front((0, Rc::downgrade(&claimed)));
        self.changed.notify_one();
        claimed
    }

    /// The connections that are here and wait for their claim.
    pub(crate) fn unclaimed(&self) -> Vec<Rc<Claimed>> {
        let young = self.young.borrow();
        let again = self.again.borrow();
        let all = young.iter().chain(again.iter());
        all.filter_map(|(_, claimed)| claimed.upgrade()).collect()
    }

    /// Makes the claims that are due, until dropped.
    pub(crate) async fn run(self: &Rc<Self>, control: &Rc<Control>) {
        let room = Arc::new(Semaphore::new(MAX_CLAIMS));
        loop {
            let due_ns = [&self.young, &self.again]
                .into_iter()
                .filter_map(|queue| queue.borrow().front().map(|(due, _)| *due))
                .min();
            let Some(due_ns) = due_ns else {
                self.changed.notified().await;
                continue;
            };
            let wait = Duration::from_nanos(due_ns.saturating_sub(monotonic_ns()));
            tokio::time::sleep(wait + SLACK).await;
            while let Some(claimed) = self.next_due(monotonic_ns()) {
                let Ok(permit) = room.clone().acquire_owned().await else {
                    return;
                };
                let claims = self.clone();
                let control = control.clone();
                tokio::task::spawn_local(async move {
                    claims.claim(&control, claimed).await;
                    drop(permit);
                });
            }
        }
    }

    /// The next due claim whose connection is still here.
    fn next_due(&self, now_ns: u64) -> Option<Weak<Claimed>> {
        for queue in [&self.young, &self.again] {
            let mut queue = queue.borrow_mut();
            let mut pop_due = || queue.pop_front_if(|(due_ns, _)| *due_ns <= now_ns);
            while let Some((_, claimed)) = pop_due() {
                if claimed.strong_count() > 0 {
                    return Some(claimed);
                }
            }
        }
        None
    }

    async fn claim(&self, control: &Rc<Control>, claimed: Weak<Claimed>) {
        for _ in 0..MAX_TRIES {
            let Some(known) = claimed.upgrade() else {
                return;
            };
            let clock_ns = control.switch_clock_at(known.since_ns);
            let Some(clock_ns) = clock_ns.filter(|_| control.is_reachable()) else {
                return self.later(control, &known);
            };
            let before = known.epoch.get().map(|epoch| epoch.saturating_add(1));
            let epoch = clock_ns.max(before.unwrap_or(0));
            known.epoch.set(Some(epoch));
            let command = claim::command(known.flow, known.here, epoch);
            drop(known);
            let outcome = control.call(None, command, claim::DEADLINE_NS).await;
            match (Claim::of(outcome), claimed.upgrade()) {
                (Claim::Held, Some(known)) => {
                    control.note(outcome, known.here);
                    return known.is_held.set(true);
                }
                (Claim::Unanswered, Some(known)) => return self.later(control, &known),
                (Claim::Outranked, Some(known))
                    if control.switch_clock_at(known.since_ns) > Some(epoch) => {}
                // The claim was refused, or the connection was handed off or closed meanwhile.
                _ => return,
            }
        }
    }

    fn later(&self, control: &Control, claimed: &Rc<Claimed>) {
        if control.flows.is_young() {
            claimed.hold(control);
        }
        let due_ns = monotonic_ns().saturating_add(AGAIN_NS);
        let entry = (due_ns, Rc::downgrade(claimed));
        self.again.borrow_mut().push_back(entry);
        self.changed.notify_one();
    }
}
