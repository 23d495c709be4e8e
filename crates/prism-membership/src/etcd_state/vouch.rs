//! Compares the contents of etcd with what this node and the stores remember, and notes what
//! this node is about to act by. While the contents are in doubt the node publishes what it
//! remembers.
//!
//! Not here: the rules (`prism_cluster::Contents`), and the recovered state
//! (`prism_cluster::recover`).

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Context;
use prism_cluster::{Fault, LineageMark, Memory};
use prism_etcd::{Change, LeaseId};

use super::etcd::{CHANGES_AT_ONCE, Key};
use super::{ClusterRecords, Me, PAUSE, Participant, replace};
use crate::StoreMarks;
use crate::noted;

impl Participant {
    /// Whether this node may act by the contents of etcd, which have to have the change `mark`.
    /// Publishes and logs a new fault.
    pub(super) fn is_trusted(&self, known: &ClusterRecords, mark: Option<LineageMark>) -> bool {
        let memory = self.memory().map(|memory| Memory { mark, ..memory });
        let found = known.contents().fault(memory.as_ref());
        let is_new = replace(&self.channels.fault, found.clone());
        if let Some(fault) = found.as_ref().filter(|_| is_new) {
            tracing::error!(%fault, "this node serves nothing");
        }
        found.is_none()
    }

    /// Notes the contents, so that no older copy of them is acted by; durably at a backend.
    pub(super) async fn note(&self, known: &ClusterRecords) -> anyhow::Result<()> {
        let mark = known.lineage.as_ref().map(|(lineage, _)| lineage.mark());
        let (Some(_), Some(mark)) = (&self.me, mark) else {
            return Ok(());
        };
        // The probe and the watch may both have news.
        let _one = self.noting.lock().await;
        let are_marks_due = self.note_marks(known);
        let (users, marks) = {
            let noted = self.noted.borrow();
            if noted.mark.is_some_and(|noted| noted.count > mark.count) {
                return Ok(());
            }
            let are_known = self.noted_users.get() == Some(known.users_in_etcd());
            if noted.mark == Some(mark) && are_known && !are_marks_due {
                self.channels.settled.lock().note(mark, Instant::now());
                return Ok(());
            }
            let present = self.channels.users.borrow().clone();
            let users = (!are_known).then(|| noted::note(&noted.users, &present, known));
            let users = users.filter(|users| *users != noted.users);
            (users, noted.marks.clone())
        };
        if let Some(store) = self.store.clone() {
            let users = users.clone();
            let noting =
                tokio::task::spawn_blocking(move || store.note(mark, &marks, users.as_ref()));
            noting.await?.context("cannot note a change of etcd")?;
        }
        let mut noted = self.noted.borrow_mut();
        noted.mark = Some(mark);
        if let Some(users) = users {
            noted.users = users;
        }
        self.noted_at.set(Some(Instant::now()));
        self.has_unsaved_marks.set(false);
        self.noted_users.set(Some(known.users_in_etcd()));
        self.ledger.note(mark);
        self.channels.settled.lock().note(mark, Instant::now());
        Ok(())
    }

    /// Notes the marks of stores in memory. Returns whether it is time to make them durable.
    fn note_marks(&self, known: &ClusterRecords) -> bool {
        let mut noted = self.noted.borrow_mut();
        let marks = latest_marks(&noted.marks, known);
        if noted.marks != marks {
            noted.marks = marks;
            self.has_unsaved_marks.set(true);
        }
        let at = self.noted_at.get();
        let is_time = at.is_none_or(|at| at.elapsed() >= self.lease_ttl());
        self.has_unsaved_marks.get() && is_time
    }

    /// Publishes what this node remembers while the contents are in doubt. Never returns.
    pub(super) async fn vouch(&self) {
        let Some(me) = &self.me else {
            return std::future::pending().await;
        };
        let mut news = self.channels.known.subscribe();
        let mut testimony = self.channels.testimony.subscribe();
        let mut lease = None;
        loop {
            let known = news.borrow_and_update().clone();
            testimony.borrow_and_update();
            if let Err(error) = self.say(me, &known, &mut lease).await {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "cannot publish what this node remembers"
                );
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            tokio::select! {
                _ = news.changed() => {}
                _ = testimony.changed() => {}
                () = tokio::time::sleep(self.lease_ttl() / 3), if lease.is_some() => {}
            }
        }
    }

