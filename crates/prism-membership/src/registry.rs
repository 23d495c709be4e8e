//! The registry of buckets in etcd: one key for each name. A change succeeds only if no
//! other change came first. The thread that follows etcd does the calls of all workers, also
//! those about a single user.
//!
//! Not here: the records' contents, and telling other nodes (`prism-replicas`).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::bail;
use prism_cluster::replica::{Bucket, Stamp};
use prism_config::Credential;
use prism_etcd::{Change, Client, Condition};
use tokio::sync::{mpsc, oneshot};

use super::etcd::{self, Key, Keys};

/// The agreed records of buckets, by name.
pub type Buckets = BTreeMap<String, Arc<Bucket>>;

/// Most calls that wait; more are refused.
const CALLS_MAX: usize = 256;

/// A call of etcd, which sends its result to the worker.
type Call = Box<dyn for<'c> FnOnce(&'c Client, &'c Keys) -> LocalCall<'c> + Send>;
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
    /// etcd does not answer.
    pub async fn read(&self, name: &str) -> anyhow::Result<Option<Bucket>> {
        let name = name.to_owned();
        let call = async move |client: &Client, keys: &Keys| read(client, keys, &name).await;
        Ok(self.call(call).await?.map(|(bucket, _)| bucket))
    }

    /// The agreed records of all buckets at this moment.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn all(&self) -> anyhow::Result<Buckets> {
        self.call(all).await
    }

    /// Replaces the record of `name` by `next`, or forgets it, if the present record has the
    /// stamp `before`. False: another change came first.
    ///
    /// # Errors
    /// etcd does not answer; the change may have been made.
    pub async fn change(
        &self,
        name: &str,
        before: Option<Stamp>,
        next: Option<&Bucket>,
    ) -> anyhow::Result<bool> {
        let (name, next) = (name.to_owned(), next.cloned());
        let call = async move |client: &Client, keys: &Keys| {
            change(client, keys, &name, before, next.as_ref()).await
        };
        self.call(call).await
    }

    /// The user with this access key at this moment, if clients can use it.
    pub(super) async fn user(&self, access_key: &str) -> anyhow::Result<Option<Credential>> {
        let access_key = access_key.to_owned();
        let call = async move |client: &Client, keys: &Keys| {
            let found = client.read_key(&keys.path(&Key::User(&access_key))).await?;
            Ok(found.and_then(|entry| etcd::user(&access_key, &entry.value)))
        };
        self.call(call).await
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl AsyncFnOnce(&Client, &Keys) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |client, keys| {
            Box::pin(async move { drop(answer.send(call(client, keys).await)) })
        });
        if self.0.try_send(call).is_err() {
            bail!("{CALLS_MAX} calls of etcd wait already");
        }
        answered.await?
    }
}

impl Calls {
    /// Makes the calls one after the other. Never returns.
    pub(super) async fn answer(&mut self, client: &Client, keys: &Keys) {
        while let Some(call) = self.0.recv().await {
            call(client, keys).await;
        }
        // All callers are gone.
        std::future::pending().await
    }
}

/// A bucket's record, with the revision of its last change.
async fn read(client: &Client, keys: &Keys, name: &str) -> anyhow::Result<Option<(Bucket, u64)>> {
    let found = client.read(&keys.path(&Key::Bucket(name))).await?;
    let entry = found.entries.first();
    let bucket = entry.map(|entry| Ok((serde_json::from_slice(&entry.value)?, entry.mod_revision)));
    bucket.transpose()
}

async fn all(client: &Client, keys: &Keys) -> anyhow::Result<Buckets> {
    let found = client.read(&keys.buckets()).await?;
    let mut buckets = Buckets::new();
    for entry in &found.entries {
        if let Some(Key::Bucket(name)) = keys.parse(&entry.key) {
            let bucket = Arc::new(serde_json::from_slice(&entry.value)?);
            buckets.insert(name.to_owned(), bucket);
        }
    }
    Ok(buckets)
}

async fn change(
    client: &Client,
    keys: &Keys,
    name: &str,
    before: Option<Stamp>,
    next: Option<&Bucket>,
) -> anyhow::Result<bool> {
    let path = keys.path(&Key::Bucket(name));
    let found = read(client, keys, name).await?;
    if found.as_ref().map(|(bucket, _)| bucket.stamp) != before {
        return Ok(false);
    }
    let condition = match found {
        Some((_, revision)) => Condition::At(path.clone(), revision),
        None => Condition::Absent(path.clone()),
    };
    let change = match next {
        Some(next) => keys.put(&Key::Bucket(name), next)?,
        None => Change::Delete(path),
    };
    if client.change(&[condition], &[change]).await? {
        return Ok(true);
    }
    // The client may have repeated a call that had succeeded. It then finds its own change.
    let found = read(client, keys, name).await?;
    Ok(next.is_some() && found.map(|(bucket, _)| bucket.stamp) == next.map(|next| next.stamp))
}
