//! Notices that this node's store is an older copy: put back from a backup, reverted, or a clone
//! beside the original.
//!
//! etcd has the last mark of each backend's store (`prism_cluster::StoreMark`), and the other
//! backends note it, in case etcd is put back as well. A store that has not lived the mark gets
//! another identity. It is then treated as any other store in the place of a lost one: it catches
//! up, or waits for the administrator if no other store has its keys.

use std::sync::atomic::Ordering;

use anyhow::Context;
use prism_cluster::{Fault, NodeName, State, StoreMark, latest_state};
use prism_etcd::{Change, Condition};

use super::etcd::Key;
use super::{ClusterRecords, Me, Participant};

impl Participant {
    /// Makes this node's store another one if it has not lived its last mark.
    pub(super) async fn check_store(&self, known: &ClusterRecords) -> anyhow::Result<()> {
        let (Some(me), Some(store)) = (&self.me, &self.store) else {
            return Ok(());
        };
        let Some((mark, _)) = known.store_marks.get(&me.name) else {
            return Ok(());
        };
        let opened = store.open()?;
        let own = opened.mark();
        if mark.store != own.store || opened.has_lived(mark) {
            return Ok(());
        }
        tracing::error!(
            commits = own.commits,
            reported_commits = mark.commits,
            "this node's store is an older copy of the one that it had; it serves nothing until \
             it has caught up, or `prism ctl cluster recover` has decided about it"
        );
        me.lease.end();
        let renewing = tokio::task::spawn_blocking(move || opened.renew_identity());
        let identity = renewing
            .await?
            .context("cannot renew the store's identity")?;
        if let Some(shared) = &self.store_identity {
            shared.store(identity, Ordering::Release);
        }
        self.channels.testimony.send_modify(|testimony| {
            if let Some(testimony) = testimony {
                testimony.store = identity;
            }
        });
        self.channels.reports.send_if_modified(|report| {
            let is_reported = report.store != 0;
            if is_reported {
                (report.store, report.caught_up) = (identity, 0);
            }
            is_reported
        });
        Ok(())
    }

    /// The change that reports how far this node's store has come, and its condition. `None` if
    /// the state has another store for this node, whose mark must stay.
    pub(super) fn store_mark(
        &self,
        me: &Me,
        known: &ClusterRecords,
    ) -> anyhow::Result<Option<(Condition, Change)>> {
        let state = known.state.as_ref().map(|(state, _)| state);
        let (Some(store), Some(state)) = (&self.store, state) else {
            return Ok(None);
        };
        let mark = store.open()?.mark();
        let present = known.store_marks.get(&me.name);
        if !is_of(state, me, mark) || present.is_some_and(|(present, _)| *present == mark) {
            return Ok(None);
        }
        self.put_mark(known, &me.name, &mark).map(Some)
    }

    /// The change of a store's mark, and the condition that it is still the known one.
    fn put_mark(
        &self,
        known: &ClusterRecords,
        name: &NodeName,
        mark: &StoreMark,
    ) -> anyhow::Result<(Condition, Change)> {
        let key = Key::StoreMark(name.as_str());
        let revision = known.store_marks.get(name).map(|(_, revision)| *revision);
        let unchanged = Condition::unchanged(self.keys().path(&key), revision);
        Ok((unchanged, self.keys().put(&key, mark)?))
    }

    /// Puts back the marks of other stores that etcd has lost, or has older ones of. While the
    /// state is in doubt, the latest one of all stores says which stores count. Otherwise nodes
    /// whose stores have different states would replace each other's marks without end. A store of
    /// another cluster knows nothing of this one's.
    pub(super) async fn restore_marks(&self, known: &ClusterRecords) -> anyhow::Result<()> {
        let fault = self.channels.fault.borrow().clone();
        let state = match fault {
            Some(Fault::Foreign) => None,
            Some(_) => {
                let own = self.memory();
                own.and_then(|own| latest_state(&known.contents(), &own))
            }
            None => known.state.as_ref().map(|(state, _)| state.clone()),
        };
        let Some(state) = state else {
            return Ok(());
        };
        let lost: Vec<_> = {
            let noted = self.noted.borrow();
            let noted = noted.marks.iter();
            let of_state =
                noted.filter(|(name, mark)| state.is_store_of(name.as_str(), mark.store));
            let lost = of_state.filter_map(|(name, mark)| {
                let present = known.store_marks.get(name).map(|(present, _)| present);
                Some((name.clone(), mark.restored(present)?))
            });
            lost.collect()
        };
        for (name, mark) in lost {
            let (unchanged, put) = self.put_mark(known, &name, &mark)?;
            self.client().change(&[unchanged], &[put]).await?;
        }
        Ok(())
    }
}

/// Whether the store is this node's by the state, or may become it.
fn is_of(state: &State, me: &Me, mark: StoreMark) -> bool {
    let backend = state.backends.get(&me.name);
    backend.is_none_or(|backend| [0, mark.store].contains(&backend.store))
}
