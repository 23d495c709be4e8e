//! A cluster's state made anew, where whoever kept it has lost it.
//!
//! Each store has noted the state that it acted by last. The latest of these is what
//! the cluster had agreed on, *if* nobody has gone on without those who say so. A
//! cluster goes on to a later state only if all that live have adopted the one
//! before, and answers by it only through backends in sync. So if every backend that
//! is in sync by the latest state that any store has noted, or that may have become so
//! since because it was catching up, says what it has noted, nothing was answered by a
//! later one; and the state goes on, in a later epoch than any that there can have been.
//! Who was out could have caught up only from one of those.
//!
//! Where one of them says nothing, or has another store by now, there may have been
//! writes of which nobody else knows. Whoever recovers has to name it then.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    placement::NodeName,
    state::{Backend, State, Status},
    testimony::Testimonies,
};

/// So far above every epoch that is known of begins the new one: what was agreed on
/// and adopted by nobody, or by those who say nothing, is below. A cluster that takes a
/// step every minute needs two years for as many.
const GAP: u64 = 1_000_000;
/// Most foundings that one state can replace; each recovery adds one or two.
const REPLACED_MAX: usize = 256;

/// What whoever recovers has decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Whose store is believed where stores belong to different foundings.
    pub of: Option<NodeName>,
    /// Backends that were in sync, or catching up, and are gone on without, though answered writes
    /// may be lost by that.
    pub without: BTreeSet<NodeName>,
    /// The number of the new founding: drawn at random, not 0.
    pub founding: u64,
}

/// Why a backend is not known to be as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// Nothing was heard of its store.
    Silent,
    /// It has another store now.
    OtherStore,
    /// Its store has noted something that does not go on to what is recovered.
    OtherState,
}

/// What a backend is by the recovered state, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It was in sync and has the same store: it has every answered write.
    InSync,
    /// It was lagging, or out: it is brought up to date before it is read.
    Behind,
    /// It was in sync, or catching up, and is gone on without as was decided.
    LeftOut,
}

/// A state to be put where the lost one was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// To be adopted by all.
    pub state: State,
    /// Whose store has noted what it goes on from.
    pub of: NodeName,
    /// The epoch of that.
    pub from_epoch: u64,
    /// Of every backend of the state.
    pub verdicts: BTreeMap<NodeName, Verdict>,
}

/// Why nothing is recovered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// The stores of which it speaks can go on by the state that there is.
    #[error("there is nothing to recover: no store of the cluster contradicts its state")]
    NotNeeded,
    /// There is nothing to go on from.
    #[error("no store has said yet what state it was in: start the backends")]
    NothingSaid,
    /// The one that is to be believed.
    #[error("{0} has not said yet what state its store was in")]
    NotHeard(NodeName),
    /// Stores that do not go back to the same, or forks of it.
    #[error("the stores of {} do not go back to one state", join(.0))]
    Foundings(Vec<NodeName>),
    /// Answered writes may be lost without these.
    #[error("in sync by the last state, or catching up, and not known to be as they were: {}", doubts(.0))]
    Unproven(BTreeMap<NodeName, Doubt>),
    /// It would be gone on without a backend that is in sync.
    #[error("{0} is known to be as it was, or holds nothing: it is not to be left out")]
    NotInDoubt(NodeName),
    /// No backend would be in sync.
    #[error("no backend would be in sync")]
    NobodyLeft,
    /// After very many recoveries, or epochs.
    #[error("the cluster's epochs or foundings are used up")]
    UsedUp,
}

fn join<'a>(names: impl IntoIterator<Item = &'a NodeName>) -> String {
    let names: Vec<&str> = names.into_iter().map(NodeName::as_str).collect();
    names.join(", ")
}

