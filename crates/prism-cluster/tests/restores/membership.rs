//! A node and etcd: it follows it, holds a lease, claims what it remembers, and makes
//! steps. Each function mirrors one of `crates/prism-membership/src/etcd_state`.

use std::collections::BTreeMap;

use prism_cluster::{
    Backend, Claim, Fault, NodeName, State, Status, StoreMark, View, latest_state, step,
};

use crate::Mutation;
use crate::etcd::{Etcd, Living, claims_of_users, latest_marks, note_users};
use crate::node::{Process, Store};
use crate::world::{Found, LEASE, World};

impl World {
    /// `follow.rs`: the node hears of etcd as it is now.
    pub(crate) fn hear(&mut self, at: usize) -> Found {
        if self.nodes[at].is_cut || self.nodes[at].process.is_none() {
            return Ok(());
        }
        self.end_due_note(at);
        let known = self.etcd.clone();
        self.check_store(at, &known)?;
        let fault = self.nodes[at].fault_of(&known, self.mutation);
        if fault.is_some() && !self.was_etcd_reverted {
            let name = &self.nodes[at].name;
            return Err(format!("{name} finds {fault:?} without a cause"));
        }
        let store = self.nodes[at].store.as_ref();
        if fault == Some(Fault::Foreign) && store.is_some_and(|s| s.has_gone_on_from(&known)) {
            let name = &self.nodes[at].name;
            return Err(format!("{name} takes its own cluster for another one"));
        }
        let is_trusted = fault.is_none();
        self.met.faults += u64::from(!is_trusted);
        if is_trusted {
            self.note_or_defer(at, &known);
            self.act_by_users(at, &known)?;
        }
        let now = self.now;
        let node = &mut self.nodes[at];
        let saved = node.store.as_ref().and_then(|store| store.state.clone());
        let Some(process) = &mut node.process else {
            return Ok(());
        };
        process.fault = fault;
        (process.heard_at, process.known) = (now, known);
        let state = match (is_trusted, process.view.is_some()) {
            (true, _) => process.known.state().cloned(),
            (false, true) => None,
            (false, false) => saved,
        };
        if let Some(state) = state {
            process.show(state);
        }
        match is_trusted {
            true => {
                process.users_until = now + LEASE;
                self.follow_bucket(at)
            }
            // `hold` ends the lease at a fault.
            false => {
                process.lease_until = 0;
                Ok(())
            }
        }
    }

    fn end_due_note(&mut self, at: usize) {
        let process = self.nodes[at].process.as_mut();
        if let Some(process) = process.filter(|process| process.is_note_due) {
            process.is_note_due = false;
            let known = process.known.clone();
            self.note(at, &known);
        }
    }

    fn note_or_defer(&mut self, at: usize, known: &Etcd) {
        match self.is(Mutation::NotedAfter) {
            true => self.process(at).is_note_due = true,
            false => self.note(at, known),
        }
    }

    /// `older_copy.rs`: an older copy of a store becomes another store.
    fn check_store(&mut self, at: usize, known: &Etcd) -> Found {
        let node = &self.nodes[at];
        let (Some(store), Some((mark, _))) = (&node.store, known.marks.get(&node.name)) else {
            return Ok(());
        };
        if mark.store != store.identity || node.has_lived(mark, self.mutation) {
            return Ok(());
        }
        if !self.reverted_stores.contains(&at) {
            return Err(format!("{} is taken for an older copy", node.name));
        }
        self.met.renewed += 1;
        if self.is(Mutation::KeepsIdentity) {
            return Ok(());
        }
        self.unnoticed.remove(&at);
        self.outstanding.remove(&at);
        let identity = self.number();
        self.commit(at, |store| store.identity = identity);
        let process = self.process(at);
        (process.lease_until, process.caught_up) = (0, 0);
        Ok(())
    }

