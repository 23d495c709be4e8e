//! A node: its store, if it is a backend, and its process, if it runs.

use std::collections::BTreeMap;

use prism_cluster::replica::Bucket;
use prism_cluster::{
    Claims, Contents, Fault, Lineage, Memory, NodeName, Report, SettledMark, State, StoreLife,
    StoreMark, Testimonies, Testimony, View,
};

use crate::Mutation;
use crate::etcd::{Etcd, Noted, Progress, USERS, User};

/// A backend's store, as it is on the disk. A clone is a copy of its directory.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) identity: u64,
    pub(crate) life: StoreLife,
    pub(crate) opening: (u64, u64),
    pub(crate) state: Option<State>,
    pub(crate) epoch: u64,
    pub(crate) noted: Noted,
    pub(crate) record: Option<Bucket>,
    pub(crate) objects: BTreeMap<usize, u64>,
    /// Every commit has a number of its own, for the checks.
    pub(crate) commits: Vec<u64>,
    /// For the checks: the progress of other stores that the rules have this one note.
    pub(crate) others: BTreeMap<NodeName, Progress>,
    /// For the checks: every change on the way to the contents that the store has noted.
    pub(crate) history: Vec<u64>,
    /// For the checks: the users by which the node has acted.
    pub(crate) acted: Acted,
}

/// The last change of each user, and the user after it.
pub(crate) type Acted = [(u64, Option<User>); USERS];

impl Store {
    pub(crate) fn new(identity: u64) -> Self {
        Self {
            identity,
            life: StoreLife::default(),
            opening: (0, 0),
            state: None,
            epoch: 1,
            noted: Noted::default(),
            record: None,
            objects: BTreeMap::new(),
            commits: Vec::new(),
            others: BTreeMap::new(),
            history: Vec::new(),
            acted: Acted::default(),
        }
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.len() as u64
    }

    /// Lists the opening before any commit of it.
    pub(crate) fn open(&mut self, id: u64) {
        let number = self.opening.0 + 1;
        self.life.begin(number, (id, self.commits()).into());
        self.opening = (number, id);
    }

    pub(crate) fn mark(&self) -> StoreMark {
        StoreMark {
            store: self.identity,
            opening: self.opening.0,
            id: self.opening.1,
            found: self.found(),
            commits: self.commits(),
        }
    }

    fn found(&self) -> u64 {
        let present = self.life.openings().get(&self.opening.0);
        present.map_or(0, |opening| opening.commits)
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            store: self.identity,
            commits: self.commits.len(),
            last: self.commits.last().copied().unwrap_or(0),
        }
    }

    /// The truth about `has_lived`.
    pub(crate) fn has_all(&self, progress: &Progress) -> bool {
        let last = progress.commits.checked_sub(1);
        let is_there = last.is_none_or(|last| self.commits.get(last) == Some(&progress.last));
        progress.store != self.identity || is_there
    }

    /// Whether the contents of etcd are an older copy of those that the store has noted.
    pub(crate) fn has_gone_on_from(&self, etcd: &Etcd) -> bool {
        self.history.len() > etcd.history.len() && self.history.starts_with(&etcd.history)
    }

    pub(crate) fn testimony(&self) -> Testimony {
        Testimony {
            store: self.identity,
            epoch: self.epoch,
            state: self.state.clone(),
        }
    }
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Process {
    /// The contents of etcd as it last heard of them.
    pub(crate) known: Etcd,
    pub(crate) fault: Option<Fault>,
    pub(crate) noted: Noted,
    /// The users by which it admits requests, until `users_until`.
    pub(crate) users: BTreeMap<usize, User>,
    pub(crate) users_until: u64,
    /// The state to adopt next.
    pub(crate) shown: Option<State>,
    /// The view that it acts by.
    pub(crate) view: Option<View>,
    pub(crate) lease: u64,
    pub(crate) lease_until: u64,
    pub(crate) marked_at: u64,
    pub(crate) noted_at: Option<u64>,
    pub(crate) heard_at: u64,
    pub(crate) begun: u64,
    pub(crate) caught_up: u64,
    /// Only with [`Mutation::NotedAfter`].
    pub(crate) is_note_due: bool,
    /// The noted change that every node has to know which it asks.
    pub(crate) settled: SettledMark,
}

