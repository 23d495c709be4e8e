//! This store's copy of the agreed records of buckets, updated whenever they change.
//!
//! The same task finishes what others left behind: abandoned deletions, the remains of deleted
//! buckets, and records that are no longer needed.
//!
//! Not here: the registry itself (`registry.rs`).

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_membership::Buckets;
use prism_replica::{Bucket, BucketStamp, Phase};
use prism_s3::{Code, S3Error};
use prism_service::Stage;
use prism_store::{BUCKET_RECORDS_MAX, Stamp, Store};

use crate::blocking::{blocking, joined};
use crate::errors::store_error;
use crate::registry::{apply_record, now_us};
use crate::{Node, Replicator};

/// Time between two looks without news.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks after a start, until the agreed records are known.
const LOOK_AT_START: Duration = Duration::from_millis(50);
/// Time after which a deletion that has not ended is given up: the bucket lives on.
const DELETION_TIMEOUT: Duration = Duration::from_secs(10);
/// Age at which the record of a deletion may be forgotten, in microseconds. No message from
/// before the deletion is under way by then.
const REMEMBERED_US: u64 = 3_600_000_000;
/// Time between two looks for such records.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Records forgotten at a time.
const FORGOTTEN_AT_ONCE: usize = 100;

/// The versions that this task has seen so far.
#[derive(Default)]
struct Seen {
    /// The revision of etcd.
    revision: u64,
    /// The agreed records that the store acts by.
    agreed: Option<Arc<Buckets>>,
    /// The version of the keeper's records.
    version: Option<u64>,
    /// The version of this store's own records.
    own_version: Option<u64>,
    /// Whether the registry has the records that this store had at the start.
    is_adopted: bool,
    /// Deletions under way, and when this task first saw them.
    deleting: HashMap<String, (Stamp, Instant)>,
    forgotten: Option<Instant>,
}

/// The one task of a node that has its store act by the agreed records.
pub(crate) struct BucketFollower {
    replicator: Rc<Replicator>,
    seen: Seen,
}

impl BucketFollower {
    pub(crate) fn new(replicator: Rc<Replicator>) -> Self {
        Self {
            replicator,
            seen: Seen::default(),
        }
    }

