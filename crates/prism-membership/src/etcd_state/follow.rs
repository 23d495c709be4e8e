//! Reads the cluster's keys from etcd, and then follows their changes. After an error it
//! reads all keys again.
//!
//! Each proof that this node knows the present users prolongs the lease for them: a read of
//! all keys, or a probe that finds no change that the watch has missed.

use std::sync::Arc;
use std::time::Duration;

use prism_cluster::{LineageMark, State, View};
use prism_etcd::Error;

use super::etcd::{self, Key};
use super::{ClusterRecords, Directory, PAUSE, Participant, replace};
use crate::lease::now_ns;
use crate::users;

/// Longest time between two checks that the watch misses nothing. A silent watch may mean that
/// nothing changes, or that its member of etcd has lost the other members.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Checks within the life of the lease for the users, as many as renewals of a backend's.
const PROBES_IN_LIFE: u32 = 5;
/// Time in which the watch reports a change that a probe has found.
const REPORTED_IN: Duration = Duration::from_secs(1);

impl Participant {
    /// Never returns.
    pub(super) async fn follow(&self) {
        let mut told = false;
        loop {
            let Err(error) = self.session(&mut told).await;
            if !told {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot follow etcd; trying again"
                );
                told = true;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn session(&self, told: &mut bool) -> anyhow::Result<std::convert::Infallible> {
        let asked_ns = now_ns();
        let mark = self.ledger.mark();
        let snapshot = self.client().read(self.keys().prefix()).await?;
        if std::mem::take(told) {
            tracing::info!("etcd answers again");
        }
        let before = self.channels.known.borrow().clone();
        let mut known = ClusterRecords::read(self.keys(), &snapshot, &before);
        self.publish(&known, mark).await?;
        self.know_users(asked_ns);
        self.register(&known).await?;
        let next = snapshot.revision.saturating_add(1);
        let mut watch = self.client().watch(self.keys().prefix(), next).await?;
        let following = async {
            loop {
                let update = watch.next().await?;
                known.apply(self.keys(), &update);
                // The watch may still report changes from before this node's own last one.
                let has_own = |own: &LineageMark| own.count <= known.lineage_count();
                let own = self.ledger.mark().filter(has_own);
                self.publish(&known, own.or(mark)).await?;
            }
        };
        tokio::select! {
            error = following => error,
            error = self.probe() => error,
        }
    }

    /// Fails when etcd does not answer, when it has gone back to an earlier revision, or when the
    /// watch has missed a change of the state or of the users. Prolongs the lease for the users.
    async fn probe(&self) -> anyhow::Result<std::convert::Infallible> {
        let every = PROBE_EVERY.min(self.lease_ttl() / PROBES_IN_LIFE);
        let mut known = self.channels.known.subscribe();
        loop {
            tokio::time::sleep(every).await;
            let asked_ns = now_ns();
            let heard = known.borrow().revision;
            let state = self.client().read(&self.keys().path(&Key::State)).await?;
            if state.revision < heard {
                let revision = state.revision;
                tracing::error!(revision, heard, "etcd has gone back to an earlier revision");
                return Err(Error::Ended("etcd has gone back".into()).into());
            }
            let (users, users_revision) = self.client().fingerprint(&self.keys().users()).await?;
            let state_revision = state.entries.first().map(|entry| entry.mod_revision);
            // The watch reports changes in their order, so a later one than the answer counts too.
            let has_all = known.wait_for(|known| {
                let last = known.state.as_ref().map(|(_, revision)| *revision);
                let has_state = last == state_revision || known.revision > state.revision;
                let has_users = known.users_in_etcd() == users || known.revision > users_revision;
                has_state && has_users
            });
            if tokio::time::timeout(REPORTED_IN, has_all).await.is_err() {
                let missed = "it missed a change of the state or of the users";
                return Err(Error::Ended(missed.into()).into());
            }
            self.know_users(asked_ns);
            if self.channels.fault.borrow().is_none() {
                // Marks become durable also if nothing else happens.
                let known = self.channels.known.borrow().clone();
                self.note(&known).await?;
            }
        }
    }

    /// Prolongs the lease for the users, of which this node has known all at that time.
    fn know_users(&self, asked_ns: u64) {
        if self.channels.fault.borrow().is_none() {
            self.users_lease.extend(asked_ns, self.lease_ttl());
        }
    }

    /// Registers this node, and founds the cluster if there is no state.
    async fn register(&self, known: &ClusterRecords) -> anyhow::Result<()> {
        let Some(me) = &self.me else { return Ok(()) };
        if known.state.is_none()
            && self.view.get().is_none()
            && self.channels.fault.borrow().is_none()
        {
            match &me.first {
                Some(first) => etcd::found(&self.ledger, &self.config, first).await?,
                None => tracing::info!("waiting for a backend to found the cluster in etcd"),
            }
        }
        let is_old = known.state.is_some() && known.lineage.is_none();
        if is_old && self.channels.fault.borrow().is_none() {
            // An earlier release has founded the cluster.
            self.ledger.change(&[], &[]).await?;
        }
        let name = me.name.as_str();
        match known.hosts.get(name) {
            Some(host) if *host == me.host => return Ok(()),
            Some(host) => {
                tracing::warn!(before = %host.address, "this node's address or roles have changed");
            }
            None => {}
        }
        let put = self.keys().put(&Key::Node(name), &me.host)?;
        self.client().change(&[], &[put]).await?;
        Ok(())
    }

    /// Notes the news, which have to have the change `mark`, and publishes them to the node.
    async fn publish(
        &self,
        known: &ClusterRecords,
        mark: Option<LineageMark>,
    ) -> anyhow::Result<()> {
        self.check_store(known).await?;
        // A fault has to be published before `known`, because leases are taken by `known`.
        let is_trusted = self.is_trusted(known, mark);
        if is_trusted {
            self.note(known).await?;
            self.ledger.settle(known.is_registry_settled());
        }
        let channels = &self.channels;
        let directory = Directory::of(&self.config).with(&known.hosts);
        replace(&channels.directory, Arc::new(directory));
        // An etcd that has lost its data does not remove users.
        let counts = is_trusted && known.state.is_some();
        channels.users.send_if_modified(|present| {
            let is_new = counts && !known.users.values().eq(present.iter());
            if is_new {
                let users: Vec<_> = known.users.values().cloned().collect();
                users::warn_of_unlimited(present, &users, users::IN_ETCD);
                *present = Arc::new(users);
            }
            is_new
        });
        channels.known.send_replace(Arc::new(known.clone()));
        let state = known.state.as_ref().map(|(state, _)| state.clone());
        let state = match (is_trusted, self.view.get()) {
            (true, _) => state,
            (false, Some(_)) => return Ok(()),
            // The node starts without a lease, so that it can report the fault.
            (false, None) => self.saved_state(),
        };
        // `Known` has checked the state, so the view has no error.
        if let Some(Ok(view)) = state.map(View::new) {
            self.show(view);
        }
        Ok(())
    }

    /// The state that this node's store has saved.
    fn saved_state(&self) -> Option<State> {
        self.channels.testimony.borrow().as_ref()?.state.clone()
    }
}
