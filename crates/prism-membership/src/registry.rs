//! The registry of buckets in etcd: one key for each name. A change succeeds only if no
//! other change came first. The thread that follows etcd does the calls of all workers, also
//! those about a single user.
//!
//! Not here: the records' contents, and telling other nodes (`prism-replicas`).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::bail;
use prism_cluster::replica::{Ancestry, Bucket, Stamp};
use prism_config::Credential;
use prism_etcd::{Change, Condition};
use tokio::sync::{mpsc, oneshot};

use super::etcd::{self, Key};
use super::ledger::Ledger;

/// The contents of the registry, by the names of buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// The agreed records.
    pub records: BTreeMap<String, Arc<Bucket>>,
    /// Their ancestries; records of earlier releases have none.
    pub ancestries: BTreeMap<String, Ancestry>,
}

/// An agreed record with its ancestry.
pub type AgreedBucket = (Bucket, Option<Ancestry>);

/// Most calls that wait; more are refused.
const CALLS_MAX: usize = 256;

/// A call of etcd, which sends its result to the worker.
type Call = Box<dyn for<'c> FnOnce(&'c Ledger) -> LocalCall<'c> + Send>;
type LocalCall<'c> = Pin<Box<dyn Future<Output = ()> + 'c>>;

/// The workers' side.
#[derive(Clone)]
pub struct Registry(mpsc::Sender<Call>);

/// The thread's side.
pub(super) struct Calls(mpsc::Receiver<Call>);

impl Registry {
    pub(super) fn new() -> (Self, Calls) {
        let (sender, calls) = mpsc::channel(CALLS_MAX);
        (Self(sender), Calls(calls))
    }

    /// The agreed record of a bucket at this moment.
    ///
    /// # Errors
    /// etcd does not answer, or the stores are still putting back what it has lost.
    pub async fn read(&self, name: &str) -> anyhow::Result<Option<AgreedBucket>> {
        let name = name.to_owned();
        let call = async move |ledger: &Ledger| {
            let found = read(ledger, &name).await;
            ledger.check_settled().and(found)
        };
        Ok(self.call(call).await?.map(|(agreed, _)| agreed))
    }

    /// The record that the registry has at this moment, also while stores put back what it has
    /// lost.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn read_in_doubt(&self, name: &str) -> anyhow::Result<Option<AgreedBucket>> {
        let name = name.to_owned();
        let call = async move |ledger: &Ledger| read(ledger, &name).await;
        Ok(self.call(call).await?.map(|(agreed, _)| agreed))
    }

    /// Says that the store of the backend `name` has put back all that the registry has lost.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn settle(&self, name: &str) -> anyhow::Result<()> {
        let name = name.to_owned();
        let call = async move |ledger: &Ledger| {
            let gone = Change::Delete(ledger.keys.path(&Key::Doubt(&name)));
            ledger.client.change(&[], &[gone]).await?;
            Ok(())
        };
        self.call(call).await
    }

    /// The agreed records of all buckets at this moment.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn all(&self) -> anyhow::Result<Buckets> {
        self.call(all).await
    }

    /// Replaces the record of `name` by `next` if the present record has the stamp `before`.
    /// The ancestry changes with it if there is a new one. False: another change came first.
    ///
    /// # Errors
    /// etcd does not answer; the change may have been made.
    pub async fn change(
        &self,
        name: &str,
        before: Option<Stamp>,
        next: &Bucket,
        ancestry: Option<Ancestry>,
    ) -> anyhow::Result<bool> {
        let name = name.to_owned();
        let next = next.clone();
        let call = async move |ledger: &Ledger| {
            ledger.check_settled()?;
            replace(ledger, &name, before, &next, ancestry).await
        };
        self.call(call).await
    }

    /// Puts back a record that the registry has lost, also while other stores do so. False: another
    /// change came first.
    ///
    /// # Errors
    /// etcd does not answer; the change may have been made.
    pub async fn put_back(
        &self,
        name: &str,
        before: Option<Stamp>,
        record: &Bucket,
        ancestry: Ancestry,
    ) -> anyhow::Result<bool> {
        let name = name.to_owned();
        let record = record.clone();
        let call = async move |ledger: &Ledger| {
            replace(ledger, &name, before, &record, Some(ancestry)).await
        };
        self.call(call).await
    }

    /// Forgets the record of `name` and its ancestry if it has the stamp `before`.
    ///
    /// # Errors
    /// etcd does not answer; the change may have been made.
    pub async fn forget(&self, name: &str, before: Stamp) -> anyhow::Result<bool> {
        let name = name.to_owned();
        let call = async move |ledger: &Ledger| {
            let gone = [Key::Bucket(&name), Key::Ancestry(&name)];
            let changes = gone.map(|key| Change::Delete(ledger.keys.path(&key)));
            change(ledger, &name, Some(before), &changes).await
        };
        self.call(call).await
    }

    /// The user with this access key at this moment, if clients can use it.
    pub(super) async fn user(&self, access_key: &str) -> anyhow::Result<Option<Credential>> {
        let access_key = access_key.to_owned();
        let call = async move |ledger: &Ledger| {
            let path = ledger.keys.path(&Key::User(&access_key));
            let found = ledger.client.read_key(&path).await?;
            ledger.check().await?;
            Ok(found.and_then(|entry| etcd::user(&access_key, &entry.value)))
        };
        self.call(call).await
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl AsyncFnOnce(&Ledger) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        let call: Call =
            Box::new(move |ledger| Box::pin(async move { drop(answer.send(call(ledger).await)) }));
        if self.0.try_send(call).is_err() {
            bail!("{CALLS_MAX} calls of etcd wait already");
        }
        answered.await?
    }
}

