//! The next state of a cluster, by the reports of the backends that live.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    placement::NodeName,
    state::{Backend, Phase, Placing, State, Status},
};

/// The report of a backend that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The identity of its store: not 0, and new for each store that is created.
    pub store: u64,
    /// The epoch that it has adopted. It acts by no earlier one any more.
    pub epoch: u64,
    /// The epoch in which it has fetched everything; 0 for none.
    pub caught_up: u64,
    /// It is about to stop, and wants the others to go on without it.
    #[serde(default)]
    pub leaving: bool,
    /// The number of the pause for which it has no write in progress; 0 for none. Safety does
    /// not need it: it spares writes that would meet the next step.
    #[serde(default)]
    pub paused: u64,
}

/// The backends that live, with their last reports.
pub type Live = BTreeMap<NodeName, Report>;

/// The state after `state`, with one change; `None` if there is nothing to change.
///
/// A backend that is not in `live` must not serve any more. `wish` is the placing that the
/// administrator asked for.
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
    // The state comes from outside and may have the last epoch, which has no next one.
    next.epoch = state.epoch.checked_add(1)?;
    change(state, live, wish, &mut next).then_some(next)
}

/// Makes the change in `next`, if there is one.
fn change(state: &State, live: &Live, wish: Option<&Placing>, next: &mut State) -> bool {
    let mut backends = state.backends.iter();
    let other =
        backends.find_map(|(name, backend)| Some((name, other(state, live, name, *backend)?)));
    if let Some((name, backend)) = other {
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

/// The new record of a backend; `None` if it stays.
fn other(state: &State, live: &Live, name: &NodeName, backend: Backend) -> Option<Backend> {
    let since = state.epoch + 1;
    let turned = |status, store| {
        Some(Backend {
            status,
            since,
            store,
        })
    };
    // A backend that is out of reach for a moment may still have its store.
    let has_its_store = |other: &NodeName| {
        let report = live.get(other);
        report.is_none_or(|report| state.is_store_of(other.as_str(), report.store))
    };
    match (backend.status, live.get(name)) {
        (Status::Out, None) => None,
        (Status::Out, Some(report)) if report.leaving => None,
        (Status::Out, Some(report)) => turned(Status::Lagging, report.store),
        (status, Some(report)) if backend.store == 0 => Some(Backend {
            status,
            store: report.store,
            ..backend
        }),
        // It gets every write until no node reads there any more.
        (Status::InSync, Some(report)) if leaves(backend, report) => may_leave(state, live, name)
            .then_some(Backend {
                status: Status::Lagging,
                ..backend
            }),
        (Status::Lagging, Some(report)) if leaves(backend, report) => {
            turned(Status::Out, backend.store)
        }
        (Status::Lagging, Some(report))
            if report.store == backend.store && report.caught_up >= backend.since =>
        {
            // The epoch since which it gets every write stays the same.
            Some(Backend {
                status: Status::InSync,
                ..backend
            })
        }
        (_, Some(report)) if report.store == backend.store => None,
        // It is gone, or has another store.
        _ if may_be_missed(state, name, has_its_store) => turned(Status::Out, backend.store),
        _ => None,
    }
}

/// Whether a backend that lives, with the store that the state has, is about to stop.
fn leaves(backend: Backend, report: &Report) -> bool {
    report.leaving && report.store == backend.store
}

/// Whether the cluster can go on without a backend that leaves: every key is at another
/// backend that has it and lives.
#[must_use]
pub fn may_leave(state: &State, live: &Live, name: &NodeName) -> bool {
    may_be_missed(state, name, |other| {
        let report = live.get(other);
        report.is_some_and(|report| state.is_store_of(other.as_str(), report.store))
    })
}

/// Whether every key is at another backend that is in sync and fulfils `has`.
fn may_be_missed(state: &State, name: &NodeName, has: impl Fn(&NodeName) -> bool) -> bool {
    let is_in_sync = |name: &NodeName| state.status(name.as_str()) == Some(Status::InSync);
    if !state.placing.members.contains(name) || !is_in_sync(name) {
        return true;
    }
    let others = state.placing.members.iter().filter(|other| *other != name);
    let missing = others.filter(|other| !is_in_sync(other) || !has(other));
    missing.count() + 1 < usize::from(state.placing.replicas)
}

/// Whether all members of the new placing have their keys.
fn is_filled(state: &State, live: &Live, to: &Placing, since: u64) -> bool {
    let missing = to.members.iter().filter(|name| {
        state.status(name.as_str()) != Some(Status::InSync)
            || live
                .get(*name)
                .is_none_or(|report| report.caught_up < since)
    });
    // A step would make a member that is catching up begin again.
    missing.count() == 0
}

/// Begins the change to another placing, if all its new members live.
fn begin(live: &Live, wish: &Placing, next: &mut State) -> bool {
    let is_known = |name: &NodeName| next.backends.contains_key(name);
    let new = wish.members.iter().filter(|name| !is_known(name));
    let new: Vec<NodeName> = new.cloned().collect();
    if wish.check().is_err() || !new.iter().all(|name| live.contains_key(name)) {
        return false;
    }
    let since = next.epoch;
    for name in new {
        let backend = Backend {
            status: Status::InSync,
            since,
            store: live.get(&name).map_or(0, |report| report.store),
        };
        next.backends.insert(name, backend);
    }
    next.phase = Phase::Filling {
        to: wish.clone(),
        since,
    };
    true
}

/// Removes the records of backends that are in no placing.
fn retain_members(next: &mut State) {
    let other = next.other().cloned();
    let placing = &next.placing;
    next.backends.retain(|name, _| {
        let is_of = |placing: &Placing| placing.members.contains(name);
        is_of(placing) || other.as_ref().is_some_and(is_of)
    });
}
