//! The cluster's next step. Any backend that lives may make it, because a step counts only
//! if the state is still the one that it was made from.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_cluster::{NodeName, State, Status, step};
use prism_etcd::Condition;

use super::etcd::{Key, Pause};
use super::{ClusterRecords, PAUSE, Participant};

/// The first backend by name makes a step at once, and each further one this much later.
const ONE_AFTER_THE_OTHER: Duration = Duration::from_millis(300);
/// Most turns that a backend waits.
const MAX_TURN: usize = 10;
/// Time that a step waits for writes to pause. A longer write may fail at the step.
const PAUSED_IN: Duration = Duration::from_secs(1);
/// Most backends named absent in one call; etcd allows 128 conditions.
const MAX_ABSENT: usize = 100;

impl Participant {
    /// Never returns.
    pub(super) async fn act(&self) {
        let Some(me) = self.backend() else {
            return std::future::pending().await;
        };
        let mut news = self.channels.known.subscribe();
        let begun = Instant::now();
        loop {
            let known = news.borrow_and_update().clone();
            let Some((turn, next)) = due(&known, &me.name) else {
                let _ = news.changed().await;
                continue;
            };
            // After an outage of all backends, all may return within the time of a lease.
            // Without a valid lease this backend waits by time, not for news: etcd may have
            // reported its lease to all backends before its own request returned.
            let is_early = begun.elapsed() < self.lease_ttl() && takes_out(&known, &next);
            if is_early || !me.lease.is_valid() {
                let _ = tokio::time::timeout(PAUSE, news.changed()).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(ONE_AFTER_THE_OTHER * turn) => {}
                // After news the step may have been made, or be another one.
                _ = news.changed(), if turn > 0 => continue,
            }
            let taken = async {
                match self.pause(known, &next).await? {
                    Some(known) => self.take_step(&known).await,
                    None => Ok(()),
                }
            };
            if let Err(error) = taken.await {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "cannot take the cluster's step"
                );
            }
            let _ = tokio::time::timeout(PAUSE, news.changed()).await;
        }
    }

    /// Asks all backends that live to finish their writes before the step, because a write
    /// that meets the step fails. Returns the knowledge after the pause. `None`: another
    /// backend has made the step, and the one after it needs its own pause.
    async fn pause(
        &self,
        known: Arc<ClusterRecords>,
        next: &State,
    ) -> anyhow::Result<Option<Arc<ClusterRecords>>> {
        // Writes that wait for a dead backend do not end before it is out.
        if takes_out(&known, next) {
            return Ok(Some(known));
        }
        let pause = Pause {
            number: fastrand::u64(1..),
            epoch: known.epoch(),
        };
        let put = self.keys().put(&Key::Pause, &pause)?;
        self.client().change(&[], &[put]).await?;
        let mut news = self.channels.known.subscribe();
        let is_over = |known: &Arc<ClusterRecords>| {
            let mut living = known.living.values();
            known.epoch() != pause.epoch || living.all(|l| l.report.paused == pause.number)
        };
        let paused = tokio::time::timeout(PAUSED_IN, news.wait_for(is_over)).await;
        if paused.is_err() {
            tracing::debug!("some writes did not pause in time for the cluster's step");
        }
        let now = self.channels.known.borrow().clone();
        Ok(Some(now).filter(|now| now.epoch() == pause.epoch))
    }

    async fn take_step(&self, known: &ClusterRecords) -> anyhow::Result<()> {
        let Some((next, revision)) = next_of(known) else {
            return Ok(());
        };
        let mut conditions = vec![Condition::At(self.keys().path(&Key::State), revision)];
        // A backend that has begun to live meanwhile may serve by the present state.
        let absent = absent(known, &next).into_iter();
        let absent = absent.map(|name| Condition::Absent(self.keys().path(&Key::Live(&name))));
        conditions.extend(absent.take(MAX_ABSENT));
        let put = self.keys().put(&Key::State, &next)?;
        if self.ledger.change(&conditions, &[put]).await? {
            let epoch = next.epoch;
            let phase = &next.phase;
            tracing::info!(epoch, ?phase, backends = ?next.backends, "the cluster takes a step");
        }
        Ok(())
    }
}

