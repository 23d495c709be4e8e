//! This backend's lease in etcd: obtained, published with the backend's report, renewed.
//!
//! A backend gets a lease only if it has adopted the state of that moment. etcd compares
//! the two in one transaction. From then on the cluster takes no step that this backend has
//! not adopted, until the lease has ended.

use std::time::{Duration, Instant};

use prism_cluster::Report;
use prism_etcd::{Change, Condition, LeaseId};
use tokio::sync::watch;

use super::etcd::{Key, Living};
use super::{ClusterRecords, Me, PAUSE, Participant};
use crate::lease::now_ns;

/// Renewals within the life of a lease.
const RENEWALS_IN_LIFE: u32 = 5;
/// Timeout of giving a lease back. Without an answer the lease ends by itself.
const REVOKED_IN: Duration = Duration::from_secs(1);

/// A lease that etcd has granted.
#[derive(Clone, Copy)]
struct Granted {
    id: LeaseId,
    ttl: Duration,
    /// The time of the last request for it.
    asked_ns: u64,
}

/// The reason for the end of a lease.
enum Over {
    /// etcd has ended it.
    Ended,
    /// Another process has this node's name.
    Superseded,
    /// The state in etcd contradicts a store.
    Doubted,
    /// This node stops.
    GivenBack,
}

