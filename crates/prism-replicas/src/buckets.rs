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

use prism_cluster::Status;
use prism_cluster::replica::{Bucket, BucketStamp, Correction, Phase};
use prism_membership::{Buckets, Registry};
use prism_s3::{Code, S3Error};
use prism_store::{Stamp, Store};

use crate::errors::StoreResult;
use crate::node::now_us;
use crate::registry::{self, known_by};
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
    /// Whether the registry may be older than this store.
    is_doubted: bool,
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
        is_doubted: false,
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
            known = node.core.cluster.wait_until(|known| known.revision != revision) => {
                revision = known.revision;
            }
            // The next look reads the registry itself.
            () = node.registry_doubted.notified() => follower.is_doubted = true,
        }
    }
}

impl BucketFollower<'_> {
    async fn follow_once(&mut self, store: &Store) -> Result<(), S3Error> {
        // Nothing in an older copy of etcd counts.
        if self.node.core.cluster.fault().is_some() {
            return Ok(());
        }
        let own_version = Some(store.buckets().version());
        let is_recovered = self.is_recovered(store);
        if (std::mem::take(&mut self.is_doubted) || is_recovered)
            && let Some(etcd) = self.node.core.cluster.registry()
        {
            let agreed = self.replicator.all_agreed().await?;
            self.correct_registry(store, &agreed).await?;
            if is_recovered {
                let settled = etcd.settle(&self.node.core.name).await;
                settled.map_err(|error| registry::out_of_reach(&error))?;
            }
        }
        if let Some((agreed, version)) = self.news_of_buckets().await? {
            self.replicator.apply_records(&agreed).await?;
            self.correct_registry(store, &agreed).await?;
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

    /// Whether the cluster waits for this store to put back what the registry has lost.
    fn is_recovered(&self, store: &Store) -> bool {
        let known = self.node.core.cluster.known();
        let is_waiting =
            known.is_some_and(|known| known.doubts.contains_key(&*self.node.core.name));
        is_waiting && self.is_witness(store)
    }

    /// The agreed records and their version, if they may have changed.
    async fn news_of_buckets(&mut self) -> Result<Option<(Arc<Buckets>, Option<u64>)>, S3Error> {
        if let Some(known) = self.node.core.cluster.known() {
            let counts = known.state.is_some() && self.node.core.cluster.fault().is_none();
            let agreed = self.agreed.as_ref();
            let is_new = agreed.is_none_or(|agreed| !Arc::ptr_eq(agreed, &known.buckets));
            return Ok((counts && is_new).then(|| (known.buckets.clone(), None)));
        }
        let keeper = self.node.keeper().ok_or(Code::ServiceUnavailable)?;
        if keeper == self.node.core.name {
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
        for other in others.filter(|other| *other != self.node.core.name) {
            let (_, found) = self.replicator.buckets_of(&other, None).await?;
            for (name, record) in found.records {
                let take = move |node: &Node, store: &Store| node.apply_told(store, &name, &record);
                self.node.on_store(take).await?;
            }
        }
        self.node.has_all_records.store(true, Ordering::Release);
        Ok(())
    }

    /// Puts back what the registry in etcd has lost. Only a backend in sync does so: another one
    /// may have missed deletions.
    async fn correct_registry(&self, store: &Store, agreed: &Buckets) -> Result<(), S3Error> {
        let etcd = self.node.core.cluster.registry();
        let Some(etcd) = etcd.filter(|_| self.is_witness(store)) else {
            return Ok(());
        };
        let is_calm = self.node.replication.is_calm();
        let old = self.old_deletions().await?;
        let differs = |name: &String, which: &BucketStamp| match agreed.records.get(name) {
            // A deletion that all backends have passed may be forgotten.
            None => !(is_calm && old.contains_key(name)),
            Some(known) => known.stamp < which.stamp || known.life != which.life,
        };
        let known = self.known_here().await?.into_iter();
        for (name, _) in known.filter(|(name, which)| differs(name, which)) {
            match self.correct_bucket(etcd, &name).await {
                // A backend refuses this bucket. The others have to be looked at all the same.
                Err(error) if error.code() == Code::OperationAborted => {
                    tracing::warn!(bucket = name, %error, "a record stays as the registry has it");
                }
                corrected => corrected?,
            }
        }
        Ok(())
    }

    /// Whether this store has every agreed record: it is in sync, and the state's. Without etcd a
    /// member's store need not be known.
    fn is_witness(&self, store: &Store) -> bool {
        let view = self.node.replication.view();
        let backend = view.state().backends.get(self.node.core.name.as_str());
        // The view may name no store for this member yet.
        backend.is_some_and(|backend| {
            backend.status == Status::InSync && [0, store.identity()].contains(&backend.store)
        })
    }

    async fn correct_bucket(&self, etcd: &Registry, name: &str) -> Result<(), S3Error> {
        let Some(here) = self.record_here(name).await? else {
            return Ok(());
        };
        let agreed = etcd.read_in_doubt(name).await;
        let agreed = agreed.map_err(|error| registry::out_of_reach(&error))?;
        let known = agreed
            .as_ref()
            .map(|(record, ancestry)| (record, *ancestry));
        let before = known.map(|(record, _)| record.stamp);
        let stamp = self.node.stamp_above(before.max(Some(here.stamp)));
        let here = match known {
            Some((record, _)) if record.stamp >= here.stamp => {
                self.latest_in_sync(name, here).await?
            }
            _ => here,
        };
        let Some(Correction { record, ancestry }) = Bucket::correction(known, &here, stamp) else {
            return Ok(());
        };
        let done = etcd.put_back(name, before, &record, ancestry).await;
        if !done.map_err(|error| registry::out_of_reach(&error))? {
            return Ok(());
        }
        let phase = record.phase;
        tracing::warn!(
            bucket = name,
            ?phase,
            "the registry of buckets was older than this store, and has its record again"
        );
        self.replicator.try_push_record(name, &record).await
    }

    /// The latest record of a bucket at the backends in sync, of which `here` is one.
    ///
    /// # Errors
    /// One of them is out of reach.
    async fn latest_in_sync(&self, name: &str, here: Bucket) -> Result<Bucket, S3Error> {
        let mut latest = here;
        let others = self.node.replication.in_sync().into_iter();
        for other in others.filter(|other| *other != self.node.core.name) {
            let (_, theirs) = self.replicator.buckets_of(&other, None).await?;
            if let Some(record) = theirs.records.get(name)
                && (record.life, record.stamp) > (latest.life, latest.stamp)
            {
                latest = (**record).clone();
            }
        }
        Ok(latest)
    }

    async fn record_here(&self, name: &str) -> Result<Option<Bucket>, S3Error> {
        let name = name.to_owned();
        let record = move |_: &Node, store: &Store| store.buckets().record(&name).in_s3();
        self.node.on_store(record).await
    }

    /// Forgets old deletions that the registry has forgotten. While a backend is not in sync, the
    /// registry forgets none: it may have lost them.
    async fn forget_missing(&self, agreed: &Buckets) -> Result<(), S3Error> {
        if !self.node.replication.is_calm() {
            return Ok(());
        }
        for (name, stamp) in self.old_deletions().await? {
            if !agreed.records.contains_key(&name) {
                self.forget_record(name, stamp).await?;
            }
        }
        Ok(())
    }

    /// The deletions that this store remembers, and of whose time no message is under way any
    /// more. A name that has a quota is remembered for longer.
    async fn old_deletions(&self) -> Result<BTreeMap<String, Stamp>, S3Error> {
        let old = |_: &Node, store: &Store| {
            let mut old = BTreeMap::new();
            for (name, which) in known_by(store)? {
                let is_over = which.phase == Phase::Gone && is_old(&which);
                if is_over && !store.buckets().has_quota(&name).in_s3()? {
                    old.insert(name, which.stamp);
                }
            }
            Ok(old)
        };
        self.node.on_store(old).await
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
            let Some((agreed, ancestry)) = self.replicator.agreed_with_ancestry(&name).await?
            else {
                continue;
            };
            if agreed.stamp != which.stamp {
                let agreed = (agreed, ancestry);
                self.replicator.apply_agreed(&name, agreed).await?;
                continue;
            }
            let before = Some(agreed.stamp);
            let live = agreed.end_deletion(self.node.stamp_above(before), false);
            if self.replicator.agree(&name, before, &live, None).await? {
                tracing::warn!(
                    bucket = name,
                    "gave up a deletion that did not end: the bucket lives on"
                );
                self.replicator.try_push_record(&name, &live).await?;
            }
        }
        Ok(())
    }

    /// Forgets old deletions of buckets, once all backends have their records.
    async fn forget_deletions_of_buckets(&self) -> Result<(), S3Error> {
        let replication = &self.node.replication;
        let first = replication.in_sync().into_iter().next();
        if !replication.is_calm() || first.is_none_or(|name| name != self.node.core.name) {
            return Ok(());
        }
        let old = self.old_deletions().await?.into_iter();
        for (name, stamp) in old.take(FORGOTTEN_AT_ONCE) {
            let Some(agreed) = self.replicator.agreed(&name).await? else {
                continue;
            };
            let is_other = agreed.stamp != stamp || agreed.has_quota();
            if is_other || self.replicator.push_record(&name, &agreed).await.is_err() {
                continue;
            }
            match self.node.core.cluster.registry() {
                Some(etcd) => drop(etcd.forget(&name, stamp).await),
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

/// Whether no message from before this change is under way.
fn is_old(which: &BucketStamp) -> bool {
    now_us().saturating_sub(which.stamp.time_us) > REMEMBERED_US
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
