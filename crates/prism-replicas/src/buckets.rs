//! This backend's copy of the agreed records of buckets, updated whenever they change. This
//! task also finishes what others left behind: abandoned deletions, the remains of deleted
//! buckets, and records that are no longer needed.

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
use crate::registry::{now_us, take_record};
use crate::{Node, Replicator};

/// How often is looked without news.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while a node has begun and does not know yet what is agreed.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// A deletion that has not ended by then is given up: the bucket lives on.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// How old the record of a deletion is before it may be forgotten: no message of before it
/// is under way any more. And how often that is looked at.
const REMEMBERED_US: u64 = 3_600_000_000;
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Records forgotten at a time.
const FORGOTTEN_AT_ONCE: usize = 100;

/// The versions that this backend has seen so far.
#[derive(Default)]
struct Seen {
    /// The revision of etcd.
    revision: u64,
    /// The records that the store acts by.
    agreed: Option<Arc<Buckets>>,
    /// The versions of the keeper's records and of this store's own.
    version: Option<u64>,
    own_version: Option<u64>,
    /// Whether the records of this store from before the start are agreed on.
    is_adopted: bool,
    /// Deletions under way, and since when.
    deleting: HashMap<String, (Stamp, Instant)>,
    forgotten: Option<Instant>,
}

/// The one task of a node that keeps its buckets as agreed.
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
                tracing::debug!(%error, "buckets are not up to date yet");
                // Clients may wait for it.
                if !self.seen.is_adopted {
                    pause = LOOK_SOON;
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
            self.replicator.take_all(&agreed).await?;
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
                self.hear_all().await?;
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

    /// As the keeper: knows what any backend knows, before it says what there is not.
    async fn hear_all(&self) -> Result<(), S3Error> {
        let others = self.replicator.node.replication.backends().into_iter();
        for other in others.filter(|other| *other != self.replicator.node.name) {
            let (_, found) = self.replicator.buckets_of(&other, None).await?;
            for (name, record) in found {
                let node = &self.replicator.node;
                joined(blocking(node, move |node| hear(node, &name, &record))).await?;
            }
        }
        self.replicator.node.has_heard_all();
        Ok(())
    }

    /// Adds buckets that the registry lacks: they are older than the registry, or the
    /// registry has lost them. Buckets of a store that belongs to no member do not count.
    async fn adopt_own(&self, agreed: &Buckets, is_first: bool) -> Result<(), S3Error> {
        if !self.is_of_member()? {
            return Ok(());
        }
        let lacks = |name: &String, which: &BucketStamp| match agreed.get(name) {
            None => which.phase != Phase::Gone,
            // Stores of before may each have a part of what was said of it.
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
                tracing::info!(bucket = name, "a bucket of this store is agreed on now");
                self.replicator.tell_most(&name, &next).await;
            }
        }
        Ok(())
    }

    /// Whether the cluster speaks of this store, or of none of this node's yet.
    fn is_of_member(&self) -> Result<bool, S3Error> {
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

    /// A deletion that the registry has forgotten need not be remembered here.
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

    /// Has buckets live on whose deletion nobody goes on with: that harms nobody, whatever
    /// became of whoever began it.
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
            if begun.elapsed() < GIVEN_UP_AFTER {
                continue;
            }
            let Some(agreed) = self.replicator.agreed(&name).await? else {
                continue;
            };
            if agreed.stamp != which.stamp {
                self.replicator.take_bucket(&name, agreed).await?;
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
                    "a deletion was not finished: the bucket lives on"
                );
                self.replicator.tell_most(&name, &live).await;
            }
        }
        Ok(())
    }

    /// Forgets deletions of buckets that every backend there is has heard of, long ago.
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
                || self.replicator.tell_all(&name, &agreed).await.is_err()
            {
                continue;
            }
            match self.replicator.node.cluster.registry() {
                Some(etcd) => drop(etcd.change(&name, Some(agreed.stamp), None).await),
                None => self.forget_missing_one(name, which.stamp).await?,
            }
        }
        Ok(())
    }

    async fn forget_missing_one(&self, name: String, stamp: Stamp) -> Result<(), S3Error> {
        self.replicator
            .node
            .on_store(move |_, store| {
                let forgotten = store.buckets().forget(&name, stamp);
                forgotten.map_err(|e| store_error(&e))
            })
            .await
    }

    async fn known_here(&self) -> Result<BTreeMap<String, BucketStamp>, S3Error> {
        joined(blocking(&self.replicator.node, |node| {
            known_by(node.store.as_ref().ok_or(Code::InternalError)?)
        }))
        .await
    }
}

/// Removes what deleted buckets have left, until the node stops. One worker does it.
pub(crate) async fn purge_buckets(replicator: &Replicator) {
    let node = &replicator.node;
    loop {
        let purged = joined(blocking(node, |node| match &node.store {
            Some(store) => purge_all(store),
            None => Ok(()),
        }));
        if let Err(error) = purged.await {
            tracing::warn!(%error, "what a deleted bucket has left was not removed");
        }
        tokio::select! {
            () = node.purge.notified() => {}
            () = node.orders.reached(Stage::Leaving) => return,
        }
    }
}

/// No message that was sent before this is under way any more.
fn is_old(stamp: Stamp) -> bool {
    now_us().saturating_sub(stamp.time_us) > REMEMBERED_US
}

fn known_by(store: &Store) -> Result<BTreeMap<String, BucketStamp>, S3Error> {
    let all = store.buckets().names("", BUCKET_RECORDS_MAX);
    let all = all.map_err(|e| store_error(&e))?.into_iter();
    Ok(all.map(|info| (info.name, info.which)).collect())
}

/// Has a store act by all that is agreed on and newer than what it knows. Blocks on disk.
pub(crate) fn take_newer(node: &Node, store: &Store, agreed: &Buckets) -> Result<(), S3Error> {
    let known = known_by(store)?;
    for (name, record) in agreed {
        let is_known = known
            .get(name)
            .is_some_and(|known| known.stamp >= record.stamp);
        if !is_known {
            take_record(node, store, name, record)?;
        }
    }
    Ok(())
}

/// As the keeper: has what another backend knows of a bucket. Blocks on disk.
fn hear(node: &Node, name: &str, theirs: &Bucket) -> Result<(), S3Error> {
    let store = node.store.as_ref().ok_or(Code::InternalError)?;
    let mine = store.buckets().record(name).map_err(|e| store_error(&e))?;
    let stamp = node.stamp_above(mine.as_ref().map(|mine| mine.stamp));
    match Bucket::adopt(mine.as_ref(), theirs, stamp) {
        Some(next) if theirs.life == Stamp::NONE => take_record(node, store, name, &next),
        _ => take_record(node, store, name, theirs),
    }
}

/// Removes what buckets that are gone have left. Blocks on disk.
fn purge_all(store: &Store) -> Result<(), S3Error> {
    for (name, which) in known_by(store)? {
        if which.phase != Phase::Gone {
            continue;
        }
        match store.buckets().purge(&name) {
            // It has another life by now, and nothing of this one.
            Ok(()) | Err(prism_store::Error::AlreadyExists) => {}
            Err(error) => return Err(store_error(&error)),
        }
    }
    Ok(())
}