    /// `vouch.rs`: notes the contents, durably at a backend.
    fn note(&mut self, at: usize, known: &Etcd) {
        let (now, mutation) = (self.now, self.mutation);
        let clock = self.clock();
        let process = self.process(at);
        let Some(mark) = known.lineage.as_ref().map(|lineage| lineage.mark()) else {
            return;
        };
        process.settled.note(mark, clock);
        let marks = match mutation {
            Some(Mutation::MarksNotNoted) => BTreeMap::new(),
            _ => latest_marks(&process.noted.marks, known),
        };
        let users = note_users(&process.noted.users, &process.users, known, mutation);
        let is_time = process.noted_at.is_none_or(|at| at + LEASE <= now);
        let has_marks = process.noted.marks == marks || !is_time;
        if process.noted.mark == Some(mark) && process.noted.users == users && has_marks {
            return;
        }
        process.noted.mark = Some(mark);
        process.noted.users = users;
        process.noted.marks = marks;
        process.noted_at = Some(now);
        let noted = process.noted.clone();
        if self.nodes[at].store.is_some() {
            let (reported, history) = (known.reported.clone(), known.history.clone());
            self.commit(at, |store| {
                (store.noted, store.history) = (noted, history);
                store.others.extend(reported);
            });
        }
    }

    /// From now on the node admits the users that it has heard of. They must not be older than
    /// those by which it has acted before.
    fn act_by_users(&mut self, at: usize, known: &Etcd) -> Found {
        if known.state.is_none() {
            return Ok(());
        }
        let users = known.users.iter();
        self.process(at).users = users.map(|(name, (user, _))| (*name, *user)).collect();
        let node = &mut self.nodes[at];
        for (user, change) in known.user_changes.iter().enumerate() {
            let present = known.users.get(&user).map(|(user, _)| *user);
            let (before, value) = node.acted()[user];
            if *change < before && present != value && present.is_some() {
                let name = &node.name;
                return Err(format!(
                    "{name} admits user {user} as {present:?} of change {change}, and has acted by {value:?} of {before}"
                ));
            }
            node.acted()[user] = (*change, present);
        }
        Ok(())
    }

    /// `fence.rs`: the store saves the state that it acts by from now on.
    pub(crate) fn adopt(&mut self, at: usize) {
        let Some(process) = &mut self.nodes[at].process else {
            return;
        };
        let Some(state) = process.shown.take() else {
            return;
        };
        process.view = View::new(state.clone()).ok();
        if self.nodes[at].store.is_some() {
            let last = self.last_adopted.as_ref();
            if last.is_none_or(|last| last.epoch < state.epoch) {
                self.last_adopted = Some(state.clone());
            }
            self.commit(at, |store| {
                store.epoch = store.epoch.max(state.epoch);
                store.state = Some(state);
            });
        }
    }

    /// `hold.rs`: obtains or renews the lease, and publishes the report and the mark under it.
    pub(crate) fn hold(&mut self, at: usize) {
        let Some(mut report) = self.nodes[at].report() else {
            return;
        };
        let (now, name) = (self.now, self.nodes[at].name.clone());
        let process = self.process(at);
        let has_lease = now < process.lease_until;
        let is_ready = process.fault.is_none()
            && process.known.state.is_some()
            && process.known.epoch() == report.epoch;
        let (lease, is_marked) = (process.lease, now >= process.marked_at + LEASE);
        let expected = process.known.state.as_ref().map(|(_, revision)| *revision);
        if self.nodes[at].is_cut || !(has_lease || is_ready) {
            return;
        }
        let is_alive = self.etcd.living.get(&name).map(|l| l.lease) == Some(lease);
        if has_lease {
            if !is_alive {
                self.process(at).lease_until = 0;
                return;
            }
            let published = self.etcd.living.get(&name).map(|l| l.report.caught_up);
            let published = published.unwrap_or(0);
            let is_early = self.is(Mutation::CaughtUpUnmarked);
            if report.caught_up != published && !is_early && !self.publish_mark(at) {
                report.caught_up = published;
            }
            if is_marked {
                self.process(at).marked_at = now;
                self.publish_mark(at);
            }
        } else {
            let is_same = self.etcd.state.as_ref().map(|(_, revision)| *revision) == expected;
            let is_early = self.is(Mutation::LeaseBeforeMark);
            if !is_same || !(is_early || self.publish_mark(at)) {
                return;
            }
            if is_early {
                self.remember_progress(at);
            }
            let lease = self.number();
            let process = self.process(at);
            (process.lease, process.marked_at) = (lease, now);
            self.met.leases += 1;
        }
        let lease = self.process(at).lease;
        self.process(at).lease_until = now + LEASE - 1;
        let until = now + LEASE;
        let living = Living {
            lease,
            until,
            report,
        };
        self.etcd.living.insert(name, living);
        self.etcd.next_revision();
    }

