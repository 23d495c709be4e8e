//! Keeps the certificate: serves what is in etcd, and orders another one when it is time.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use prism_common::supervise::supervise;
use prism_config::{Acme, Config};
use prism_etcd::EtcdClient;
use prism_membership::etcd::{Key, Keys, client};
use prism_membership::{AcmeRecords, Cluster, ClusterRecords};
use prism_pki::now_s;
use tokio::sync::watch;

use crate::lock::Lock;
use crate::order::order;
use crate::records::{self, CERTIFICATE, FAILURE, Issued, LOCK, OrderFailure, RENEW};
use crate::schedule::retry_s;

/// The longest time of an order. The authority's pauses are within it.
const ORDERED_IN: Duration = Duration::from_secs(600);
/// The longest sleep until an order is due. The host's clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The pause after a call of etcd that has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest reason of a failure in bytes. Some authorities quote what they have read.
const MAX_ERROR_BYTES: usize = 1_024;

/// The certificate of a cluster, as one frontend keeps it.
pub struct Keeper {
    node: String,
    config: Acme,
    client: EtcdClient,
    keys: Keys,
    news: watch::Receiver<Arc<ClusterRecords>>,
    /// Whether the cluster has a state in etcd, unless that has lost its data.
    has_state: bool,
    /// The certificate that this frontend serves.
    served: watch::Sender<Option<Arc<Issued>>>,
    issued: AtomicU64,
    failed: AtomicU64,
}