    /// Runs until the node stops.
    pub(crate) async fn run(&mut self) {
        if self.replicator.node.store.is_none() {
            return;
        }
        loop {
            let mut pause = LOOK_EVERY;
            if let Err(error) = self.follow_once().await {
                tracing::debug!(%error, "cannot follow the registry of buckets yet; trying again");
                // Clients may wait for their buckets.
                if !self.seen.is_adopted {
                    pause = LOOK_AT_START;
                }
            }
            let node = &self.replicator.node;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = node.cluster.news(&mut self.seen.revision) => {}
                () = node.orders.reached(Stage::Leaving) => return,
            }
        }
    }

    async fn follow_once(&mut self) -> Result<(), S3Error> {
        let store = self
            .replicator
            .node
            .store
            .as_ref()
            .ok_or(Code::InternalError)?;
        let own_version = Some(store.buckets().version());
        if let Some((agreed, version)) = self.news_of_buckets().await? {
            self.replicator.apply_records(&agreed).await?;
            self.adopt_own(&agreed, !self.seen.is_adopted).await?;
            self.seen.is_adopted = true;
            self.forget_missing(&agreed).await?;
            (self.seen.agreed, self.seen.version) = (Some(agreed), version);
        }
        if self.seen.own_version != own_version || !self.seen.deleting.is_empty() {
            self.give_up_deletions().await?;
            self.seen.own_version = own_version;
        }
        if self
            .seen
            .forgotten
            .is_none_or(|at| at.elapsed() >= FORGET_EVERY)
        {
            self.seen.forgotten = Some(Instant::now());
            self.forget_deletions_of_buckets().await?;
        }
        Ok(())
    }

    /// The agreed records and their version, if they may have changed.
    async fn news_of_buckets(&mut self) -> Result<Option<(Arc<Buckets>, Option<u64>)>, S3Error> {
        if let Some(known) = self.replicator.node.cluster.known() {
            let counts = known.state.is_some() && self.replicator.node.cluster.fault().is_none();
            let is_same = |agreed: &Arc<Buckets>| Arc::ptr_eq(agreed, &known.buckets);
            let is_new = !self.seen.agreed.as_ref().is_some_and(is_same);
            return Ok((counts && is_new).then(|| (known.buckets.clone(), None)));
        }
        let keeper = self
            .replicator
            .node
            .keeper()
            .ok_or(Code::ServiceUnavailable)?;
        if keeper == self.replicator.node.name {
            if !self.seen.is_adopted {
                self.collect_records().await?;
                self.seen.is_adopted = true;
            }
            return Ok(None);
        }
        let (version, found) = self
            .replicator
            .buckets_of(&keeper, self.seen.version)
            .await?;
        let is_new = self.seen.version != Some(version);
        Ok(is_new.then(|| (Arc::new(found), Some(version))))
    }

    /// As the keeper, adds the records of all other backends. Until then a bucket that is missing
    /// here may exist.
    async fn collect_records(&self) -> Result<(), S3Error> {
        let others = self.replicator.node.replication.backends().into_iter();
        for other in others.filter(|other| *other != self.replicator.node.name) {
            let (_, found) = self.replicator.buckets_of(&other, None).await?;
            for (name, record) in found {
                let node = &self.replicator.node;
                node.on_store(move |node, store| merge_record(node, store, &name, &record))
                    .await?;
            }
        }
        self.replicator.node.set_has_all_records();
        Ok(())
    }

    /// Adds buckets that the registry lacks: they are older than the registry, or the
    /// registry has lost them. Buckets of a store that belongs to no member do not count.
    async fn adopt_own(&self, agreed: &Buckets, is_first: bool) -> Result<(), S3Error> {
        if !self.is_store_of_member()? {
            return Ok(());
        }
        let lacks = |name: &String, which: &BucketStamp| match agreed.get(name) {
            None => which.phase != Phase::Gone,
            // Records of earlier releases may each have a part of the documents.
            Some(_) => is_first && which.life == Stamp::NONE,
        };
        let known = self.known_here().await?.into_iter();
        for (name, _) in known.filter(|(name, which)| lacks(name, which)) {
            let Some(here) = self.record_here(name.clone()).await? else {
                continue;
            };
            let known = self.replicator.agreed(&name).await?;
            let before = known.as_ref().map(|known| known.stamp);
            let stamp = self
                .replicator
                .node
                .stamp_above(before.max(Some(here.stamp)));
            if let Some(next) = Bucket::adopt(known.as_ref(), &here, stamp)
                && self.replicator.agree(&name, before, &next).await?
            {
                tracing::info!(bucket = name, "the registry has got a bucket of this store");
                self.replicator.try_push_record(&name, &next).await;
            }
        }
        Ok(())
    }

    /// Whether this store is the member's store, by the view, or the view names none yet.
    fn is_store_of_member(&self) -> Result<bool, S3Error> {
        let store = self
            .replicator
            .node
            .store
            .as_ref()
            .ok_or(Code::InternalError)?;
        let view = self.replicator.node.replication.view();
        let backend = view
            .state()
            .backends
            .get(self.replicator.node.name.as_str());
        Ok(backend.is_some_and(|backend| [0, store.identity()].contains(&backend.store)))
    }

    async fn record_here(&self, bucket: String) -> Result<Option<Bucket>, S3Error> {
        self.replicator
            .node
            .on_store(move |_, store| store.buckets().record(&bucket).map_err(|e| store_error(&e)))
            .await
    }

    /// Forgets old deletions that the registry has forgotten.
    async fn forget_missing(&self, agreed: &Buckets) -> Result<(), S3Error> {
        let known = self.known_here().await?.into_iter();
        let mut missing: Vec<(String, Stamp)> = known
            .filter(|(name, which)| which.phase == Phase::Gone && !agreed.contains_key(name))
            .map(|(name, which)| (name, which.stamp))
            .collect();
        missing.retain(|(_, stamp)| is_old(*stamp));
        self.replicator
            .node
            .on_store(move |_, store| {
                for (name, stamp) in missing {
                    let forgotten = store.buckets().forget(&name, stamp);
                    forgotten.map_err(|e| store_error(&e))?;
                }
                Ok(())
            })
            .await
    }

    /// Ends abandoned deletions: the bucket lives on. The node that began the deletion may be
    /// gone; if it is not, its deletion fails.
    async fn give_up_deletions(&mut self) -> Result<(), S3Error> {
        let known = self.known_here().await?;
        self.seen.deleting.retain(|name, (stamp, _)| {
            let which = known.get(name);
            which.is_some_and(|which| which.stamp == *stamp)
        });
        for (name, which) in known {
            if which.phase != Phase::Deleting {
                continue;
            }
            let begun = self.seen.deleting.entry(name.clone());
            let (_, begun) = begun.or_insert((which.stamp, Instant::now()));
            if begun.elapsed() < DELETION_TIMEOUT {
                continue;
            }
            let Some(agreed) = self.replicator.agreed(&name).await? else {
                continue;
            };
            if agreed.stamp != which.stamp {
                self.replicator.apply_record(&name, agreed).await?;
                continue;
            }
            let live =
                agreed.end_deletion(self.replicator.node.stamp_above(Some(agreed.stamp)), false);
            if self
                .replicator
                .agree(&name, Some(agreed.stamp), &live)
                .await?
            {
                tracing::warn!(
                    bucket = name,
                    "gave up a deletion that did not end: the bucket lives on"
                );
                self.replicator.try_push_record(&name, &live).await;
            }
        }
        Ok(())
    }

    /// Forgets old deletions of buckets, once all backends have their records.
    async fn forget_deletions_of_buckets(&self) -> Result<(), S3Error> {
        let replication = &self.replicator.node.replication;
        let first = replication.in_sync().into_iter().next();
        if !replication.is_calm() || first.is_none_or(|name| name != self.replicator.node.name) {
            return Ok(());
        }
        let known = self.known_here().await?.into_iter();
        let old = known.filter(|(_, which)| which.phase == Phase::Gone && is_old(which.stamp));
        for (name, which) in old.take(FORGOTTEN_AT_ONCE) {
            let Some(agreed) = self.replicator.agreed(&name).await? else {
                continue;
            };
            if agreed.stamp != which.stamp
                || self.replicator.push_record(&name, &agreed).await.is_err()
            {
                continue;
            }
            match self.replicator.node.cluster.registry() {
                Some(etcd) => drop(etcd.change(&name, Some(agreed.stamp), None).await),
                None => self.forget_record(name, which.stamp).await?,
            }
        }
        Ok(())
    }

    async fn forget_record(&self, name: String, stamp: Stamp) -> Result<(), S3Error> {
        self.replicator
            .node
            .on_store(move |_, store| {
                let forgotten = store.buckets().forget(&name, stamp);
                forgotten.map_err(|e| store_error(&e))
            })
            .await
    }

    async fn known_here(&self) -> Result<BTreeMap<String, BucketStamp>, S3Error> {
        self.replicator
            .node
            .on_store(|_, store| known_by(store))
            .await
    }
}

