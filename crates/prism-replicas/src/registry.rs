//! The registry of buckets' records: reads it, changes it, and passes changes to all backends.
//!
//! With etcd the registry is in etcd. Without etcd the members never change, and the first
//! backend by name, the keeper, has the registry in its store. A change counts as soon as the
//! registry has it. Backends that miss it follow later (`buckets.rs`).
//!
//! Not here: the changes, and which of two records counts (`prism_cluster::replica`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_cluster::replica::{Bucket, BucketRefusal, BucketStamp, Phase};
use prism_membership::Buckets;
use prism_s3::{Code, S3Error};
use prism_store::{BUCKET_RECORDS_MAX, Error, Stamp, Store};

use crate::ask::done_by_all;
use crate::errors::{StoreResult, not_yet};
use crate::node::now_us;
use crate::question::{Question, Reply};
use crate::{Node, Replicator};

/// Most tries of a change while other nodes change the same bucket.
const TRIES: u32 = 5;
/// Time for backends to get a record that they may also get later.
const PUSH_TIMEOUT: Duration = Duration::from_secs(2);

impl Replicator {
    /// The agreed record of a bucket at this moment.
    ///
    /// # Errors
    /// Unavailable if the registry is out of reach.
    pub async fn agreed(&self, bucket: &str) -> Result<Option<Bucket>, S3Error> {
        if let Some(etcd) = self.node.cluster.registry() {
            return etcd.read(bucket).await.map_err(|e| out_of_reach(&e));
        }
        let bucket = bucket.to_owned();
        match self.ask_keeper(&Question::Agreed { bucket }).await? {
            Reply::Agreed(found) => Ok(found.map(|bucket| *bucket)),
            _ => Err(Code::InternalError.into()),
        }
    }

    /// Replaces the agreed record by `next`, if its stamp is `before`. False: another change
    /// came first.
    ///
    /// # Errors
    /// Unavailable if the registry is out of reach. The change may have been made.
    pub async fn agree(
        &self,
        bucket: &str,
        before: Option<Stamp>,
        next: &Bucket,
    ) -> Result<bool, S3Error> {
        if let Some(etcd) = self.node.cluster.registry() {
            let changed = etcd.change(bucket, before, Some(next)).await;
            return changed.map_err(|e| out_of_reach(&e));
        }
        let question = Question::Agree {
            bucket: bucket.to_owned(),
            before,
            next: Box::new(next.clone()),
        };
        match self.ask_keeper(&question).await? {
            Reply::Has(changed) => Ok(changed),
            _ => Err(Code::InternalError.into()),
        }
    }

    /// All agreed records at this moment; only with etcd.
    pub(crate) async fn all_agreed(&self) -> Result<Arc<Buckets>, S3Error> {
        let etcd = self.node.cluster.registry();
        let etcd = etcd.ok_or(Code::InternalError)?;
        etcd.all().await.map(Arc::new).map_err(|e| out_of_reach(&e))
    }

    async fn ask_keeper(&self, question: &Question) -> Result<Reply, S3Error> {
        let keeper = self.node.keeper().ok_or(Code::ServiceUnavailable)?;
        self.ask(&keeper, question).await
    }

    /// Changes the agreed record of a bucket, and returns the new one.
    ///
    /// # Errors
    /// A refusal of `alter`; [`Code::OperationAborted`] if other changes come first each time.
    pub async fn alter_bucket(
        &self,
        bucket: &str,
        alter: impl Fn(Option<&Bucket>, Stamp) -> Result<Bucket, BucketRefusal>,
    ) -> Result<Bucket, S3Error> {
        for _ in 0..TRIES {
            let known = self.agreed(bucket).await?;
            let before = known.as_ref().map(|known| known.stamp);
            let next = alter(known.as_ref(), self.node.stamp_above(before));
            let next = next.map_err(Error::from).in_s3()?;
            if self.agree(bucket, before, &next).await? {
                return Ok(next);
            }
        }
        Err(Code::OperationAborted.into())
    }

    /// Has all backends act by an agreed record; fails if one of them does not.
    pub async fn push_record(&self, bucket: &str, record: &Bucket) -> Result<(), S3Error> {
        let question = Question::TakeBucket {
            bucket: bucket.to_owned(),
            record: Box::new(record.clone()),
        };
        done_by_all(self.ask_all(&question).await)
    }

    /// Has the backends that are in reach act by an agreed record. The others follow later.
    pub async fn try_push_record(&self, bucket: &str, record: &Bucket) {
        let pushed = tokio::time::timeout(PUSH_TIMEOUT, self.push_record(bucket, record));
        if !matches!(pushed.await, Ok(Ok(()))) {
            tracing::debug!(bucket, "some backends miss a bucket's change for now");
        }
    }

    /// Has this node's store know a bucket that may have been made a moment ago, or while this
    /// node was away. Called before the store is asked.
    ///
    /// # Errors
    /// [`Code::NoSuchBucket`]; unavailable if the registry is out of reach.
    pub async fn ensure_bucket(&self, bucket: &str) -> Result<(), S3Error> {
        match &self.node.store {
            Some(store) if !store.buckets().has(bucket) => {
                Box::pin(self.refresh_bucket(bucket)).await
            }
            _ => Ok(()),
        }
    }

