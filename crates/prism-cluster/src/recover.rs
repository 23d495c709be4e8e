//! Recovery of a cluster's state that etcd has lost, from the stores' testimonies.
//!
//! The latest testimony has the cluster's state, unless the cluster has gone on without these
//! backends. Recovery therefore needs the testimony of every backend that is in sync or catching
//! up by that state (docs/design/cluster.md). The recovered state has a later epoch than any
//! that there can have been.
//!
//! A backend without a testimony, or with another store, may have had writes that no other
//! backend knows. The administrator has to name it: to leave it out, or to accept its present
//! store as it is. The same decides about a backend with another store that the cluster cannot
//! go on without, because no other one has its keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    fault::{Contents, Memory},
    placement::NodeName,
    state::{Backend, State, Status},
    testimony::Testimonies,
};

/// The distance from the greatest known epoch to the new one. Epochs that no testimony
/// knows are therefore below. A cluster that takes a step every minute needs two years for
/// as many.
const GAP: u64 = 1_000_000;
/// Most foundings that one state can replace; each recovery adds one or two.
const REPLACED_MAX: usize = 256;

/// The administrator's decisions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The backend whose store is believed if stores belong to different foundings.
    pub of: Option<NodeName>,
    /// Backends to leave out that were in sync or catching up. Answered writes may be lost.
    pub without: BTreeSet<NodeName>,
    /// Backends whose present stores count as in sync, although they are other ones. Answered
    /// writes may be lost.
    pub accepted: BTreeSet<NodeName>,
    /// The number of the new founding: drawn at random, not 0.
    pub founding: u64,
}

/// The reason why a backend may not be as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// Its store has no testimony.
    Silent,
    /// It has another store now.
    OtherStore,
    /// The recovered state is no successor of its testimony.
    OtherState,
}

/// The part of a backend in the recovered state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It was in sync and has the same store, so it has every answered write.
    InSync,
    /// It was lagging or out, and catches up before it serves reads.
    Behind,
    /// It was in sync or catching up, and is left out by decision.
    LeftOut,
    /// It has another store, which counts as in sync by decision.
    Accepted,
}

/// The state that replaces the lost one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The recovered state.
    pub state: State,
    /// The backend whose testimony it succeeds, or the first one with another store.
    pub of: NodeName,
    /// The epoch of that testimony.
    pub from_epoch: u64,
    /// The verdict of every backend of the state.
    pub verdicts: BTreeMap<NodeName, Verdict>,
}

/// The reason why nothing is recovered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// No node contradicts the present contents of etcd, and every backend has the store that the
    /// state names.
    #[error("there is nothing to recover: no store of the cluster contradicts its state")]
    NotNeeded,
    /// No store has a testimony.
    #[error("no store has reported its state; start the backends")]
    NoTestimony,
    /// The named store has no testimony.
    #[error("the store of {0} has not reported its state")]
    NotHeard(NodeName),
    /// The testimonies do not succeed one another.
    #[error("the states of the stores of {} do not succeed one another", join(.0))]
    Foundings(Vec<NodeName>),
    /// Answered writes may be lost without these.
    #[error("these backends were in sync or catching up, and may not be as they were: {}", doubts(.0))]
    Unproven(BTreeMap<NodeName, Doubt>),
    /// The backend is in sync, or has no keys.
    #[error("there is nothing to decide about {0}: it is as it was, or holds no keys")]
    NotInDoubt(NodeName),
    /// No backend would be in sync.
    #[error("no backend would be in sync")]
    NoneInSync,
    /// The cluster has had too many recoveries or epochs.
    #[error("the cluster's epochs or foundings are used up")]
    UsedUp,
}

fn join(names: &[NodeName]) -> String {
    let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
    names.join(", ")
}

