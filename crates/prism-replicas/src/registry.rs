//! The registry of buckets' records: read, changed, and passed on to all backends.
//!
//! With etcd the registry is in etcd. Without it, the first backend by name keeps it in its
//! store: members never change then, and a change that not all of them have taken is answered
//! with an error. Either way a change counts as soon as the registry has it, and backends
//! that miss it catch up (`follow`). `prism_replica` defines the changes, and which record
//! counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prism_membership::Buckets;
use prism_replica::{Bucket, BucketRefusal, Phase};
use prism_s3::{Code, Principal, S3Error};
use prism_store::{Stamp, Store};

use crate::ask::done_by_all;
use crate::blocking::{blocking, joined};
use crate::buckets;
use crate::errors::store_error;
use crate::question::{Question, Reply};
use crate::{Node, Replicator};

/// How often a change is tried where others change the same bucket.
const TRIES: u32 = 5;
/// Longest wait for those that need not have heard of a change.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

impl Replicator {
    /// The agreed record of a bucket at this moment.
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

    /// Agrees on `next`, if what was agreed has the stamp `before`; says whether it had.
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

    /// All that is agreed about buckets at this moment, where that is in etcd.
    pub async fn all_agreed(&self) -> Result<Arc<Buckets>, S3Error> {
        let etcd = self.node.cluster.registry();
        let etcd = etcd.ok_or(Code::InternalError)?;
        etcd.all().await.map(Arc::new).map_err(|e| out_of_reach(&e))
    }

    async fn ask_keeper(&self, question: &Question) -> Result<Reply, S3Error> {
        let keeper = self.node.keeper().ok_or(Code::ServiceUnavailable)?;
        self.ask_as(&keeper, &Principal::Anonymous, question).await
    }

    /// Changes what is agreed about a bucket; gives what is agreed then.
    pub async fn alter_bucket(
        &self,
        bucket: &str,
        alter: impl Fn(Option<&Bucket>, Stamp) -> Result<Bucket, BucketRefusal>,
    ) -> Result<Bucket, S3Error> {
        for _ in 0..TRIES {
            let known = self.agreed(bucket).await?;
            let before = known.as_ref().map(|known| known.stamp);
            let next = alter(known.as_ref(), self.node.stamp_above(before)).map_err(refused)?;
            if self.agree(bucket, before, &next).await? {
                return Ok(next);
            }
        }
        Err(Code::OperationAborted.into())
    }

    /// Has every backend act by a record that is agreed on: all, or an error.
    pub async fn tell_all(&self, bucket: &str, record: &Bucket) -> Result<(), S3Error> {
        let question = Question::TakeBucket {
            bucket: bucket.to_owned(),
            record: Box::new(record.clone()),
        };
        done_by_all(self.ask_everyone(&Principal::Anonymous, &question).await)
    }

    /// The same, where those that it does not reach will follow.
    pub async fn tell_most(&self, bucket: &str, record: &Bucket) {
        let told = tokio::time::timeout(TOLD_WITHIN, self.tell_all(bucket, record));
        if !matches!(told.await, Ok(Ok(()))) {
            tracing::debug!(bucket, "not all have heard of a bucket's change yet");
        }
    }

    /// Has this node's store know a bucket, if there is one: to be asked before the store
    /// is. It may have been made while this node was away, or a moment ago.
    ///
    /// # Errors
    /// [`Code::NoSuchBucket`]; unavailable where that is not known.
    pub async fn know_bucket(&self, bucket: &str) -> Result<(), S3Error> {
        match &self.node.store {
            Some(store) if !store.buckets().has(bucket) => {
                Box::pin(self.learn_bucket(bucket)).await
            }
            _ => Ok(()),
        }
    }

    /// The same, whatever the store knows.
    pub async fn learn_bucket(&self, bucket: &str) -> Result<(), S3Error> {
        let record = self.agreed(bucket).await?.ok_or(Code::NoSuchBucket)?;
        let is_gone = record.phase == Phase::Gone;
        self.take_bucket(bucket, record).await?;
        match is_gone {
            true => Err(Code::NoSuchBucket.into()),
            false => Ok(()),
        }
    }