/// Removes the remains of deleted buckets, until the node stops. One worker runs it.
pub(crate) async fn purge_buckets(replicator: &Replicator) {
    let node = &replicator.node;
    loop {
        let purged = joined(blocking(node, |node| match &node.store {
            Some(store) => purge_all(store),
            None => Ok(()),
        }));
        if let Err(error) = purged.await {
            tracing::warn!(%error, "cannot remove the remains of a deleted bucket");
        }
        tokio::select! {
            () = node.purge.notified() => {}
            () = node.orders.reached(Stage::Leaving) => return,
        }
    }
}

/// Whether no message from before `stamp` is under way any more.
fn is_old(stamp: Stamp) -> bool {
    now_us().saturating_sub(stamp.time_us) > REMEMBERED_US
}

fn known_by(store: &Store) -> Result<BTreeMap<String, BucketStamp>, S3Error> {
    let all = store.buckets().names("", BUCKET_RECORDS_MAX);
    let all = all.map_err(|e| store_error(&e))?.into_iter();
    Ok(all.map(|info| (info.name, info.which)).collect())
}

/// Has a store act by the agreed records that are newer than its own. Blocks on disk.
pub(crate) fn apply_newer_records(
    node: &Node,
    store: &Store,
    agreed: &Buckets,
) -> Result<(), S3Error> {
    let known = known_by(store)?;
    for (name, record) in agreed {
        let is_known = known
            .get(name)
            .is_some_and(|known| known.stamp >= record.stamp);
        if !is_known {
            apply_record(node, store, name, record)?;
        }
    }
    Ok(())
}

/// As the keeper, adds another backend's record of a bucket. Blocks on disk.
fn merge_record(node: &Node, store: &Store, name: &str, theirs: &Bucket) -> Result<(), S3Error> {
    let mine = store.buckets().record(name).map_err(|e| store_error(&e))?;
    let stamp = node.stamp_above(mine.as_ref().map(|mine| mine.stamp));
    match Bucket::adopt(mine.as_ref(), theirs, stamp) {
        Some(next) if theirs.life == Stamp::NONE => apply_record(node, store, name, &next),
        _ => apply_record(node, store, name, theirs),
    }
}

/// Removes the remains of all deleted buckets. Blocks on disk.
fn purge_all(store: &Store) -> Result<(), S3Error> {
    for (name, which) in known_by(store)? {
        if which.phase != Phase::Gone {
            continue;
        }
        match store.buckets().purge(&name) {
            // The bucket was made again, after its remains had gone.
            Ok(()) | Err(prism_store::Error::AlreadyExists) => {}
            Err(error) => return Err(store_error(&error)),
        }
    }
    Ok(())
}