impl Participant {
    /// Never returns.
    pub(super) async fn hold(&self) {
        let Some(me) = self.backend() else {
            return std::future::pending().await;
        };
        let mut fault = self.channels.fault.subscribe();
        let mut giving_back = self.channels.giving_back.subscribe();
        loop {
            let over = tokio::select! {
                // Giving back interrupts any call of etcd, and goes before its answer.
                biased;
                Ok(_) = giving_back.wait_for(|is_wanted| *is_wanted) => Over::GivenBack,
                over = async {
                    // The channel does not close: `self` has the sender.
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
                Over::Ended => tracing::warn!(
                    "the lease in etcd has ended; this backend serves nothing until it has another one"
                ),
                // `is_trusted` has logged it.
                Over::Doubted => {}
                Over::GivenBack => {
                    self.revoke().await;
                    self.channels.given_back.send_replace(true);
                    return std::future::pending().await;
                }
                Over::Superseded => {
                    let node = &me.name;
                    tracing::error!(%node, "another process has this node's name; this process serves nothing any more");
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Obtains a lease, publishes this node's report under it, and renews it until its end.
    async fn have_lease(&self, me: &Me) -> Over {
        let mut reports = self.channels.reports.subscribe();
        let mut known = self.channels.known.subscribe();
        let (granted, published) = loop {
            let report = *reports.borrow_and_update();
            let known_now = known.borrow_and_update().clone();
            let is_ready = report.store != 0 && known_now.epoch() == report.epoch;
            if !is_ready || known_now.state.is_none() {
                // The node has not adopted the state yet, or etcd has none.
                tokio::select! {
                    _ = reports.changed() => {}
                    _ = known.changed() => {}
                }
                continue;
            }
            match self.try_lease(me, report, &known_now).await {
                Ok(Some(granted)) => break (granted, report),
                Ok(None) => tokio::time::sleep(PAUSE / 4).await,
                Err(error) => {
                    tracing::debug!(%error, "cannot obtain a lease from etcd");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        tracing::info!(node = %me.name, "this backend has a lease in etcd");
        self.keep_lease(me, granted, published, reports).await
    }

    /// Tries once to publish a report under a lease: the last one, if it has not ended. With it
    /// goes the mark of the store. `None` if the state or the mark has changed meanwhile.
    async fn try_lease(
        &self,
        me: &Me,
        report: Report,
        known: &ClusterRecords,
    ) -> anyhow::Result<Option<Granted>> {
        let state = known.state.as_ref().map(|(_, revision)| *revision);
        let path = self.keys().path(&Key::State);
        let unchanged = Condition::At(path, state.unwrap_or_default());
        let (unmarked, mark) = self.store_mark(me, known)?.unzip();
        let conditions: Vec<_> = [unchanged].into_iter().chain(unmarked).collect();
        let asked_ns = now_ns();
        let renewed = match self.granted.get() {
            Some(id) => self
                .ledger
                .client
                .keep_alive(id)
                .await?
                .map(|ttl| (id, ttl)),
            None => None,
        };
        let (id, ttl) = match renewed {
            Some(renewed) => renewed,
            None => self.client().grant(self.lease_ttl()).await?,
        };
        let granted = Granted { id, ttl, asked_ns };
        self.granted.set(Some(id));
        let done = self.publish_report(me, id, report, &conditions, mark);
        let done = done.await?;
        if done {
            me.lease.extend(asked_ns, ttl);
        }
        Ok(done.then_some(granted))
    }

    /// Revokes the lease, so that the other backends need not wait for its end.
    async fn revoke(&self) {
        let Some(id) = self.granted.take() else {
            return;
        };
        match tokio::time::timeout(REVOKED_IN, self.client().revoke(id)).await {
            Ok(Ok(())) => tracing::info!("the lease is given back"),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot give the lease back; it ends by itself")
            }
            Err(_) => tracing::debug!("etcd does not answer; the lease ends by itself"),
        }
    }

    /// Renews the lease and publishes this node's reports, until the end of the lease.
    async fn keep_lease(
        &self,
        me: &Me,
        granted: Granted,
        mut published: Report,
        mut reports: watch::Receiver<Report>,
    ) -> Over {
        let every = renewed_every(granted.ttl);
        let mut last_ns = granted.asked_ns;
        // `known` may be older than this lease, and name an earlier process.
        let mut has_seen_itself = false;
        let mut marked = Instant::now();
        loop {
            let due = every.saturating_sub(Duration::from_nanos(now_ns().saturating_sub(last_ns)));
            tokio::select! {
                () = tokio::time::sleep(due) => {}
                _ = reports.changed() => {}
            }
            let report = *reports.borrow();
            let known = self.channels.known.borrow().clone();
            if report != published {
                match self
                    .publish_next(me, granted.id, published, report, &known)
                    .await
                {
                    Ok(true) => published = report,
                    // The mark has changed meanwhile. The next try knows it.
                    Ok(false) => {}
                    Err(error) => tracing::debug!(
                        error = format!("{error:#}"),
                        "cannot publish a report in etcd"
                    ),
                }
            }
            let run = known.living.get(&me.name).map(|living| living.run);
            match run {
                Some(run) if run == me.run => has_seen_itself = true,
                Some(_) if has_seen_itself => return Over::Superseded,
                _ => {}
            }
            if marked.elapsed() >= self.lease_ttl() {
                marked = Instant::now();
                if let Err(error) = self.publish_mark(me, &known).await {
                    tracing::debug!(
                        error = format!("{error:#}"),
                        "cannot report the store's mark"
                    );
                }
            }
            let asked_ns = now_ns();
            match self.client().keep_alive(granted.id).await {
                Ok(Some(ttl)) => {
                    me.lease.extend(asked_ns, ttl);
                    last_ns = asked_ns;
                }
                Ok(None) => return Over::Ended,
                Err(error) => {
                    tracing::debug!(%error, "cannot renew the lease in etcd");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Reports how far the store has come, if it has come further.
    async fn publish_mark(&self, me: &Me, known: &ClusterRecords) -> anyhow::Result<()> {
        if let Some((unmarked, mark)) = self.store_mark(me, known)? {
            self.client().change(&[unmarked], &[mark]).await?;
        }
        Ok(())
    }

    /// Publishes a report in the place of the last one. The report that the store has caught up is
    /// published with its mark, as it got the lease before the state had this store. A backend in
    /// sync therefore has a mark. Returns false if etcd has another mark than is known.
    async fn publish_next(
        &self,
        me: &Me,
        lease: LeaseId,
        last: Report,
        next: Report,
        known: &ClusterRecords,
    ) -> anyhow::Result<bool> {
        let mark = if next.caught_up == last.caught_up {
            None
        } else {
            self.store_mark(me, known)?
        };
        let (unmarked, mark) = mark.unzip();
        let conditions: Vec<_> = unmarked.into_iter().collect();
        self.publish_report(me, lease, next, &conditions, mark)
            .await
    }

    /// Publishes a report under a lease. etcd refuses that if the lease has ended. Returns whether
    /// the conditions hold.
    async fn publish_report(
        &self,
        me: &Me,
        lease: LeaseId,
        report: Report,
        conditions: &[Condition],
        mark: Option<Change>,
    ) -> anyhow::Result<bool> {
        let run = me.run;
        let put = Change::Put {
            key: self.keys().path(&Key::Live(me.name.as_str())),
            value: serde_json::to_vec(&Living { run, report })?,
            lease: Some(lease),
        };
        let changes: Vec<_> = [put].into_iter().chain(mark).collect();
        Ok(self.client().change(conditions, &changes).await?)
    }
}

/// Time between two renewals of a lease.
fn renewed_every(ttl: Duration) -> Duration {
    (ttl / RENEWALS_IN_LIFE).max(PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_no_time_is_not_renewed_without_a_pause() {
        assert_eq!(
            renewed_every(Duration::from_secs(5)),
            Duration::from_secs(1)
        );
        assert_eq!(renewed_every(Duration::ZERO), PAUSE);
    }
}
