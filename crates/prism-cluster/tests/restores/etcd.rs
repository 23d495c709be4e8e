//! The contents of etcd, and what nodes note of them. `prism-membership` has the real keys.

use std::collections::BTreeMap;

use prism_cluster::replica::{Ancestry, Bucket};
use prism_cluster::{
    Claims, Contents, Lineage, LineageMark, Live, NodeName, Placing, Report, State, StoreMark,
    Testimonies,
};

use crate::Mutation;

pub(crate) const USERS: usize = 3;

/// A user, who may be limited to one bucket. Secrets are drawn in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) secret: u64,
    pub(crate) is_admin: bool,
}

/// A node's knowledge of a user, where etcd has something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserClaim {
    Deleted,
    OtherSecret,
    OtherRights(bool),
    Missing,
}

/// A noted user: no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotedUser {
    is_admin: bool,
    changed: u64,
    secret_since: u64,
}

pub(crate) type NotedUsers = BTreeMap<usize, NotedUser>;

/// The notes of a node about etcd.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) mark: Option<LineageMark>,
    pub(crate) users: NotedUsers,
    pub(crate) marks: BTreeMap<NodeName, StoreMark>,
}

/// A backend that lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Living {
    pub(crate) lease: u64,
    pub(crate) until: u64,
    pub(crate) report: Report,
}

/// The commits of a store up to some time, for the checks: how many, and the number of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) store: u64,
    pub(crate) commits: usize,
    pub(crate) last: u64,
}

/// All keys, each with the revision of its last change where that counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Etcd {
    pub(crate) revision: u64,
    pub(crate) state: Option<(State, u64)>,
    pub(crate) lineage: Option<Lineage>,
    pub(crate) wish: Option<Placing>,
    pub(crate) living: BTreeMap<NodeName, Living>,
    pub(crate) users: BTreeMap<usize, (User, u64)>,
    pub(crate) bucket: Option<Bucket>,
    pub(crate) ancestry: Option<Ancestry>,
    pub(crate) marks: BTreeMap<NodeName, (StoreMark, u64)>,
    pub(crate) testimonies: Testimonies,
    pub(crate) claims: Claims,
    pub(crate) user_claims: BTreeMap<NodeName, BTreeMap<usize, UserClaim>>,
    /// For the checks: every change on the way to these contents.
    pub(crate) history: Vec<u64>,
    /// For the checks: contents that were recovered descend from all changes up to this number.
    pub(crate) recovered_at: u64,
    /// For the checks: the last change of each user, deletions too.
    pub(crate) user_changes: [u64; USERS],
    /// For the checks: the progress of each store that the rules have it report.
    pub(crate) reported: BTreeMap<NodeName, Progress>,
}

impl Etcd {
    pub(crate) fn state(&self) -> Option<&State> {
        self.state.as_ref().map(|(state, _)| state)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.state().map_or(0, |state| state.epoch)
    }

    pub(crate) fn live(&self) -> Live {
        let living = self.living.iter();
        living.map(|(name, l)| (name.clone(), l.report)).collect()
    }

    pub(crate) fn contents(&self) -> Contents<'_> {
        Contents {
            state: self.state(),
            lineage: self.lineage.as_ref(),
            testimonies: &self.testimonies,
            claims: &self.claims,
        }
    }

    /// A change outside of the lineage.
    pub(crate) fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    /// A change that raises the lineage (`ledger.rs`).
    pub(crate) fn raise(&mut self, id: u64) -> u64 {
        self.lineage = Some(Lineage::next(self.lineage.as_ref(), id));
        self.history.push(id);
        self.next_revision()
    }

    pub(crate) fn descends_from(&self, mark: Option<LineageMark>) -> bool {
        mark.is_none_or(|mark| self.contents().descends_from(mark))
    }

    /// The truth about [`Etcd::descends_from`].
    pub(crate) fn has(&self, mark: Option<LineageMark>) -> bool {
        mark.is_none_or(|mark| mark.id <= self.recovered_at || self.history.contains(&mark.id))
    }

    /// Whether a store of the cluster has claimed something else, for all to hear.
    pub(crate) fn is_claimed_against(&self) -> bool {
        self.contents().fault(None).is_some()
    }

    pub(crate) fn put_user(&mut self, user: usize, value: Option<User>, revision: u64) {
        match value {
            Some(value) => drop(self.users.insert(user, (value, revision))),
            None => drop(self.users.remove(&user)),
        }
    }
}

/// Mirrors `noted::note`: `present` has the users by which the node acts.
pub(crate) fn note_users(
    before: &NotedUsers,
    present: &BTreeMap<usize, User>,
    known: &Etcd,
    mutation: Option<Mutation>,
) -> NotedUsers {
    let noted = known.users.iter().map(|(name, (user, changed))| {
        let former = before.get(name);
        let has_same_secret = former.is_some_and(|former| former.changed == *changed)
            || present.get(name).is_some_and(|p| p.secret == user.secret);
        let since = former.filter(|_| has_same_secret);
        let noted = NotedUser {
            is_admin: user.is_admin,
            changed: *changed,
            secret_since: since.map_or(*changed, |former| former.secret_since),
        };
        (*name, noted)
    });
    match mutation {
        Some(Mutation::DeletionsNotNoted) => before.clone().into_iter().chain(noted).collect(),
        _ => noted.collect(),
    }
}

/// Mirrors `noted::claims`.
pub(crate) fn claims_of_users(noted: &NotedUsers, known: &Etcd) -> BTreeMap<usize, UserClaim> {
    let mut claims = BTreeMap::new();
    for (name, user) in noted {
        let claim = match known.users.get(name) {
            Some((_, revision)) if *revision == user.changed => continue,
            Some((_, revision)) if *revision < user.secret_since || *revision > user.changed => {
                UserClaim::OtherSecret
            }
            Some((present, _)) if present.is_admin == user.is_admin => continue,
            Some(_) => UserClaim::OtherRights(user.is_admin),
            None => UserClaim::Missing,
        };
        claims.insert(*name, claim);
    }
    let unknown = known.users.keys().filter(|name| !noted.contains_key(name));
    claims.extend(unknown.map(|name| (*name, UserClaim::Deleted)));
    claims
}

/// Mirrors `vouch::latest_marks`.
pub(crate) fn latest_marks(
    noted: &BTreeMap<NodeName, StoreMark>,
    known: &Etcd,
) -> BTreeMap<NodeName, StoreMark> {
    let mut marks = noted.clone();
    for (name, (mark, _)) in &known.marks {
        let is_of_state = known
            .state()
            .is_some_and(|state| state.is_store_of(name.as_str(), mark.store));
        let is_later = marks
            .get(name)
            .is_none_or(|noted| match noted.store == mark.store {
                true => mark.may_continue(noted),
                false => is_of_state,
            });
        if is_later {
            marks.insert(name.clone(), *mark);
        }
    }
    marks
}