impl Process {
    pub(crate) fn new(now: u64, noted: Noted) -> Self {
        Self {
            known: Etcd::default(),
            fault: None,
            noted,
            users: BTreeMap::new(),
            users_until: 0,
            shown: None,
            view: None,
            lease: 0,
            lease_until: 0,
            marked_at: now,
            noted_at: None,
            heard_at: now,
            begun: now,
            caught_up: 0,
            is_note_due: false,
            settled: SettledMark::default(),
        }
    }

    pub(crate) fn view_epoch(&self) -> u64 {
        self.view.as_ref().map_or(0, View::epoch)
    }

    /// Mirrors `Participant::show`.
    pub(crate) fn show(&mut self, state: State) {
        let before = self.shown.as_ref().or(self.view.as_ref().map(View::state));
        let is_later = before.is_none_or(|before| {
            state.epoch > before.epoch && state.succeeds(before.founding, before.epoch)
        });
        if is_later {
            self.shown = Some(state);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: NodeName,
    pub(crate) is_cut: bool,
    /// None for a frontend.
    pub(crate) store: Option<Store>,
    pub(crate) process: Option<Process>,
    /// For the checks: the users by which a frontend has acted since its start.
    pub(crate) acted: Acted,
}

impl Node {
    pub(crate) fn acted(&mut self) -> &mut Acted {
        match &mut self.store {
            Some(store) => &mut store.acted,
            None => &mut self.acted,
        }
    }

    pub(crate) fn report(&self) -> Option<Report> {
        let (store, process) = (self.store.as_ref()?, self.process.as_ref()?);
        Some(Report {
            store: store.identity,
            epoch: process.view_epoch(),
            caught_up: process.caught_up,
            ..Report::default()
        })
    }

    /// Mirrors `Participant::memory`.
    pub(crate) fn memory(&self) -> Memory {
        Memory {
            name: self.name.clone(),
            testimony: self.store.as_ref().map(Store::testimony),
            mark: self.process.as_ref().and_then(|process| process.noted.mark),
        }
    }

    /// Mirrors `Participant::is_trusted`.
    pub(crate) fn fault_of(&self, known: &Etcd, mutation: Option<Mutation>) -> Option<Fault> {
        let mut own = self.memory();
        let (nothing, nobody) = (Claims::new(), Testimonies::new());
        let contents = known.contents();
        match mutation {
            Some(Mutation::LineageIgnored) => {
                let claims = &nothing;
                own.mark = None;
                Contents { claims, ..contents }.fault(Some(&own))
            }
            Some(Mutation::CountOnly) => {
                let lineage = known.lineage.as_ref().map(only_its_count);
                let lineage = lineage.as_ref();
                Contents {
                    lineage,
                    ..contents
                }
                .fault(Some(&own))
            }
            Some(Mutation::ClaimsUnheard) => Contents {
                claims: &nothing,
                testimonies: &nobody,
                ..contents
            }
            .fault(Some(&own)),
            Some(Mutation::UnnamedForeign) if self.is_unnamed(known) => Some(Fault::Foreign),
            _ => contents.fault(Some(&own)),
        }
    }

    /// Whether the state neither succeeds that of the store nor names the store.
    fn is_unnamed(&self, known: &Etcd) -> bool {
        let (Some(store), Some(state)) = (&self.store, known.state()) else {
            return false;
        };
        let is_named = state.is_store_of(self.name.as_str(), store.identity);
        !is_named && !store.testimony().accepts(state)
    }

    /// Whether the store is the one that reported the mark.
    pub(crate) fn has_lived(&self, mark: &StoreMark, mutation: Option<Mutation>) -> bool {
        let Some(store) = &self.store else {
            return true;
        };
        match mutation {
            Some(Mutation::MarkIgnored) => true,
            Some(Mutation::CommitsOnly) => store.commits() >= mark.commits,
            _ => store.life.has_lived(mark, store.commits()),
        }
    }

    /// Whether it has the store that its view names, and a lease.
    pub(crate) fn serves(&self, now: u64) -> bool {
        let (Some(store), Some(process)) = (&self.store, &self.process) else {
            return false;
        };
        let view = process.view.as_ref();
        let is_known = |v: &View| v.state().is_store_of(self.name.as_str(), store.identity);
        now < process.lease_until && view.is_some_and(is_known)
    }
}

/// A lineage that descends from every change with a smaller count.
fn only_its_count(lineage: &Lineage) -> Lineage {
    let mark = lineage.mark();
    let text = format!(r#"{{"count":{},"ids":[{}]}}"#, mark.count, mark.id);
    serde_json::from_str(&text).unwrap()
}