impl Calls {
    /// Makes the calls one after the other. Never returns.
    pub(super) async fn answer(&mut self, ledger: &Ledger) {
        while let Some(call) = self.0.recv().await {
            call(ledger).await;
        }
        // All callers are gone.
        std::future::pending().await
    }
}

/// A bucket's record and its ancestry, with the revision of the record's last change.
async fn read(ledger: &Ledger, name: &str) -> anyhow::Result<Option<(AgreedBucket, u64)>> {
    let keys = &ledger.keys;
    let found = ledger.client.read(&keys.path(&Key::Bucket(name))).await?;
    ledger.check().await?;
    let entry = |key: Key<'_>| {
        let path = keys.path(&key);
        found.entries.iter().find(move |entry| entry.key == path)
    };
    let Some(record) = entry(Key::Bucket(name)) else {
        return Ok(None);
    };
    let ancestry = entry(Key::Ancestry(name));
    let ancestry = ancestry.map(|entry| serde_json::from_slice(&entry.value));
    let agreed = (
        serde_json::from_slice(&record.value)?,
        ancestry.transpose()?,
    );
    Ok(Some((agreed, record.mod_revision)))
}

async fn all(ledger: &Ledger) -> anyhow::Result<Buckets> {
    let keys = &ledger.keys;
    let found = ledger.client.read(&keys.buckets()).await?;
    ledger.check().await?;
    let mut buckets = Buckets::default();
    for entry in &found.entries {
        match keys.parse(&entry.key) {
            Some(Key::Bucket(name)) => {
                let bucket = Arc::new(serde_json::from_slice(&entry.value)?);
                buckets.records.insert(name.to_owned(), bucket);
            }
            Some(Key::Ancestry(name)) => {
                let ancestry = serde_json::from_slice(&entry.value)?;
                buckets.ancestries.insert(name.to_owned(), ancestry);
            }
            _ => {}
        }
    }
    Ok(buckets)
}

/// Replaces the record of `name` by another one, if it has the stamp `before`.
async fn replace(
    ledger: &Ledger,
    name: &str,
    before: Option<Stamp>,
    next: &Bucket,
    ancestry: Option<Ancestry>,
) -> anyhow::Result<bool> {
    let keys = &ledger.keys;
    let mut changes = vec![keys.put(&Key::Bucket(name), next)?];
    if let Some(ancestry) = ancestry {
        changes.push(keys.put(&Key::Ancestry(name), &ancestry)?);
    }
    change(ledger, name, before, &changes).await
}

/// Makes changes of the record of `name`, if it has the stamp `before`.
async fn change(
    ledger: &Ledger,
    name: &str,
    before: Option<Stamp>,
    changes: &[Change],
) -> anyhow::Result<bool> {
    let path = ledger.keys.path(&Key::Bucket(name));
    let found = read(ledger, name).await?;
    if found.as_ref().map(|((bucket, _), _)| bucket.stamp) != before {
        return Ok(false);
    }
    let condition = Condition::unchanged(path, found.map(|(_, revision)| revision));
    ledger.change(&[condition], changes).await
}
