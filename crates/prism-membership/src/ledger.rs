//! Changes of what the cluster agrees on in etcd: its state, the wish, users and buckets. Each
//! change also raises the lineage, in one transaction, and is refused if the contents do not
//! descend from those that this process has acted by (`prism_cluster::Lineage`).
//!
//! What nodes say of themselves (leases, addresses, pauses) does not pass through here.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::bail;
use prism_cluster::{Lineage, LineageMark};
use prism_etcd::{Change, Condition, EtcdClient};

use super::etcd::{Key, Keys};

/// Most tries of a change while others raise the lineage.
const TRIES: u32 = 100;
/// Longest wait for stores that put back what the registry of buckets has lost.
const SETTLED_IN: Duration = Duration::from_secs(30);
/// Longest pause between two tries.
const PAUSE_MAX_MS: u64 = 20;

/// The etcd of one cluster, for one process.
pub struct Ledger {
    /// The client, for all that has no order.
    pub client: EtcdClient,
    /// The cluster's keys.
    pub keys: Keys,
    /// The last change that this process has noted.
    mark: Cell<Option<LineageMark>>,
    /// Since when the stores put back what the registry of buckets has lost; `None`: they do not.
    unsettled: Cell<Option<Instant>>,
}

/// The present lineage, and the condition that it is still the same.
struct Present {
    lineage: Option<Lineage>,
    unchanged: Condition,
}

impl Ledger {
    /// The ledger of a process that has noted nothing yet.
    pub fn new(client: EtcdClient, keys: Keys) -> Self {
        Self {
            client,
            keys,
            mark: Cell::new(None),
            unsettled: Cell::new(None),
        }
    }

    /// The last change that this process has noted or made.
    pub(crate) fn mark(&self) -> Option<LineageMark> {
        self.mark.get()
    }

    /// From now on, contents that do not descend from this change are refused.
    pub(crate) fn note(&self, mark: LineageMark) {
        let is_later = |noted: LineageMark| noted.count < mark.count;
        if self.mark.get().is_none_or(is_later) {
            self.mark.set(Some(mark));
        }
    }

    /// Sets whether the stores have put back what the registry of buckets has lost.
    pub(crate) fn settle(&self, is_settled: bool) {
        let since = self.unsettled.get().unwrap_or_else(Instant::now);
        self.unsettled.set((!is_settled).then_some(since));
    }

    /// Checks that the registry of buckets has what it had lost. A store that does not put its
    /// records back in time is not waited for.
    ///
    /// # Errors
    /// Some stores have not put their records back yet.
    pub(crate) fn check_settled(&self) -> anyhow::Result<()> {
        match self.unsettled.get() {
            Some(since) if since.elapsed() < SETTLED_IN => {
                bail!("the stores are putting back what the registry of buckets has lost")
            }
            _ => Ok(()),
        }
    }

    /// Makes all `changes` in one transaction if all `conditions` hold, and returns whether they
    /// do. Without conditions and changes only the lineage is raised.
    ///
    /// # Errors
    /// etcd does not answer, and the change may have been made; its contents are an older copy;
    /// or other changes came first each time.
    pub async fn change(
        &self,
        conditions: &[Condition],
        changes: &[Change],
    ) -> anyhow::Result<bool> {
        let id = fastrand::u64(1..);
        let mut before = self.present().await?;
        for _ in 0..TRIES {
            let next = Lineage::next(before.lineage.as_ref(), id);
            let raised = self.keys.put(&Key::Lineage, &next)?;
            let conditions = [conditions, &[before.unchanged.clone()]].concat();
            let changes = [changes, &[raised]].concat();
            if self.client.change(&conditions, &changes).await? {
                // This process may answer by its own change before it hears of it.
                self.note(next.mark());
                return Ok(true);
            }
            let now = self.present().await?;
            // The client may have repeated a call that had succeeded.
            if now.lineage.as_ref().is_some_and(|lineage| lineage.has(id)) {
                return Ok(true);
            }
            if now.unchanged == before.unchanged {
                return Ok(false);
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..PAUSE_MAX_MS))).await;
        }
        bail!("other changes of the cluster came first {TRIES} times; try again")
    }

    /// Checks that the contents are no older copy. Contents that were read before are none either.
    ///
    /// # Errors
    /// They are; this node has not heard of a recovery yet; or etcd does not answer.
    pub async fn check(&self) -> anyhow::Result<()> {
        let lineage = self.present().await?.lineage;
        let is_far = |mark: LineageMark| lineage.is_some_and(|lineage| lineage.is_far_from(mark));
        if self.mark.get().is_some_and(is_far) {
            bail!("this node has not heard of the last changes in etcd yet");
        }
        Ok(())
    }

    async fn present(&self) -> anyhow::Result<Present> {
        // Another task may note a later change than the one that etcd answers with.
        let mark = self.mark.get();
        let path = self.keys.path(&Key::Lineage);
        let found = self.client.read_key(&path).await?;
        let lineage = found.as_ref().map(|entry| lineage(&entry.value));
        if lineage == Some(None) {
            bail!("the key {path} in etcd is damaged");
        }
        let lineage = lineage.flatten();
        let descends = |mark| lineage.as_ref().is_some_and(|l| l.descends_from(mark));
        if mark.is_some_and(|mark| !descends(mark)) {
            bail!("etcd has an older copy of this cluster's keys than this node has acted by");
        }
        let unchanged = Condition::unchanged(path, found.map(|entry| entry.mod_revision));
        Ok(Present { lineage, unchanged })
    }
}

/// Reads a lineage; `None` if it is damaged.
pub(crate) fn lineage(value: &[u8]) -> Option<Lineage> {
    let lineage: Lineage = serde_json::from_slice(value).ok()?;
    lineage.is_valid().then_some(lineage)
}