/// The next step and this backend's turn. `None` without a step, or if this backend does
/// not live by `known`.
fn due(known: &ClusterRecords, name: &NodeName) -> Option<(u32, State)> {
    let turn = turn_of(known, name)?;
    let (next, _) = next_of(known)?;
    Some((turn, next))
}

fn next_of(known: &ClusterRecords) -> Option<(State, u64)> {
    let (state, revision) = known.state.as_ref()?;
    let next = step(state, &known.live(), known.wish.as_ref())?;
    Some((next, *revision))
}

/// Whether the step takes out a backend that has not asked to leave.
fn takes_out(known: &ClusterRecords, next: &State) -> bool {
    let leaves = |name: &NodeName| {
        let living = known.living.get(name);
        living.is_some_and(|living| living.report.leaving)
    };
    let is_out = |state: &State, name: &NodeName| state.status(name.as_str()) == Some(Status::Out);
    let was_out = |name| known.state.iter().any(|(state, _)| is_out(state, name));
    let mut backends = next.backends.keys();
    backends.any(|name| is_out(next, name) && !was_out(name) && !leaves(name))
}

/// The turn of this backend; `None` if it does not live.
fn turn_of(known: &ClusterRecords, name: &NodeName) -> Option<u32> {
    let turn = known.living.keys().position(|living| living == name)?;
    u32::try_from(turn.min(MAX_TURN)).ok()
}

/// The backends of the step that do not live.
fn absent(known: &ClusterRecords, next: &State) -> Vec<String> {
    let before = known.state.iter();
    let before = before.flat_map(|(state, _)| state.backends.keys());
    let all: BTreeSet<_> = before.chain(next.backends.keys()).collect();
    let all = all
        .into_iter()
        .filter(|name| !known.living.contains_key(*name));
    all.map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use prism_cluster::{Placing, Report};

    use super::*;
    use crate::etcd::Living;

    fn name(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    /// A cluster of three backends. The `living` ones have adopted the state.
    fn known(living: &[&str]) -> ClusterRecords {
        let mut state = State::new(Placing::new(["a", "b", "c"].map(name), 3).unwrap());
        let mut known = ClusterRecords::default();
        for (store, backend) in (1..).zip(state.backends.values_mut()) {
            backend.store = store;
        }
        for living in living {
            let store = state.backends.get(*living).unwrap().store;
            let report = Report {
                store,
                epoch: state.epoch,
                ..Report::default()
            };
            known.living.insert(name(living), Living { run: 1, report });
        }
        known.state = Some((state, 5));
        known
    }

    #[test]
    fn who_does_not_live_must_not_begin_to_while_a_step_is_made() {
        let known = known(&["a", "c"]);
        let (next, revision) = next_of(&known).unwrap();
        assert_eq!(revision, 5);
        assert_eq!(absent(&known, &next), ["b"]);
        assert!(takes_out(&known, &next));
    }

    #[test]
    fn backends_that_live_take_turns_and_nothing_is_done_where_all_is_well() {
        let known = known(&["a", "b", "c"]);
        assert_eq!(turn_of(&known, &name("a")), Some(0));
        assert_eq!(turn_of(&known, &name("c")), Some(2));
        assert_eq!(turn_of(&known, &name("d")), None);
        assert!(next_of(&known).is_none());
        assert!(due(&known, &name("a")).is_none());
    }

    /// Otherwise no backend would make the step if each had heard of all leases before its
    /// own was granted.
    #[test]
    fn a_step_is_due_at_every_backend_that_lives_whatever_it_knows_of_its_lease() {
        let known = known(&["a", "c"]);
        let turn = |backend| due(&known, &name(backend)).map(|(turn, _)| turn);
        assert_eq!((turn("a"), turn("b"), turn("c")), (Some(0), None, Some(1)));
    }
}
