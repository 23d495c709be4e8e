//! Announces the flows of a worker to a switch that has lost its table (docs/design/terms.md).
//! `flows` has what is to be announced.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::announce::DEADLINE_NS;
use prism_proto::registry::OwnedFlow;
use prism_proto::term::YOUNG_NS;
use tokio::time::Instant;

use crate::claims::Claims;
use crate::control::{Control, Stamp};
use crate::flows::Announcement;

/// The longest time that a term is young.
const YOUNG: Duration = Duration::from_nanos(YOUNG_NS);

/// Announces all flows of this worker whenever the switch begins a term, until dropped.
pub(crate) async fn announce_all(control: &Rc<Control>, claims: &Claims) {
    let flows = &control.flows;
    let settles = tokio::time::sleep(Duration::ZERO);
    let mut settles = pin!(settles);
    loop {
        tokio::select! {
            () = flows.changed() => {}
            // The agent may be away. No term is young for longer.
            () = settles.as_mut(), if flows.is_young() => {
                flows.assume_settled();
                settles.as_mut().reset(Instant::now() + YOUNG);
            }
        }
        if begin_term(control, claims) {
            settles.as_mut().reset(Instant::now() + YOUNG);
        }
        while let Some(owned) = flows.poll() {
            let control = control.clone();
            tokio::task::spawn_local(async move { announce(&control, owned).await });
        }
        if let Some(term) = flows.say_done() {
            control.settle(term);
        }
    }
}

/// Begins to announce if the switch has begun a term. Returns whether it has.
fn begin_term(control: &Control, claims: &Claims) -> bool {
    let term = control.term();
    if !control.flows.is_new_term(term) {
        return false;
    }
    // Without the clock of this term, an epoch could not follow what is announced.
    if control.switch_clock_ns().is_none() {
        control.ask_clock();
        return false;
    }
    tracing::info!(
        term = term.0,
        "the switch has begun a term: announcing flows"
    );
    control.flows.begin_term(term);
    for claimed in claims.unclaimed() {
        claimed.hold(control);
    }
    true
}

/// Announces one flow, and handles the answer.
async fn announce(control: &Control, owned: OwnedFlow) {
    let announcement = control.flows.announcement(owned);
    let Announcement { term, pass, .. } = announcement;
    let command = owned.announcement();
    let outcome = control
        .call_in(Stamp::Latest(term), pass, command, DEADLINE_NS)
        .await;
    let present = control.term();
    if (control.flows).on_announced(&announcement, outcome, present) {
        control.restamp(&owned.flow, owned.epoch, term);
    }
}
