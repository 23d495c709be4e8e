//! Reads the cluster's keys from etcd, and then follows their changes. After an error it
//! reads all keys again.

use std::sync::Arc;
use std::time::Duration;

use prism_cluster::{State, View};
use prism_etcd::Error;

use super::etcd::{self, Key};
use super::{Directory, Known, Participant, replace};
use crate::users;

/// Time between two checks that the watch misses nothing. A silent watch may mean that
/// nothing changes, or that its member of etcd has lost the other members.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

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
        let snapshot = self.client.read(self.keys.prefix()).await?;
        if std::mem::take(told) {
            tracing::info!("etcd answers again");
        }
        let before = self.channels.known.borrow().clone();
        let mut known = Known::read(&self.keys, &snapshot, &before);
        self.publish(&known);
        self.register(&known).await?;
        let next = snapshot.revision.saturating_add(1);
        let mut watch = self.client.watch(self.keys.prefix(), next).await?;
        let following = async {
            loop {
                let update = watch.next().await?;
                known.apply(&self.keys, &update);
                self.publish(&known);
            }
        };
        tokio::select! {
            error = following => error,
            error = self.probe() => error,
        }
    }

    /// Fails when etcd does not answer, or when the watch has missed a change of the state.
    async fn probe(&self) -> anyhow::Result<std::convert::Infallible> {
        let mut missed = 0;
        loop {
            tokio::time::sleep(PROBE_EVERY).await;
            let path = self.keys.path(&Key::State);
            let found = self.client.read(&path).await?;
            let revision = found.entries.first().map(|entry| entry.mod_revision);
            let known = self.channels.known.borrow().clone();
            if found.revision < known.revision {
                let (now, before) = (found.revision, known.revision);
                tracing::error!(now, before, "etcd has gone back to an earlier revision");
                return Err(Error::Ended("etcd has gone back".into()).into());
            }
            let known = known.state.as_ref().map(|(_, revision)| *revision);
            // The watch may report the change a moment later.
            missed = match revision != known {
                true => missed + 1,
                false => 0,
            };
            if missed > 1 {
                return Err(Error::Ended("it missed a change of the state".into()).into());
            }
        }
    }

    /// Registers this node, and founds the cluster if there is no state.
    async fn register(&self, known: &Known) -> anyhow::Result<()> {
        let Some(me) = &self.me else { return Ok(()) };
        if known.state.is_none()
            && self.view.get().is_none()
            && self.channels.fault.borrow().is_none()
        {
            match &me.first {
                Some(first) => etcd::found(&self.client, &self.keys, &self.config, first).await?,
                None => tracing::info!("waiting for a backend to found the cluster in etcd"),
            }
        }
        let name = me.name.as_str();
        match known.hosts.get(name) {
            Some(host) if *host == me.host => return Ok(()),
            Some(host) => {
                tracing::warn!(before = %host.address, "this node's address or roles have changed");
            }
            None => {}
        }
        let put = self.keys.put(&Key::Node(name), &me.host)?;
        self.client.change(&[], &[put]).await?;
        Ok(())
    }

    /// Publishes the news to the node.
    fn publish(&self, known: &Known) {
        // A fault has to be published before `known`, because leases are taken by `known`.
        let is_trusted = self.is_trusted(known);
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
            (false, Some(_)) => return,
            // The node starts without a lease, so that it can report the fault.
            (false, None) => self.saved_state(),
        };
        // `Known` has checked the state, so the view has no error.
        if let Some(Ok(view)) = state.map(View::new) {
            self.show(view);
        }
    }

    /// The state that this node's store has saved.
    fn saved_state(&self) -> Option<State> {
        self.channels.testimony.borrow().as_ref()?.state.clone()
    }
}