    /// `older_copy.rs`, `store_mark`: false if etcd has another mark than the node has heard of.
    fn publish_mark(&mut self, at: usize) -> bool {
        let node = &self.nodes[at];
        let (Some(store), Some(process)) = (&node.store, &node.process) else {
            return false;
        };
        let (name, mark) = (node.name.clone(), store.mark());
        let backend = process.known.state().and_then(|s| s.backends.get(&name));
        if backend.is_some_and(|backend| ![0, mark.store].contains(&backend.store)) {
            return true;
        }
        let heard = process
            .known
            .marks
            .get(&name)
            .map(|(_, revision)| *revision);
        if self.etcd.marks.get(&name).map(|(_, revision)| *revision) != heard {
            return false;
        }
        self.forgive_if_nobody_could_tell(at);
        self.remember_progress(at);
        let revision = self.etcd.next_revision();
        self.etcd.marks.insert(name, (mark, revision));
        true
    }

    /// For the checks: by the rules this is reported now.
    fn remember_progress(&mut self, at: usize) {
        let node = &self.nodes[at];
        if let Some(store) = &node.store {
            let progress = store.progress();
            self.etcd.reported.insert(node.name.clone(), progress);
        }
    }

    /// `vouch.rs`: says what the node remembers, or takes it back, and puts marks back.
    pub(crate) fn say(&mut self, at: usize) {
        let node = &self.nodes[at];
        let Some(process) = node.process.as_ref().filter(|_| !node.is_cut) else {
            return;
        };
        let is_asked = match process.fault {
            Some(Fault::Foreign) => false,
            Some(_) => true,
            None => process.known.contents().are_contradicted(),
        };
        let name = node.name.clone();
        if is_asked {
            let (mark, noted) = (process.noted.mark, &process.noted.users);
            let claims = mark.map(|_| claims_of_users(noted, &process.known));
            let testimony = node.store.as_ref().map(Store::testimony);
            let store = testimony.as_ref().map_or(0, |testimony| testimony.store);
            let claim = mark.map(|mark| Claim { store, mark });
            self.etcd
                .user_claims
                .insert(name.clone(), claims.unwrap_or_default());
            if let Some(testimony) = testimony {
                self.etcd.testimonies.insert(name.clone(), testimony);
            }
            if let Some(claim) = claim {
                self.etcd.claims.insert(name.clone(), claim);
            }
        } else {
            self.etcd.testimonies.remove(&name);
            self.etcd.claims.remove(&name);
            self.etcd.user_claims.remove(&name);
        }
        self.etcd.next_revision();
        self.restore_marks(at);
    }

    /// `older_copy.rs`: puts back the marks of other stores that etcd has lost.
    fn restore_marks(&mut self, at: usize) {
        let Some(process) = &self.nodes[at].process else {
            return;
        };
        let own = self.nodes[at].memory();
        let saved = own.testimony.as_ref().and_then(|own| own.state.clone());
        let state = match process.fault {
            Some(Fault::Foreign) => None,
            Some(_) if self.is(Mutation::OwnStateCounts) => saved,
            Some(_) => latest_state(&process.known.contents(), &own),
            None => process.known.state().cloned(),
        };
        let Some(state) = state else {
            return;
        };
        let restored = |name: &NodeName, mark: &StoreMark| {
            let present = process.known.marks.get(name).map(|(present, _)| present);
            let restored = mark.restored(present)?;
            let is_kept = self.is(Mutation::BranchesKept);
            Some(if is_kept { *mark } else { restored })
        };
        let noted = process.noted.marks.iter();
        let of_state = noted.filter(|(name, mark)| state.is_store_of(name.as_str(), mark.store));
        let lost: Vec<_> = of_state
            .filter_map(|(name, mark)| Some((name.clone(), restored(name, mark)?)))
            .collect();
        let heard = process.known.marks.clone();
        if process.heard_at > self.restored_at {
            let told = self.told_stores(&state).into_iter();
            self.have_told.extend(told.map(|store| (at, store)));
        }
        for (name, mark) in lost {
            let revision = |marks: &BTreeMap<NodeName, (StoreMark, u64)>| {
                marks.get(&name).map(|(_, revision)| *revision)
            };
            if revision(&heard) == revision(&self.etcd.marks) {
                let revision = self.etcd.next_revision();
                self.etcd.marks.insert(name, (mark, revision));
                self.met.marks_put_back += 1;
            }
        }
    }