fn doubts(doubts: &BTreeMap<NodeName, Doubt>) -> String {
    let each = doubts.iter().map(|(name, doubt)| match doubt {
        Doubt::Silent => format!("{name} (its store has not reported)"),
        Doubt::OtherStore => format!("{name} (it has another store)"),
        Doubt::OtherState => format!("{name} (its store was in another state)"),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Recovers the state: from the stores' testimonies if they contradict `present`, else from
/// `present` itself, if it has backends whose stores are other ones now. `stores` has the
/// identities of the stores of the backends that live.
///
/// # Errors
/// [`RecoverError`]: recovery is not needed, or not possible without a decision.
pub fn recover(
    present: &Contents<'_>,
    stores: &BTreeMap<NodeName, u64>,
    choice: &Choice,
) -> Result<Recovery, RecoverError> {
    let testimonies = present.testimonies;
    let epoch = later_than_all(present.state, testimonies)?;
    let (of, last, doubts) = match present.state.filter(|_| !present.are_contradicted()) {
        Some(state) => {
            let doubts = other_stores(state, stores);
            let name = doubts.first_key_value().map(|(name, _)| name.clone());
            (name.ok_or(RecoverError::NotNeeded)?, state, doubts)
        }
        None => {
            let (of, last) = last_of(present, choice.of.as_ref())?;
            let backends = last.backends.iter();
            let doubts = backends.filter_map(|(name, backend)| {
                Some((name.clone(), doubt(last, name, *backend, testimonies)?))
            });
            (of.clone(), last, doubts.collect())
        }
    };
    let mut state = last.clone();
    let verdicts = decide(&mut state, epoch, doubts, choice, |name| {
        let testimony = testimonies.get(name).map(|testimony| testimony.store);
        stores.get(name).copied().or(testimony)
    })?;
    let mut members = last.placing.members.iter();
    let is_in_sync = |name: &NodeName| state.status(name.as_str()) == Some(Status::InSync);
    if !members.any(is_in_sync) {
        return Err(RecoverError::NoneInSync);
    }
    (state.epoch, state.founding) = (epoch, choice.founding);
    for seen in states(testimonies)
        .map(|(_, state)| state)
        .chain(present.state)
    {
        state.replaces.insert(seen.founding);
        state.replaces.extend(&seen.replaces);
    }
    if state.replaces.len() > REPLACED_MAX {
        return Err(RecoverError::UsedUp);
    }
    Ok(Recovery {
        state,
        of,
        from_epoch: last.epoch,
        verdicts,
    })
}

/// The backends that get writes by the state and have another store now.
fn other_stores(state: &State, stores: &BTreeMap<NodeName, u64>) -> BTreeMap<NodeName, Doubt> {
    let is_other = |name: &NodeName, backend: &Backend| {
        let store = stores.get(name).copied().unwrap_or(0);
        backend.status != Status::Out && ![0, backend.store].contains(&store) && backend.store != 0
    };
    let backends = state.backends.iter();
    let others = backends.filter(|(name, backend)| is_other(name, backend));
    others
        .map(|(name, _)| (name.clone(), Doubt::OtherStore))
        .collect()
}

/// Applies the administrator's decisions about doubtful backends to a state. `store` is the
/// present store of a backend, if it is known.
fn decide(
    state: &mut State,
    epoch: u64,
    mut doubts: BTreeMap<NodeName, Doubt>,
    choice: &Choice,
    store: impl Fn(&NodeName) -> Option<u64>,
) -> Result<BTreeMap<NodeName, Verdict>, RecoverError> {
    let named = choice.without.iter().chain(&choice.accepted);
    let is_sure = |name: &&NodeName| !doubts.contains_key(*name);
    if let Some(name) = named.clone().find(is_sure) {
        return Err(RecoverError::NotInDoubt(name.clone()));
    }
    let mut verdicts = BTreeMap::new();
    for (name, backend) in &mut state.backends {
        let verdict = if choice.without.contains(name) {
            (backend.status, backend.since) = (Status::Out, epoch);
            Verdict::LeftOut
        } else if let Some(store) = store(name).filter(|_| choice.accepted.contains(name)) {
            (backend.status, backend.store) = (Status::InSync, store);
            backend.since = epoch;
            Verdict::Accepted
        } else if doubts.contains_key(name) {
            continue;
        } else {
            match backend.status {
                Status::InSync => Verdict::InSync,
                Status::Lagging | Status::Out => Verdict::Behind,
            }
        };
        verdicts.insert(name.clone(), verdict);
    }
    doubts.retain(|name, _| !verdicts.contains_key(name));
    if doubts.is_empty() {
        Ok(verdicts)
    } else {
        Err(RecoverError::Unproven(doubts))
    }
}

/// The states in the testimonies, with their backends.
fn states(testimonies: &Testimonies) -> impl Iterator<Item = (&NodeName, &State)> {
    let all = testimonies.iter();
    all.filter_map(|(name, testimony)| Some((name, testimony.state.as_ref()?)))
}

/// The state that a recovery would take by what has been said so far and by a node's own memory.
/// `None` if the administrator has to choose. Nodes that have heard the same agree on it.
pub fn latest_state(present: &Contents<'_>, own: &Memory) -> Option<State> {
    let mut testimonies = present.testimonies.clone();
    let mut claims = present.claims.clone();
    let testimony = own.testimony.clone();
    testimonies.extend(testimony.map(|testimony| (own.name.clone(), testimony)));
    claims.extend(own.claim().map(|claim| (own.name.clone(), claim)));
    let said = Contents {
        testimonies: &testimonies,
        claims: &claims,
        ..*present
    };
    let last = last_of(&said, None).ok();
    last.map(|(_, state)| state.clone())
}

/// The state that succeeds all others, and the backend that has it in its testimony.
///
/// If stores have seen what etcd lacks, it is the state of one of them. A later one of another
/// store was made in the older copy, by steps of backends that had not noticed.
fn last_of<'a>(
    present: &Contents<'a>,
    of: Option<&NodeName>,
) -> Result<(&'a NodeName, &'a State), RecoverError> {
    let testimonies = present.testimonies;
    let has_seen_more = |name: &NodeName| {
        let claim = present.claims.get(name);
        claim.is_some_and(|claim| !present.descends_from(claim.mark))
    };
    let is_older_copy = testimonies.keys().any(has_seen_more);
    let mut states = states(testimonies).peekable();
    if let Some(of) = of {
        let found = states.find(|(name, _)| *name == of);
        return found.ok_or_else(|| RecoverError::NotHeard(of.clone()));
    }
    states.peek().ok_or(RecoverError::NoTestimony)?;
    let all_go_on_to = |last: &State| {
        testimonies.values().all(|testimony| {
            // Two different states of one founding and epoch are forks.
            let is_fork = testimony.state.as_ref().is_some_and(|other| {
                (other.founding, other.epoch) == (last.founding, last.epoch) && other != last
            });
            testimony.accepts(last) && !is_fork
        })
    };
    let may_be_last = |name: &NodeName| !is_older_copy || has_seen_more(name);
    let last = states.find(|(name, state)| may_be_last(name) && all_go_on_to(state));
    last.ok_or_else(|| {
        let some = testimonies.iter().filter(|(_, t)| !t.is_blank());
        RecoverError::Foundings(some.map(|(name, _)| name.clone()).collect())
    })
}

/// The doubt about a backend that gets writes by `last`: it may have missed writes, or be the
/// only one that has some. A backend that is out gets none.
fn doubt(
    last: &State,
    name: &NodeName,
    backend: Backend,
    testimonies: &Testimonies,
) -> Option<Doubt> {
    if backend.status == Status::Out {
        return None;
    }
    let Some(testimony) = testimonies.get(name) else {
        return Some(Doubt::Silent);
    };
    let is_its_store = match backend.store {
        // The state does not know the store yet. The store has to have been in the cluster.
        0 => !testimony.is_blank(),
        store => store == testimony.store,
    };
    match (is_its_store, testimony.accepts(last)) {
        (false, _) => Some(Doubt::OtherStore),
        (true, false) => Some(Doubt::OtherState),
        (true, true) => None,
    }
}

fn later_than_all(present: Option<&State>, testimonies: &Testimonies) -> Result<u64, RecoverError> {
    let noted = testimonies.values().map(|testimony| testimony.epoch);
    let states = states(testimonies).map(|(_, state)| state).chain(present);
    let last = noted.chain(states.map(|state| state.epoch)).max();
    last.unwrap_or_default()
        .checked_add(GAP)
        .ok_or(RecoverError::UsedUp)
}