    /// Has this node's store act by the agreed record of a bucket.
    pub(crate) async fn refresh_bucket(&self, bucket: &str) -> Result<(), S3Error> {
        let record = self.agreed(bucket).await?.ok_or(Code::NoSuchBucket)?;
        let phase = record.phase;
        self.apply_record(bucket, record).await?;
        match phase {
            Phase::Gone => Err(Code::NoSuchBucket.into()),
            _ => Ok(()),
        }
    }

    /// The buckets of this node's store.
    pub(crate) async fn names_of_buckets(&self) -> Result<Vec<String>, S3Error> {
        let buckets = self
            .node
            .on_store(|_, store| store.buckets().list().in_s3());
        let buckets = buckets.await?.into_iter();
        Ok(buckets.map(|bucket| bucket.name).collect())
    }

    /// All records of buckets in a backend's store, with their version. No records if the
    /// version is still `unless`.
    pub(crate) async fn buckets_of(
        &self,
        name: &str,
        unless: Option<u64>,
    ) -> Result<(u64, Buckets), S3Error> {
        let (mut found, mut first) = (Buckets::new(), None);
        loop {
            let after = found.last_key_value().map(|(name, _)| name.clone());
            let question = Question::Buckets {
                unless: unless.filter(|_| after.is_none()),
                after: after.unwrap_or_default(),
            };
            match self.ask(name, &question).await? {
                Reply::Buckets { version, page } if page.is_empty() => {
                    return Ok((first.unwrap_or(version), found));
                }
                Reply::Buckets { version, page } => {
                    // The next call finds changes between two pages, because the version is the first.
                    first = first.or(Some(version));
                    found.extend(page.into_iter().map(|(name, b)| (name, Arc::new(b))));
                }
                _ => return Err(Code::InternalError.into()),
            }
        }
    }

    /// Has this node's store act by all agreed records.
    pub(crate) async fn apply_records(&self, agreed: &Arc<Buckets>) -> Result<(), S3Error> {
        let agreed = agreed.clone();
        let apply = move |node: &Node, store: &Store| node.apply_newer_records(store, &agreed);
        self.node.on_store(apply).await
    }

    /// Has this node's store act by a record.
    pub(crate) async fn apply_record(&self, bucket: &str, record: Bucket) -> Result<(), S3Error> {
        let bucket = bucket.to_owned();
        let apply = move |node: &Node, store: &Store| node.apply_record(store, &bucket, &record);
        self.node.on_store(apply).await
    }
}

impl Node {
    /// The backend whose store is the registry without etcd: the first by name.
    pub(crate) fn keeper(&self) -> Option<String> {
        self.replication.backends().into_iter().next()
    }

    /// Checks that this node is the keeper, and has the records of all backends.
    pub(crate) fn check_keeper(&self) -> Result<(), S3Error> {
        let is_keeper = self.keeper().is_some_and(|keeper| keeper == self.name);
        let is_only = self.replication.backends().len() == 1;
        match is_keeper && (is_only || self.has_all_records.load(Ordering::Acquire)) {
            true => Ok(()),
            false => Err(not_yet(
                "The registry of buckets waits for the records of all backends.",
            )),
        }
    }

    /// A new stamp for a bucket's record, above `above`.
    pub fn stamp_above(&self, above: Option<Stamp>) -> Stamp {
        let epoch = self.replication.view().epoch();
        self.stamps
            .next(epoch, now_us(), above.unwrap_or(Stamp::NONE))
    }

    /// Has the store act by a record. The remains of a deleted bucket are removed in the
    /// background. Blocks on disk.
    pub(crate) fn apply_record(
        &self,
        store: &Store,
        bucket: &str,
        record: &Bucket,
    ) -> Result<(), S3Error> {
        self.stamps.observe(record.stamp);
        store.buckets().accept_record(bucket, record).in_s3()?;
        if record.phase == Phase::Gone {
            self.purge.notify_one();
        }
        Ok(())
    }

    /// Has the store act by the agreed records that are newer than its own. Blocks on disk.
    pub(crate) fn apply_newer_records(
        &self,
        store: &Store,
        agreed: &Buckets,
    ) -> Result<(), S3Error> {
        let known = known_by(store)?;
        for (name, record) in agreed {
            let known = known.get(name);
            if known.is_none_or(|known| known.stamp < record.stamp) {
                self.apply_record(store, name, record)?;
            }
        }
        Ok(())
    }
}

/// The records of a store, without their contents.
pub(crate) fn known_by(store: &Store) -> Result<BTreeMap<String, BucketStamp>, S3Error> {
    let all = store.buckets().names("", BUCKET_RECORDS_MAX).in_s3()?;
    Ok(all
        .into_iter()
        .map(|info| (info.name, info.which))
        .collect())
}

fn out_of_reach(error: &anyhow::Error) -> S3Error {
    tracing::warn!(
        error = format!("{error:#}"),
        "cannot read the registry of buckets in etcd"
    );
    Code::ServiceUnavailable.with_message("The registry of buckets is out of reach. Try again.")
}