fn doubts(doubts: &BTreeMap<NodeName, Doubt>) -> String {
    let each = doubts.iter().map(|(name, doubt)| match doubt {
        Doubt::Silent => format!("{name} (nothing is heard of it)"),
        Doubt::OtherStore => format!("{name} (it has another store)"),
        Doubt::OtherState => format!("{name} (its store was in another state)"),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The state to go on by, from what stores have noted. `present` is the one that is
/// there, if one is.
///
/// # Errors
/// [`RecoverError`]: it is not needed, or not possible without a decision.
pub fn recover(
    present: Option<&State>,
    said: &Testimonies,
    choice: &Choice,
) -> Result<Recovery, RecoverError> {
    if present.is_some_and(|present| present.contradicted(said).is_none()) {
        return Err(RecoverError::NotNeeded);
    }
    let (of, last) = last_of(said, choice.of.as_ref())?;
    let epoch = later_than_all(present, said)?;
    let mut state = last.clone();
    let (mut verdicts, mut unproven) = (BTreeMap::new(), BTreeMap::new());
    for (name, backend) in &mut state.backends {
        let (verdict, doubt) = match backend.status {
            Status::InSync => (Verdict::InSync, doubt(last, name, *backend, said)),
            Status::Lagging => (Verdict::Behind, doubt(last, name, *backend, said)),
            Status::Out => (Verdict::Behind, None),
        };
        match doubt {
            None => drop(verdicts.insert(name.clone(), verdict)),
            Some(_) if choice.without.contains(name) => {
                (backend.status, backend.since) = (Status::Out, epoch);
                verdicts.insert(name.clone(), Verdict::LeftOut);
            }
            Some(doubt) => drop(unproven.insert(name.clone(), doubt)),
        }
    }
    if !unproven.is_empty() {
        return Err(RecoverError::Unproven(unproven));
    }
    let may_be_left = |name: &&NodeName| match verdicts.get(*name) {
        Some(verdict) => *verdict != Verdict::LeftOut,
        None => true,
    };
    if let Some(name) = choice.without.iter().find(may_be_left) {
        return Err(RecoverError::NotInDoubt(name.clone()));
    }
    let mut members = last.placing.members.iter();
    if !members.any(|name| verdicts.get(name) == Some(&Verdict::InSync)) {
        return Err(RecoverError::NobodyLeft);
    }
    let from_epoch = last.epoch;
    (state.epoch, state.founding) = (epoch, choice.founding);
    let seen = said
        .values()
        .filter_map(|testimony| testimony.state.as_ref());
    for seen in seen.chain(present) {
        state.replaces.insert(seen.founding);
        state.replaces.extend(&seen.replaces);
    }
    match state.replaces.len() > REPLACED_MAX {
        true => Err(RecoverError::UsedUp),
        false => Ok(Recovery {
            state,
            of: of.clone(),
            from_epoch,
            verdicts,
        }),
    }
}

/// The state which all others go on to, and who has noted it.
fn last_of<'a>(
    said: &'a Testimonies,
    of: Option<&NodeName>,
) -> Result<(&'a NodeName, &'a State), RecoverError> {
    let noted = |(name, testimony): (&'a NodeName, &'a crate::Testimony)| {
        Some((name, testimony.state.as_ref()?))
    };
    if let Some(of) = of {
        let found = said.get_key_value(of).and_then(noted);
        return found.ok_or_else(|| RecoverError::NotHeard(of.clone()));
    }
    let all_go_on_to = |last: &State| {
        said.values().all(|testimony| {
            // Two of one founding and epoch that differ are forks of it.
            let is_fork = testimony.state.as_ref().is_some_and(|other| {
                (other.founding, other.epoch) == (last.founding, last.epoch) && other != last
            });
            testimony.accepts(last) && !is_fork
        })
    };
    if said.values().all(|testimony| testimony.state.is_none()) {
        return Err(RecoverError::NothingSaid);
    }
    let mut noted = said.iter().filter_map(noted);
    let last = noted.find(|(_, state)| all_go_on_to(state));
    last.ok_or_else(|| {
        let some = said.iter().filter(|(_, testimony)| !testimony.is_blank());
        RecoverError::Foundings(some.map(|(name, _)| name.clone()).collect())
    })
}

/// Whether a backend that is in sync by `last` may have missed something, or may be the
/// only one that knows of something.
fn doubt(last: &State, name: &NodeName, backend: Backend, said: &Testimonies) -> Option<Doubt> {
    let Some(testimony) = said.get(name) else {
        return Some(Doubt::Silent);
    };
    let is_its_store = match backend.store {
        // Not noted yet: it has to have been in the cluster.
        0 => !testimony.is_blank(),
        store => store == testimony.store,
    };
    match (is_its_store, testimony.accepts(last)) {
        (false, _) => Some(Doubt::OtherStore),
        (true, false) => Some(Doubt::OtherState),
        (true, true) => None,
    }
}

fn later_than_all(present: Option<&State>, said: &Testimonies) -> Result<u64, RecoverError> {
    let noted = said.values().flat_map(|testimony| {
        let state = testimony.state.as_ref().map(|state| state.epoch);
        [Some(testimony.epoch), state]
    });
    let all = noted.chain([present.map(|state| state.epoch)]);
    let last = all.flatten().max().unwrap_or_default();
    last.checked_add(GAP).ok_or(RecoverError::UsedUp)
}
