//! This backend's lease: had, noted in etcd with what it reports, and kept.
//!
//! It is had only by a node that has adopted the state as it is at that moment: the
//! two are compared in one step. From then on the cluster takes no step that this
//! node has not adopted, until the lease has ended.

use std::time::Duration;

use prism_cluster::Report;
use prism_etcd::{Change, Condition, LeaseId};

use super::etcd::{Key, Living};
use super::{Keeper, Me};
use crate::lease::now_ns;

/// A lease is kept five times in its life.
const KEPT_IN_LIFE: u32 = 5;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// How long giving a lease back may take. It ends by itself all the same.
const REVOKED_IN: Duration = Duration::from_secs(1);

/// A lease, as etcd has granted it.
#[derive(Clone, Copy)]
struct Granted {
    id: LeaseId,
    ttl: Duration,
    /// When it was last asked for.
    asked_ns: u64,
}

/// Why a lease is not kept any more.
enum Over {
    /// It has ended in etcd.
    Ended,
    /// Another process has this node's name.
    Superseded,
    /// What etcd has is not to be acted by.
    Doubted,
    /// This node stops, and wants it no more.
    GivenBack,
}

impl Keeper {
    /// Never ends.
    pub(super) async fn hold(&self) {
        let Some(me) = self.me.as_ref().filter(|me| me.host.is_backend()) else {
            return std::future::pending().await;
        };
        let mut fault = self.fault.subscribe();
        let mut giving_back = me.giving_back.clone();
        loop {
            let over = tokio::select! {
                // Whatever etcd is being asked, and before what it answers counts.
                biased;
                Ok(_) = giving_back.wait_for(|is_wanted| *is_wanted) => Over::GivenBack,
                over = async {
                    // It does not end: its sender is here.
                    let _ = fault.wait_for(Option::is_none).await;
                    tokio::select! {
                        biased;
                        _ = fault.wait_for(Option::is_some) => Over::Doubted,
                        over = self.have_lease(me) => over,
                    }
                } => over,
            };
            me.lease.end();
            match over {
                Over::Ended => tracing::warn!("the lease has ended: nothing is served meanwhile"),
                // Said where it was found.
                Over::Doubted => {}
                Over::GivenBack => {
                    self.revoke().await;
                    me.given_back.send_replace(true);
                    return std::future::pending().await;
                }
                Over::Superseded => {
                    let node = &me.name;
                    tracing::error!(%node, "another process has this node's name: this one serves nothing any more");
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Takes a lease and keeps it, until it is over.
    async fn have_lease(&self, me: &Me) -> Over {
        let (granted, noted) = self.take_lease(me).await;
        tracing::info!(node = %me.name, "this node has a lease");
        self.keep_lease(me, granted, noted).await
    }

    /// Has a lease, with what this node reports noted under it.
    async fn take_lease(&self, me: &Me) -> (Granted, Report) {
        let mut reports = me.reports.clone();
        let mut known = self.known.subscribe();
        let mut granted: Option<Granted> = None;
        loop {
            let report = *reports.borrow_and_update();
            let state = known.borrow_and_update().state.clone();
            let ready = state.filter(|(state, _)| report.store != 0 && state.epoch == report.epoch);
            match ready {
                // To be tried again as soon as one of the two has changed.
                None => tokio::select! {
                    _ = reports.changed() => {}
                    _ = known.changed() => {}
                },
                Some((_, revision)) => {
                    match self.try_lease(me, &mut granted, report, revision).await {
                        Ok(Some(granted)) => return (granted, report),
                        Ok(None) => tokio::time::sleep(PAUSE / 4).await,
                        Err(error) => {
                            tracing::debug!(%error, "no lease");
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            }
        }
    }

    /// One try; nothing where the state has changed meanwhile.
    async fn try_lease(
        &self,
        me: &Me,
        kept: &mut Option<Granted>,
        report: Report,
        revision: u64,
    ) -> anyhow::Result<Option<Granted>> {
        let asked_ns = now_ns();
        let renewed = match *kept {
            Some(before) => self
                .client
                .keep_alive(before.id)
                .await?
                .map(|ttl| (before.id, ttl)),
            None => None,
        };
        let (id, ttl) = match renewed {
            Some(renewed) => renewed,
            None => self.client.grant(self.lease_ttl()).await?,
        };
        let granted = Granted { id, ttl, asked_ns };
        self.granted.set(Some(id));
        *kept = Some(granted);
        let unchanged = Condition::At(self.keys.path(&Key::State), revision);
        let noted = self.note(me, id, report)?;
        let done = self.client.change(&[unchanged], &[noted]).await?.done;
        if done {
            me.lease.extend(asked_ns, ttl);
        }
        Ok(done.then_some(granted))
    }

    /// Gives up what is noted of this node's life: nobody has to wait for its end.
    async fn revoke(&self) {
        let Some(id) = self.granted.take() else {
            return;
        };
        match tokio::time::timeout(REVOKED_IN, self.client.revoke(id)).await {
            Ok(Ok(())) => tracing::info!("the lease is given back"),
            Ok(Err(error)) => tracing::debug!(%error, "the lease ends by itself"),
            Err(_) => tracing::debug!("the lease ends by itself: etcd does not answer"),
        }
    }

    /// Keeps the lease, and notes what this node reports, until it is over.
    async fn keep_lease(&self, me: &Me, granted: Granted, mut noted: Report) -> Over {
        let mut reports = me.reports.clone();
        let every = kept_every(granted.ttl);
        let mut last_ns = granted.asked_ns;
        // What is known may be from before this lease.
        let mut has_seen_itself = false;
        loop {
            let due = every.saturating_sub(Duration::from_nanos(now_ns().saturating_sub(last_ns)));
            tokio::select! {
                () = tokio::time::sleep(due) => {}
                _ = reports.changed() => {}
            }
            let report = *reports.borrow();
            if report != noted {
                match self.renew_note(me, granted.id, report).await {
                    Ok(()) => noted = report,
                    Err(error) => tracing::debug!(%error, "a report is not noted"),
                }
            }
            let run = self
                .known
                .borrow()
                .living
                .get(&me.name)
                .map(|living| living.run);
            match run {
                Some(run) if run == me.run => has_seen_itself = true,
                Some(_) if has_seen_itself => return Over::Superseded,
                _ => {}
            }
            let asked_ns = now_ns();
            match self.client.keep_alive(granted.id).await {
                Ok(Some(ttl)) => {
                    me.lease.extend(asked_ns, ttl);
                    last_ns = asked_ns;
                }
                Ok(None) => return Over::Ended,
                Err(error) => {
                    tracing::debug!(%error, "the lease is not kept");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn renew_note(&self, me: &Me, lease: LeaseId, report: Report) -> anyhow::Result<()> {
        let note = self.note(me, lease, report)?;
        // Refused where the lease has ended.
        self.client.change(&[], &[note]).await?;
        Ok(())
    }

    fn note(&self, me: &Me, lease: LeaseId, report: Report) -> anyhow::Result<Change> {
        let run = me.run;
        Ok(Change::Put {
            key: self.keys.path(&Key::Live(me.name.as_str())),
            value: serde_json::to_vec(&Living { run, report })?,
            lease: Some(lease),
        })
    }
}

/// How often a lease is kept, however short it is.
fn kept_every(ttl: Duration) -> Duration {
    (ttl / KEPT_IN_LIFE).max(PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_lasts_for_no_time_is_not_kept_without_a_pause() {
        assert_eq!(kept_every(Duration::from_secs(5)), Duration::from_secs(1));
        assert_eq!(kept_every(Duration::ZERO), PAUSE);
    }
}