impl Keeper {
    /// The keeper of the frontend `node`; `None` without `[service.acme]`.
    ///
    /// # Errors
    /// The files of `[cluster.etcd]` cannot be used.
    pub fn new(config: &Config, node: &str, cluster: &Cluster) -> anyhow::Result<Option<Self>> {
        let (Some(acme), Some(news)) = (&config.service.acme, cluster.follow()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            node: node.to_owned(),
            config: acme.clone(),
            client: client(config)?,
            keys: Keys::of(config)?,
            news,
            has_state: cluster.is_in_etcd(),
            served: watch::Sender::new(None),
            issued: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }))
    }

    /// The certificate that this frontend serves.
    pub fn served(&self) -> Option<Arc<Issued>> {
        self.served.borrow().clone()
    }

    /// Orders of this node by outcome: issued, and failed.
    pub fn orders(&self) -> [(&'static str, u64); 2] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("issued", read(&self.issued)),
            ("failed", read(&self.failed)),
        ]
    }

    /// Serves what is in etcd by `give`, and orders another certificate when it is time. Never
    /// returns.
    pub async fn keep(&self, give: impl Fn(&Issued) -> anyhow::Result<()>) {
        tokio::join!(
            supervise("the certificate in etcd", async || self.serve(&give).await),
            supervise("orders by ACME", async || self.order_in_time().await),
        );
    }

    /// Gives each new certificate to the server. One that is gone or faulty changes nothing.
    async fn serve(&self, give: &impl Fn(&Issued) -> anyhow::Result<()>) {
        let mut news = self.news.clone();
        let mut seen = Arc::<AcmeRecords>::default();
        loop {
            let records = news.borrow_and_update().acme.clone();
            if !Arc::ptr_eq(&records, &seen) {
                self.take(records::issued(&records), give);
                seen = records;
            }
            if news.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    fn take(&self, issued: Option<Issued>, give: &impl Fn(&Issued) -> anyhow::Result<()>) {
        let is_new = |issued: &Issued| self.served().is_none_or(|served| *served != *issued);
        let Some(issued) = issued.filter(is_new) else {
            return;
        };
        match give(&issued) {
            Ok(()) => {
                tracing::info!(names = ?self.config.domains, "a certificate by ACME is served");
                self.served.send_replace(Some(Arc::new(issued)));
            }
            Err(error) => tracing::error!(
                error = format!("{error:#}"),
                "cannot serve the certificate in etcd; the one before stays in use"
            ),
        }
    }

    /// Orders whenever it is time and no other node orders. Never returns.
    async fn order_in_time(&self) {
        let mut news = self.news.clone();
        loop {
            let known = news.borrow_and_update().clone();
            let wait = self.wait(&known, now_s());
            if let Some(wait) = wait {
                let _ = tokio::time::timeout(wait, news.changed()).await;
                continue;
            }
            if let Err(error) = self.try_order(&news).await {
                tracing::debug!(error = format!("{error:#}"), "cannot begin or end an order");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// The time until an order is due; `None` if it is.
    fn wait(&self, known: &ClusterRecords, now_s: u64) -> Option<Duration> {
        // An etcd that does not answer yet, or has lost its data, asks for no order.
        let is_empty = known.revision == 0 || self.has_state && known.state.is_none();
        if is_empty || known.acme.contains_key(LOCK) {
            return Some(LOOK_EVERY);
        }
        let left_s = records::due_s(&known.acme, &self.config).saturating_sub(now_s);
        (left_s > 0).then(|| LOOK_EVERY.min(Duration::from_secs(left_s)))
    }

    /// Orders, if this node gets the lock.
    async fn try_order(&self, news: &watch::Receiver<Arc<ClusterRecords>>) -> anyhow::Result<()> {
        let Some(lock) = Lock::take(&self.client, &self.keys, &self.node).await? else {
            // The other one's record is about to be known.
            tokio::time::sleep(PAUSE).await;
            return Ok(());
        };
        // The records of this moment: another node may just have ended its order.
        let snapshot = self.client.read(&self.keys.path(&Key::Acme(""))).await?;
        let records = ClusterRecords::read(&self.keys, &snapshot, &ClusterRecords::default()).acme;
        let done = if records::due_s(&records, &self.config) <= now_s() {
            self.order_under(&lock, &records).await
        } else {
            Ok(())
        };
        lock.give_back().await;
        // Until this node hears of the outcome. A later look at it would do no harm.
        let is_older = news.borrow().revision <= snapshot.revision;
        if is_older {
            tokio::time::sleep(PAUSE).await;
        }
        done
    }

    async fn order_under(&self, lock: &Lock<'_>, records: &AcmeRecords) -> anyhow::Result<()> {
        tracing::info!(
            names = ?self.config.domains,
            authority = self.config.directory,
            "ordering a certificate by ACME"
        );
        let ordered = tokio::select! {
            ordered = tokio::time::timeout(ORDERED_IN, order(&self.config, records, lock)) => {
                ordered.context("the order takes too long").flatten()
            }
            // Another node orders now, and this one writes nothing.
            lost = lock.keep() => return Err(lost),
        };
        match ordered {
            Ok(issued) => {
                let put = lock.put(CERTIFICATE, &issued)?;
                let changes = [put, lock.delete(FAILURE), lock.delete(RENEW)];
                lock.change(&changes).await?;
                self.issued.fetch_add(1, Ordering::Relaxed);
                tracing::info!(names = ?self.config.domains, "got a certificate by ACME");
                Ok(())
            }
            Err(error) => self.record_failure(lock, records, &error).await,
        }
    }

    async fn record_failure(
        &self,
        lock: &Lock<'_>,
        records: &AcmeRecords,
        error: &anyhow::Error,
    ) -> anyhow::Result<()> {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let before = records::failure(records).map_or(0, |failure| failure.count);
        let count = before.saturating_add(1);
        let now_s = now_s();
        let failure = OrderFailure {
            count,
            at_s: now_s,
            retry_s: retry_s(now_s, count, fastrand::u64(..)),
            node: self.node.clone(),
            error: shortened(format!("{error:#}")),
        };
        let next_try_s = failure.retry_s.saturating_sub(now_s);
        tracing::error!(
            error = failure.error,
            failures = count,
            next_try_s,
            "cannot get a certificate by ACME; the present one stays in use"
        );
        lock.change(&[lock.put(FAILURE, &failure)?]).await
    }
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
    text
}
