//! The lock in etcd by which one node at a time orders. It ends with its lease, so another node
//! follows one that dies. All changes of an order hold only while the lock does.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prism_etcd::{Change, Condition, EtcdClient, LeaseId};
use prism_membership::etcd::{Key, Keys};
use serde::{Deserialize, Serialize};

use crate::records::{LOCK, token};

/// The time after which another node takes the place of one that has died.
const LOCK_TTL: Duration = Duration::from_secs(10);
/// Renewals within the life of the lease.
const RENEWALS_IN_LIFE: u32 = 5;

/// The record of the lock.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    /// The node that orders.
    pub(crate) node: String,
    /// A random number, which tells two orders of one node apart.
    number: u64,
}

/// The lock, as held by this node.
pub(crate) struct Lock<'c> {
    client: &'c EtcdClient,
    keys: &'c Keys,
    lease: LeaseId,
    ttl: Duration,
    /// The revision of its record, which no other holder has.
    revision: u64,
}

impl<'c> Lock<'c> {
    /// Takes the lock; `None` if another node has it.
    pub(crate) async fn take(
        client: &'c EtcdClient,
        keys: &'c Keys,
        node: &str,
    ) -> anyhow::Result<Option<Self>> {
        let (lease, ttl) = client.grant(LOCK_TTL).await?;
        let path = keys.path(&Key::Acme(LOCK));
        let node = node.to_owned();
        let number = fastrand::u64(..);
        let value = serde_json::to_vec(&Holder { node, number })?;
        let put = Change::Put {
            key: path.clone(),
            value: value.clone(),
            lease: Some(lease),
        };
        let absent = Condition::Absent(path.clone());
        client.change(&[absent], &[put]).await?;
        // The client may have repeated a call that had succeeded, so the record decides.
        let found = client.read(&path).await?;
        let mut own = found.entries.iter().filter(|entry| entry.key == path);
        let own = own.find(|entry| entry.value == value);
        let Some(own) = own else {
            // Without an answer it ends by itself.
            let _ = client.revoke(lease).await;
            return Ok(None);
        };
        Ok(Some(Self {
            client,
            keys,
            lease,
            ttl,
            revision: own.mod_revision,
        }))
    }

    /// Makes changes of records, if the lock is still held.
    ///
    /// # Errors
    /// It is not, or etcd does not answer.
    pub(crate) async fn change(&self, changes: &[Change]) -> anyhow::Result<()> {
        let held = Condition::At(self.keys.path(&Key::Acme(LOCK)), self.revision);
        if self.client.change(&[held], changes).await? {
            Ok(())
        } else {
            bail!("another node has taken this order over")
        }
    }

    /// A record with this value.
    pub(crate) fn put(&self, name: &str, value: &impl Serialize) -> anyhow::Result<Change> {
        self.keys.put(&Key::Acme(name), value)
    }

    /// No record of this name.
    pub(crate) fn delete(&self, name: &str) -> Change {
        Change::Delete(self.keys.path(&Key::Acme(name)))
    }

    /// Lets every node answer a challenge, as long as the lock is held.
    pub(crate) async fn publish_token(&self, name: &str, answer: &str) -> anyhow::Result<()> {
        let put = Change::Put {
            key: self.keys.path(&Key::Acme(&token(name))),
            value: answer.into(),
            lease: Some(self.lease),
        };
        self.change(&[put]).await
    }

    /// Renews the lease until it cannot, and returns the reason.
    pub(crate) async fn keep(&self) -> anyhow::Error {
        let mut until = Instant::now() + self.ttl;
        loop {
            tokio::time::sleep(self.ttl / RENEWALS_IN_LIFE).await;
            let asked = Instant::now();
            match self.client.keep_alive(self.lease).await {
                Ok(Some(ttl)) => until = asked + ttl,
                Ok(None) => return anyhow::anyhow!("the lease of this order in etcd has ended"),
                Err(error) if Instant::now() >= until => {
                    return anyhow::Error::new(error).context("the lease of this order has ended");
                }
                Err(_) => {}
            }
        }
    }

    /// Gives the lock back, and deletes the answers to challenges.
    pub(crate) async fn give_back(self) {
        let revoked = self.client.revoke(self.lease).await;
        let revoked = revoked.context("cannot give back the lock of an order; it ends by itself");
        if let Err(error) = revoked {
            tracing::debug!(error = format!("{error:#}"));
        }
    }
}