    /// For the checks: the reverted stores whose marks a node can put back by this state.
    fn told_stores(&self, state: &State) -> Vec<usize> {
        let is_named = |at: &usize| {
            let node = &self.nodes[*at];
            let store = node.store.as_ref();
            store.is_some_and(|store| state.is_store_of(node.name.as_str(), store.identity))
        };
        self.outstanding.iter().copied().filter(is_named).collect()
    }

    /// `act.rs`: makes the cluster's next step.
    pub(crate) fn act(&mut self, at: usize) {
        let Some(next) = self.next_step(at) else {
            return;
        };
        if !self.may_change(at) {
            return;
        }
        self.met.steps += 1;
        self.fork.has_steps |= self.reverted_since.is_some();
        self.check_marked(&next);
        let revision = self.raise();
        self.etcd.state = Some((next, revision));
    }

    /// A backend that has caught up has reported its mark. A restored etcd may lack that.
    fn check_marked(&mut self, next: &State) {
        let Some(state) = self.etcd.state().filter(|_| self.reverted_since.is_none()) else {
            return;
        };
        let has_caught_up = |(name, backend): &(&NodeName, &Backend)| {
            backend.status == Status::InSync && state.status(name.as_str()) == Some(Status::Lagging)
        };
        let marks = &self.etcd.marks;
        let is_unmarked = |(name, backend): &(&NodeName, &Backend)| {
            marks.get(*name).map(|(mark, _)| mark.store) != Some(backend.store)
        };
        let mut unmarked = next
            .backends
            .iter()
            .filter(has_caught_up)
            .filter(is_unmarked);
        if let Some((name, _)) = unmarked.next() {
            self.broken = Some(format!("{name} is in sync without a mark"));
        }
    }

    /// The step by what the node has heard, if its conditions hold.
    fn next_step(&self, at: usize) -> Option<State> {
        let node = &self.nodes[at];
        let process = node.process.as_ref().filter(|_| !node.is_cut)?;
        let known = &process.known;
        if self.now >= process.lease_until || !known.living.contains_key(&node.name) {
            return None;
        }
        let (state, revision) = known.state.as_ref()?;
        let next = step(state, &known.live(), known.wish.as_ref())?;
        let is_out =
            |state: &State, name: &NodeName| state.status(name.as_str()) == Some(Status::Out);
        let takes_out = |name: &NodeName| is_out(&next, name) && !is_out(state, name);
        let is_early = self.now < process.begun + LEASE && next.backends.keys().any(takes_out);
        let mut all = state.backends.keys().chain(next.backends.keys());
        let has_begun = |name: &NodeName| {
            !known.living.contains_key(name) && self.etcd.living.contains_key(name)
        };
        let is_same = self.etcd.state.as_ref().map(|(_, at)| at) == Some(revision);
        let may = is_same && !is_early && !all.any(has_begun);
        may.then_some(next)
    }

    /// `ledger.rs`: whether the contents descend from those that the node has acted by.
    pub(crate) fn may_change(&mut self, at: usize) -> bool {
        let Some(process) = &self.nodes[at].process else {
            return false;
        };
        let mark = process.noted.mark;
        let may = self.etcd.descends_from(mark) || self.is(Mutation::ChangeUnconditional);
        if may && !self.etcd.has(mark) {
            let name = &self.nodes[at].name;
            self.broken = Some(format!("{name} changes an older copy than it has acted by"));
        }
        may
    }

    pub(crate) fn raise(&mut self) -> u64 {
        let id = self.number();
        self.etcd.raise(id)
    }

    pub(crate) fn process(&mut self, at: usize) -> &mut Process {
        self.nodes[at].process.as_mut().unwrap()
    }

    /// A commit of a backend's store.
    pub(crate) fn commit(&mut self, at: usize, change: impl FnOnce(&mut Store)) {
        let number = self.number();
        if let Some(store) = &mut self.nodes[at].store {
            change(store);
            store.commits.push(number);
        }
    }
}