    /// The buckets of this node's store.
    pub(crate) async fn names_of_buckets(&self) -> Result<Vec<String>, S3Error> {
        self.node
            .on_store(|_, store| {
                let buckets = store.buckets().list().map_err(|e| store_error(&e))?;
                Ok(buckets.into_iter().map(|bucket| bucket.name).collect())
            })
            .await
    }

    /// All records of buckets in a backend's store, unless its version is still `unless`.
    pub async fn buckets_of(
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
            match self.ask_as(name, &Principal::Anonymous, &question).await? {
                Reply::Buckets { version, page } if page.is_empty() => {
                    return Ok((first.unwrap_or(version), found));
                }
                Reply::Buckets { version, page } => {
                    // Changes between pages are found by the next look.
                    first = first.or(Some(version));
                    found.extend(page.into_iter().map(|(name, b)| (name, Arc::new(b))));
                }
                _ => return Err(Code::InternalError.into()),
            }
        }
    }

    /// Has the store act by all that is agreed on.
    pub async fn take_all(&self, agreed: &Arc<Buckets>) -> Result<(), S3Error> {
        let agreed = agreed.clone();
        self.node
            .on_store(move |node, store| buckets::take_newer(node, store, &agreed))
            .await
    }

    /// Has this node's store act by a record.
    pub async fn take_bucket(&self, bucket: &str, record: Bucket) -> Result<(), S3Error> {
        let bucket = bucket.to_owned();
        joined(blocking(&self.node, move |node| {
            take_record(
                node,
                node.store.as_ref().ok_or(Code::InternalError)?,
                &bucket,
                &record,
            )
        }))
        .await
    }
}

impl Node {
    /// The backend whose store is the registry, where there is no etcd.
    pub fn keeper(&self) -> Option<String> {
        self.replication.backends().into_iter().next()
    }

    /// This node is that one, and knows what any backend knew when it was started.
    ///
    /// # Errors
    /// Unavailable, where it is not.
    pub fn check_keeper(&self) -> Result<(), S3Error> {
        let is_keeper = self.keeper().is_some_and(|keeper| keeper == self.name);
        let is_only = self.replication.backends().len() == 1;
        match is_keeper && (is_only || self.heard_all.load(Ordering::Acquire)) {
            true => Ok(()),
            false => Err(not_yet(
                "Not all backends have said yet what buckets they have.",
            )),
        }
    }

    /// It knows that from now on.
    pub fn has_heard_all(&self) {
        self.heard_all.store(true, Ordering::Release);
    }

    /// A stamp for a bucket's record that is above this one.
    pub fn stamp_above(&self, above: Option<Stamp>) -> Stamp {
        let epoch = self.replication.view().epoch();
        self.stamps
            .next(epoch, now_us(), above.unwrap_or(Stamp::NONE))
    }
}

/// Has a store act by a record; what a deleted bucket leaves is removed in the
/// background. Blocks on disk.
pub(crate) fn take_record(
    node: &Node,
    store: &Store,
    bucket: &str,
    record: &Bucket,
) -> Result<(), S3Error> {
    node.stamps.observe(record.stamp);
    store
        .buckets()
        .accept_record(bucket, record)
        .map_err(|e| store_error(&e))?;
    if record.phase == Phase::Gone {
        node.purge.notify_one();
    }
    Ok(())
}

fn refused(refusal: BucketRefusal) -> S3Error {
    match refusal {
        BucketRefusal::Exists => Code::BucketAlreadyOwnedByYou.into(),
        BucketRefusal::Missing => Code::NoSuchBucket.into(),
        BucketRefusal::Deleting => Code::OperationAborted.into(),
    }
}

/// The answer where something has to settle first; asking again helps.
pub fn not_yet(why: &'static str) -> S3Error {
    Code::ServiceUnavailable.with_message(why)
}

fn out_of_reach(error: &anyhow::Error) -> S3Error {
    tracing::warn!(
        error = format!("{error:#}"),
        "etcd does not say what buckets there are"
    );
    Code::ServiceUnavailable
        .with_message("It cannot be found out what buckets there are. Try again.")
}

/// Microseconds since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}
