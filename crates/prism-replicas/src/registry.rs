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

use prism_cluster::Status;
use prism_cluster::replica::{Ancestry, Bucket, BucketRefusal, BucketStamp, Phase, Proof};
use prism_membership::{AgreedBucket, Buckets};
use prism_s3::{Code, S3Error};
use prism_service::join_all;
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
        let agreed = self.agreed_with_ancestry(bucket).await?;
        Ok(agreed.map(|(record, _)| record))
    }

    /// The same with its ancestry, which only etcd has.
    pub(crate) async fn agreed_with_ancestry(
        &self,
        bucket: &str,
    ) -> Result<Option<AgreedBucket>, S3Error> {
        if let Some(etcd) = self.node.core.cluster.registry() {
            return etcd.read(bucket).await.map_err(|e| out_of_reach(&e));
        }
        let bucket = bucket.to_owned();
        match self.ask_keeper(&Question::Agreed { bucket }).await? {
            Reply::Agreed(found) => Ok(found.map(|bucket| (*bucket, None))),
            _ => Err(Code::InternalError.into()),
        }
    }

    /// Replaces the agreed record by `next`, if its stamp is `before`. `ancestry` is that of a
    /// life that begins. False: another change came first.
    ///
    /// # Errors
    /// Unavailable if the registry is out of reach. The change may have been made.
    pub async fn agree(
        &self,
        bucket: &str,
        before: Option<Stamp>,
        next: &Bucket,
        ancestry: Option<Ancestry>,
    ) -> Result<bool, S3Error> {
        if let Some(etcd) = self.node.core.cluster.registry() {
            let changed = etcd.change(bucket, before, next, ancestry).await;
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
        let etcd = self.node.core.cluster.registry();
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
            let ancestry = Bucket::ancestry(known.as_ref(), &next);
            if self.agree(bucket, before, &next, ancestry).await? {
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
    ///
    /// # Errors
    /// [`Code::OperationAborted`]: a backend has another bucket of this name, whose deletion
    /// nothing proves. Unavailable if no backend in sync acts by the record: etcd alone can lose
    /// it.
    pub async fn try_push_record(&self, bucket: &str, record: &Bucket) -> Result<(), S3Error> {
        let question = Question::TakeBucket {
            bucket: bucket.to_owned(),
            record: Box::new(record.clone()),
        };
        let nodes = (self.node.replication).backends_with(|status| status != Status::Out);
        let asked = nodes.iter();
        let asked = asked.map(|node| self.ask_within(PUSH_TIMEOUT, node, &question));
        let answers = join_all(asked.collect()).await;
        let in_sync = self.node.replication.in_sync();
        let is_kept = nodes
            .iter()
            .zip(&answers)
            .any(|(node, answer)| answer.is_ok() && in_sync.contains(node));
        match done_by_all(answers) {
            Err(error) if is_kept && error.code() != Code::OperationAborted => {
                tracing::debug!(bucket, %error, "some backends miss a bucket's change for now");
                Ok(())
            }
            pushed => pushed,
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
        let agreed = self.agreed_with_ancestry(bucket).await?;
        let agreed = agreed.ok_or(Code::NoSuchBucket)?;
        let phase = agreed.0.phase;
        self.apply_agreed(bucket, agreed).await?;
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
        let mut found = BTreeMap::new();
        let mut first = None;
        loop {
            let after = found
                .last_key_value()
                .map(|(name, _): (&String, _)| name.clone());
            let question = Question::Buckets {
                unless: unless.filter(|_| after.is_none()),
                after: after.unwrap_or_default(),
            };
            match self.ask(name, &question).await? {
                Reply::Buckets { version, page } if page.is_empty() => {
                    let found = Buckets {
                        records: found,
                        ancestries: BTreeMap::new(),
                    };
                    return Ok((first.unwrap_or(version), found));
                }
                Reply::Buckets { version, page } => {
                    // The next call finds changes between two pages, because the version is the
                    // first.
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

    /// Has this node's store act by a record as the registry has it now.
    pub(crate) async fn apply_agreed(
        &self,
        bucket: &str,
        (record, ancestry): AgreedBucket,
    ) -> Result<(), S3Error> {
        let bucket = bucket.to_owned();
        let apply = move |node: &Node, store: &Store| {
            let proof = node.proof_of(ancestry);
            node.apply_record(store, &bucket, &record, proof)
        };
        self.node.on_store(apply).await
    }

    /// Has this node's store act by the registry's record of a bucket, if the store has another
    /// life than `told`. A message may be older than the registry, and has no ancestry.
    pub(crate) async fn take_other_life(&self, bucket: &str, told: &Bucket) -> Result<(), S3Error> {
        let Some(store) = self.node.store.as_ref().filter(|_| self.is_in_etcd()) else {
            return Ok(());
        };
        let mine = store.buckets().record(bucket).in_s3()?;
        if mine.is_none_or(|mine| mine.life == told.life) {
            return Ok(());
        }
        let agreed = self.agreed_with_ancestry(bucket).await?;
        match agreed.filter(|(agreed, _)| agreed.life == told.life) {
            Some(agreed) => self.apply_agreed(bucket, agreed).await,
            None => Err(not_yet("The registry has another bucket of this name.")),
        }
    }

    fn is_in_etcd(&self) -> bool {
        self.node.core.cluster.is_in_etcd()
    }
}

impl Node {
    /// The backend whose store is the registry without etcd: the first by name.
    pub(crate) fn keeper(&self) -> Option<String> {
        self.replication.backends().into_iter().next()
    }

    /// Checks that this node is the keeper, and has the records of all backends.
    pub(crate) fn check_keeper(&self) -> Result<(), S3Error> {
        let is_keeper = self.keeper().is_some_and(|keeper| keeper == self.core.name);
        let is_only = self.replication.backends().len() == 1;
        if is_keeper && (is_only || self.has_all_records.load(Ordering::Acquire)) {
            Ok(())
        } else {
            Err(not_yet(
                "The registry of buckets waits for the records of all backends.",
            ))
        }
    }

    /// A new stamp for a bucket's record, above `above`.
    pub fn stamp_above(&self, above: Option<Stamp>) -> Stamp {
        let epoch = self.replication.view().epoch();
        self.stamps
            .next(epoch, now_us(), above.unwrap_or(Stamp::NONE))
    }

    /// The proof by which this node's store takes a record that the registry has now.
    pub(crate) fn proof_of(&self, ancestry: Option<Ancestry>) -> Proof {
        if self.is_catching_up() {
            Proof::CatchUp
        } else {
            Proof::Registry(ancestry)
        }
    }

    /// Whether this node's store has missed changes, by a state that is not in doubt.
    fn is_catching_up(&self) -> bool {
        let is_lagging =
            self.replication.view().state().status(&self.core.name) == Some(Status::Lagging);
        is_lagging && self.core.cluster.is_in_etcd() && self.core.cluster.fault().is_none()
    }

    /// Has the store act by a record. The remains of a deleted bucket are removed in the
    /// background. Blocks on disk.
    pub(crate) fn apply_record(
        &self,
        store: &Store,
        bucket: &str,
        record: &Bucket,
        proof: Proof,
    ) -> Result<(), S3Error> {
        let accepted = store.buckets().accept_record(bucket, record, proof);
        if let Err(Error::UnprovenDeletion(_)) = accepted {
            self.registry_doubted.notify_one();
        }
        accepted.in_s3()?;
        self.note_applied(record);
        Ok(())
    }

    /// Has the store act by a record of a message. With etcd the record has no proof for another
    /// life than the store's. Blocks on disk.
    pub(crate) fn apply_told(
        &self,
        store: &Store,
        bucket: &str,
        record: &Bucket,
    ) -> Result<(), S3Error> {
        let unproven = Ancestry {
            life: record.life,
            ended: Stamp::NONE,
        };
        let ancestry = self.core.cluster.is_in_etcd().then_some(unproven);
        self.apply_record(store, bucket, record, Proof::Registry(ancestry))
    }

    fn note_applied(&self, record: &Bucket) {
        self.stamps.observe(record.stamp);
        if record.phase == Phase::Gone {
            self.purge.notify_one();
        }
    }

    /// Has the store act by the agreed records that are newer than its own. A record that the
    /// store refuses is logged. Blocks on disk.
    pub(crate) fn apply_newer_records(
        &self,
        store: &Store,
        agreed: &Buckets,
    ) -> Result<(), S3Error> {
        let known = known_by(store)?;
        let is_catching_up = self.is_catching_up();
        for (name, record) in &agreed.records {
            let known = known.get(name);
            let is_news = |known: &BucketStamp| {
                if is_catching_up {
                    *known != record.which()
                } else {
                    known.stamp < record.stamp
                }
            };
            if known.is_some_and(|known| !is_news(known)) {
                continue;
            }
            let proof = self.proof_of(agreed.ancestries.get(name).copied());
            match store.buckets().accept_record(name, record, proof) {
                Err(error @ Error::UnprovenDeletion(_)) => {
                    tracing::error!(bucket = name, %error, "this store keeps its objects");
                }
                accepted => {
                    accepted.in_s3()?;
                    self.note_applied(record);
                }
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

pub(crate) fn out_of_reach(error: &anyhow::Error) -> S3Error {
    tracing::warn!(
        error = format!("{error:#}"),
        "cannot read the registry of buckets in etcd"
    );
    Code::ServiceUnavailable.with_message("The registry of buckets is out of reach. Try again.")
}
