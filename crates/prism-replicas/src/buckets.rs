//! This store's copy of the agreed records of buckets, updated whenever they change.
//!
//! The same task finishes what others left behind: abandoned deletions, the remains of deleted
//! buckets, and records that are no longer needed.
//!
//! Not here: the registry itself (`registry.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prism_cluster::replica::{Bucket, BucketStamp, Phase};
use prism_membership::Buckets;
use prism_s3::{Code, S3Error};
use prism_store::{Stamp, Store};

use crate::errors::StoreResult;
use crate::node::now_us;
use crate::registry::known_by;
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

/// What [`follow_buckets`] has seen so far.
struct BucketFollower<'r> {
    replicator: &'r Replicator,
    node: &'r Arc<Node>,
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

/// Has this node's store act by the agreed records.
pub(crate) async fn follow_buckets(replicator: &Replicator, store: &Store) {
    let node = &replicator.node;
    let mut follower = BucketFollower {
        replicator,
        node,
        agreed: None,
        version: None,
        own_version: None,
        is_adopted: false,
        deleting: HashMap::new(),
        forgotten: None,
    };
    // The revision of etcd that this task has seen.
    let mut revision = 0;
    loop {
        let mut pause = LOOK_EVERY;
        if let Err(error) = follower.follow_once(store).await {
            tracing::debug!(%error, "cannot follow the registry of buckets yet; trying again");
            // Clients may wait for their buckets.
            if !follower.is_adopted {
                pause = LOOK_AT_START;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            known = node.cluster.wait_until(|known| known.revision != revision) => {
                revision = known.revision;
            }
        }
    }
}

impl BucketFollower<'_> {
    async fn follow_once(&mut self, store: &Store) -> Result<(), S3Error> {
        let own_version = Some(store.buckets().version());
        if let Some((agreed, version)) = self.news_of_buckets().await? {
            self.replicator.apply_records(&agreed).await?;
            self.adopt_own(store, &agreed).await?;
            self.is_adopted = true;
            self.forget_missing(&agreed).await?;
            (self.agreed, self.version) = (Some(agreed), version);
        }
        if self.own_version != own_version || !self.deleting.is_empty() {
            self.give_up_deletions().await?;
            self.own_version = own_version;
        }
        if self.forgotten.is_none_or(|at| at.elapsed() >= FORGET_EVERY) {
            self.forgotten = Some(Instant::now());
            self.forget_deletions_of_buckets().await?;
        }
        Ok(())
    }

    /// The agreed records and their version, if they may have changed.
    async fn news_of_buckets(&mut self) -> Result<Option<(Arc<Buckets>, Option<u64>)>, S3Error> {
        if let Some(known) = self.node.cluster.known() {
            let counts = known.state.is_some() && self.node.cluster.fault().is_none();
            let agreed = self.agreed.as_ref();
            let is_new = agreed.is_none_or(|agreed| !Arc::ptr_eq(agreed, &known.buckets));
            return Ok((counts && is_new).then(|| (known.buckets.clone(), None)));
        }
        let keeper = self.node.keeper().ok_or(Code::ServiceUnavailable)?;
        if keeper == self.node.name {
            if !self.is_adopted {
                self.collect_records().await?;
                self.is_adopted = true;
            }
            return Ok(None);
        }
        let (version, found) = self.replicator.buckets_of(&keeper, self.version).await?;
        let is_new = self.version != Some(version);
        Ok(is_new.then(|| (Arc::new(found), Some(version))))
    }

    /// As the keeper, adds the records of all other backends. Until then a bucket that is missing
    /// here may exist.
    async fn collect_records(&self) -> Result<(), S3Error> {
        let others = self.node.replication.backends().into_iter();
        for other in others.filter(|other| *other != self.node.name) {
            let (_, found) = self.replicator.buckets_of(&other, None).await?;
            for (name, record) in found {
                let merge =
                    move |node: &Node, store: &Store| merge_record(node, store, &name, &record);
                self.node.on_store(merge).await?;
            }
        }
        self.node.has_all_records.store(true, Ordering::Release);
        Ok(())
    }

    /// Adds buckets that the registry lacks: they are older than the registry, or the
    /// registry has lost them. Buckets of a store that belongs to no member do not count.
    async fn adopt_own(&self, store: &Store, agreed: &Buckets) -> Result<(), S3Error> {
        let view = self.node.replication.view();
        let backend = view.state().backends.get(self.node.name.as_str());
        // The view may name no store for this member yet.
        if !backend.is_some_and(|backend| [0, store.identity()].contains(&backend.store)) {
            return Ok(());
        }
        let lacks = |name: &String, which: &BucketStamp| match agreed.get(name) {
            None => which.phase != Phase::Gone,
            // Records of earlier releases may each have a part of the documents.
            Some(_) => !self.is_adopted && which.life == Stamp::NONE,
        };
        let known = self.known_here().await?.into_iter();
        for (name, _) in known.filter(|(name, which)| lacks(name, which)) {
            let own_name = name.clone();
            let record = self
                .node
                .on_store(move |_, store| store.buckets().record(&own_name).in_s3());
            let Some(here) = record.await? else {
                continue;
            };
            let known = self.replicator.agreed(&name).await?;
            let before = known.as_ref().map(|known| known.stamp);
            let stamp = self.node.stamp_above(before.max(Some(here.stamp)));
            if let Some(next) = Bucket::adopt(known.as_ref(), &here, stamp)
                && self.replicator.agree(&name, before, &next).await?
            {
                tracing::info!(bucket = name, "the registry has got a bucket of this store");
                self.replicator.try_push_record(&name, &next).await;
            }
        }
        Ok(())
    }

    /// Forgets old deletions that the registry has forgotten.
    async fn forget_missing(&self, agreed: &Buckets) -> Result<(), S3Error> {
        for (name, stamp) in self.old_deletions().await? {
            if !agreed.contains_key(&name) {
                self.forget_record(name, stamp).await?;
            }
        }
        Ok(())
    }

    /// The deletions that this store remembers, and of whose time no message is under way any
    /// more.
    async fn old_deletions(&self) -> Result<impl Iterator<Item = (String, Stamp)>, S3Error> {
        let is_old = |which: &BucketStamp| {
            let age_us = now_us().saturating_sub(which.stamp.time_us);
            which.phase == Phase::Gone && age_us > REMEMBERED_US
        };
        let known = self.known_here().await?.into_iter();
        let old = known.filter(move |(_, which)| is_old(which));
        Ok(old.map(|(name, which)| (name, which.stamp)))
    }

    /// Ends abandoned deletions: the bucket lives on. The node that began the deletion may be
    /// gone; if it is not, its deletion fails.
    async fn give_up_deletions(&mut self) -> Result<(), S3Error> {
        let known = self.known_here().await?;
        let deleting = &mut self.deleting;
        deleting.retain(|name, (stamp, _)| known.get(name).is_some_and(|w| w.stamp == *stamp));
        for (name, which) in known {
            if which.phase != Phase::Deleting {
                continue;
            }
            let begun = self.deleting.entry(name.clone());
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
            let before = Some(agreed.stamp);
            let live = agreed.end_deletion(self.node.stamp_above(before), false);
            if self.replicator.agree(&name, before, &live).await? {
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
        let replication = &self.node.replication;
        let first = replication.in_sync().into_iter().next();
        if !replication.is_calm() || first.is_none_or(|name| name != self.node.name) {
            return Ok(());
        }
        for (name, stamp) in self.old_deletions().await?.take(FORGOTTEN_AT_ONCE) {
            let Some(agreed) = self.replicator.agreed(&name).await? else {
                continue;
            };
            if agreed.stamp != stamp || self.replicator.push_record(&name, &agreed).await.is_err() {
                continue;
            }
            match self.node.cluster.registry() {
                Some(etcd) => drop(etcd.change(&name, Some(stamp), None).await),
                None => self.forget_record(name, stamp).await?,
            }
        }
        Ok(())
    }

    async fn forget_record(&self, name: String, stamp: Stamp) -> Result<(), S3Error> {
        let forget = move |_: &Node, store: &Store| store.buckets().forget(&name, stamp).in_s3();
        self.node.on_store(forget).await
    }

    async fn known_here(&self) -> Result<BTreeMap<String, BucketStamp>, S3Error> {
        self.node.on_store(|_, store| known_by(store)).await
    }
}

/// Removes the remains of deleted buckets.
pub(crate) async fn purge_buckets(replicator: &Replicator) {
    let node = &replicator.node;
    loop {
        if let Err(error) = node.on_store(|_, store| purge_all(store)).await {
            tracing::warn!(%error, "cannot remove the remains of a deleted bucket");
        }
        node.purge.notified().await;
    }
}

/// As the keeper, adds another backend's record of a bucket. Blocks on disk.
fn merge_record(node: &Node, store: &Store, name: &str, theirs: &Bucket) -> Result<(), S3Error> {
    let mine = store.buckets().record(name).in_s3()?;
    let stamp = node.stamp_above(mine.as_ref().map(|mine| mine.stamp));
    match Bucket::adopt(mine.as_ref(), theirs, stamp) {
        Some(next) if theirs.life == Stamp::NONE => node.apply_record(store, name, &next),
        _ => node.apply_record(store, name, theirs),
    }
}

/// Removes the remains of all deleted buckets. Blocks on disk.
fn purge_all(store: &Store) -> Result<(), S3Error> {
    for (name, which) in known_by(store)? {
        if which.phase != Phase::Gone {
            continue;
        }
        match store.catch_up().purge(&name) {
            // The bucket was made again, after its remains had gone.
            Err(prism_store::Error::AlreadyExists) => {}
            purged => purged.in_s3()?,
        }
    }
    Ok(())
}
