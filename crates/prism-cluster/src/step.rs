//! The next state of a cluster, by who lives and what they report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    placement::NodeName,
    state::{Backend, Phase, Placing, State, Status},
};

/// What a backend that lives says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The epoch that it has adopted: it acts by no earlier one any more.
    pub epoch: u64,
    /// It has everything that it was to fetch by this epoch; 0: never.
    pub caught_up: u64,
}

/// Those that live, with their last reports.
pub type Live = BTreeMap<NodeName, Report>;

/// The state after `state`, if there is one: at most one thing changes.
///
/// Whoever is not in `live` must not serve any more. `wish` is the placing that
/// is wanted, if one is.
#[must_use]
pub fn step(state: &State, live: &Live, wish: Option<&Placing>) -> Option<State> {
    let adopted = |name| {
        live.get(name)
            .is_none_or(|report: &Report| report.epoch >= state.epoch)
    };
    if !state.backends.keys().all(adopted) {
        return None;
    }
    let mut next = state.clone();
    next.epoch += 1;
    change(state, live, wish, &mut next).then_some(next)
}

/// Whether something has changed.
fn change(state: &State, live: &Live, wish: Option<&Placing>, next: &mut State) -> bool {
    if let Some((name, status)) = state
        .backends
        .iter()
        .find_map(|(name, backend)| Some((name, other_status(state, live, name, *backend)?)))
    {
        let since = next.epoch;
        let backend = Backend { status, since };
        next.backends.insert(name.clone(), backend);
        return true;
    }
    match &state.phase {
        Phase::Filling { to, since } => {
            if wish.is_some_and(|wish| wish != to) {
                next.phase = Phase::Settled;
            } else if is_filled(state, live, to, *since) {
                let from = std::mem::replace(&mut next.placing, to.clone());
                next.phase = Phase::Moved { from };
            } else {
                return false;
            }
            retain_members(next);
            true
        }
        Phase::Moved { .. } => {
            next.phase = Phase::Settled;
            retain_members(next);
            true
        }
        Phase::Settled => match wish.filter(|wish| **wish != state.placing) {
            Some(wish) => begin(live, wish, next),
            None => false,
        },
    }
}

/// What a backend's status changes to.
fn other_status(state: &State, live: &Live, name: &NodeName, backend: Backend) -> Option<Status> {
    match (backend.status, live.get(name)) {
        (Status::InSync | Status::Lagging, None) => {
            may_be_missed(state, name).then_some(Status::Out)
        }
        (Status::Out, Some(_)) => Some(Status::Lagging),
        (Status::Lagging, Some(report)) if report.caught_up >= backend.since => {
            Some(Status::InSync)
        }
        _ => None,
    }
}

/// Without this backend every key can be read still, as far as it can be now.
fn may_be_missed(state: &State, name: &NodeName) -> bool {
    let is_in_sync = |name: &NodeName| state.status(name.as_str()) == Some(Status::InSync);
    if !state.placing.members.contains(name) || !is_in_sync(name) {
        return true;
    }
    let members = state.placing.members.iter();
    let missing = members.filter(|name| !is_in_sync(name)).count();
    missing + 1 < usize::from(state.placing.replicas)
}

/// All that hold keys by the new placing have them.
fn is_filled(state: &State, live: &Live, to: &Placing, since: u64) -> bool {
    let missing = to.members.iter().filter(|name| {
        state.status(name.as_str()) != Some(Status::InSync)
            || live
                .get(*name)
                .is_none_or(|report| report.caught_up < since)
    });
    // None may be catching up: it would be in vain.
    missing.count() == 0
}

/// The first step to another placing, if all that are new to it live.
fn begin(live: &Live, wish: &Placing, next: &mut State) -> bool {
    let is_known = |name: &NodeName| next.backends.contains_key(name);
    let new = wish.members.iter().filter(|name| !is_known(name));
    let new: Vec<NodeName> = new.cloned().collect();
    if Placing::new(wish.members.iter().cloned(), wish.replicas).is_err()
        || !new.iter().all(|name| live.contains_key(name))
    {
        return false;
    }
    let since = next.epoch;
    let backend = Backend {
        status: Status::InSync,
        since,
    };
    next.backends
        .extend(new.into_iter().map(|name| (name, backend)));
    next.phase = Phase::Filling {
        to: wish.clone(),
        since,
    };
    true
}

/// Who holds nothing by any placing is not spoken of.
fn retain_members(next: &mut State) {
    let other = next.other().cloned();
    let placing = &next.placing;
    next.backends.retain(|name, _| {
        let is_of = |placing: &Placing| placing.members.contains(name);
        is_of(placing) || other.as_ref().is_some_and(is_of)
    });
}