    /// Publishes the claims, under a lease that this renews, or takes them back. A claim that an
    /// older copy of etcd has from an earlier doubt therefore ends by itself.
    async fn say(
        &self,
        me: &Me,
        known: &ClusterRecords,
        lease: &mut Option<LeaseId>,
    ) -> anyhow::Result<()> {
        if !self.is_asked(known) {
            if let Some(lease) = lease.take() {
                // It ends by itself if this fails.
                let _ = self.client().revoke(lease).await;
            }
            self.change_all(&self.withdrawn(me, known)).await?;
            return self.restore_marks(known).await;
        }
        self.restore_marks(known).await?;
        let renewed = match *lease {
            Some(id) => self.client().keep_alive(id).await?.map(|_| id),
            None => None,
        };
        let id = match renewed {
            Some(id) => id,
            None => self.client().grant(self.lease_ttl()).await?.0,
        };
        *lease = Some(id);
        // Claims under another lease end with that one.
        let none = ClusterRecords::default();
        let published = renewed.map_or(&none, |_| known);
        let changes = self.claims(me, known, published)?.into_iter();
        let changes: Vec<_> = changes.map(|change| change.under(id)).collect();
        self.change_all(&changes).await
    }

    /// Whether the other nodes need to hear what this one remembers.
    fn is_asked(&self, known: &ClusterRecords) -> bool {
        let fault = self.channels.fault.borrow();
        match &*fault {
            // A foreign store concerns this node only.
            Some(Fault::Foreign) => false,
            Some(_) => true,
            None => known.contents().are_contradicted(),
        }
    }

    async fn change_all(&self, changes: &[Change]) -> anyhow::Result<()> {
        for some in changes.chunks(CHANGES_AT_ONCE) {
            self.client().change(&[], some).await?;
        }
        Ok(())
    }

    /// The changes of the `published` claims that make them the present ones. The claim about the
    /// lineage comes last, so that whoever finds it finds the others.
    fn claims(
        &self,
        me: &Me,
        known: &ClusterRecords,
        published: &ClusterRecords,
    ) -> anyhow::Result<Vec<Change>> {
        let keys = self.keys();
        let name = me.name.as_str();
        let mut changes = Vec::new();
        let users = {
            let noted = self.noted.borrow();
            noted.mark.map(|_| noted::claims(&noted.users, known))
        };
        let users = users.unwrap_or_default();
        let present = published.user_claims.get(&me.name);
        for (user, claim) in &users {
            if present.and_then(|present| present.get(user)) != Some(claim) {
                changes.push(keys.put(&Key::UserClaim(name, user), claim)?);
            }
        }
        let present: BTreeSet<_> = present.iter().flat_map(|claims| claims.keys()).collect();
        let over = present
            .into_iter()
            .filter(|user| !users.contains_key(*user));
        changes.extend(over.map(|user| Change::Delete(keys.path(&Key::UserClaim(name, user)))));
        let Some(memory) = self.memory() else {
            return Ok(changes);
        };
        if let Some(testimony) = &memory.testimony
            && published.testimonies.get(&me.name) != Some(testimony)
        {
            changes.push(keys.put(&Key::Testimony(name), testimony)?);
        }
        if let Some(claim) = memory.claim()
            && published.claims.get(&me.name) != Some(&claim)
        {
            changes.push(keys.put(&Key::Claim(name), &claim)?);
        }
        Ok(changes)
    }

    /// The changes that take this node's claims back.
    fn withdrawn(&self, me: &Me, known: &ClusterRecords) -> Vec<Change> {
        let keys = self.keys();
        let name = me.name.as_str();
        let testimony = known.testimonies.get(&me.name);
        let testimony = testimony.map(|_| Key::Testimony(name));
        let claim = known.claims.get(&me.name).map(|_| Key::Claim(name));
        let users = known.user_claims.get(&me.name).into_iter().flatten();
        let users = users.map(|(user, _)| Key::UserClaim(name, user));
        let gone = testimony.into_iter().chain(claim).chain(users);
        gone.map(|key| Change::Delete(keys.path(&key))).collect()
    }

    /// The memory of this node; `None` for an observer.
    pub(super) fn memory(&self) -> Option<Memory> {
        Some(Memory {
            name: self.me.as_ref()?.name.clone(),
            testimony: self.channels.testimony.borrow().clone(),
            mark: self.ledger.mark(),
        })
    }
}

/// The later ones of the noted marks and those in etcd. A mark of another store replaces the
/// noted one if the state has that store.
fn latest_marks(noted: &StoreMarks, known: &ClusterRecords) -> StoreMarks {
    let mut marks = noted.clone();
    let state = known.state.as_ref().map(|(state, _)| state);
    for (name, (mark, _)) in &known.store_marks {
        let is_of_state = state.is_some_and(|state| state.is_store_of(name.as_str(), mark.store));
        let is_later = marks.get(name).is_none_or(|noted| {
            if noted.store == mark.store {
                mark.may_continue(noted)
            } else {
                is_of_state
            }
        });
        if is_later {
            marks.insert(name.clone(), *mark);
        }
    }
    marks
}
