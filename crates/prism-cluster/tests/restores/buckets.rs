//! The bucket's record: the registry in etcd, and the copies of the backends. Mirrors
//! `registry.rs` and `buckets.rs` of `prism-replicas`. A deletion is one step here; `buckets` has
//! its parts.

use prism_cluster::Status;
use prism_cluster::replica::{
    Ancestry, Bucket, BucketRefusal, Phase, Proof, Stamp, TakeBucket, take_bucket,
};

use crate::Mutation;
use crate::world::{Found, World};

const POLICY: &str = "policy";

pub(crate) fn policy(record: &Bucket) -> u64 {
    let text = record.documents.get(POLICY);
    text.map_or(0, |text| text.parse().unwrap_or(0))
}

impl World {
    fn stamp(&mut self, above: Option<Stamp>) -> Stamp {
        let time_us = self.now * 1_000 + self.rng.u64(..3_000);
        Stamp {
            epoch: 1,
            time_us: time_us.max(above.map_or(0, |above| above.time_us) + 1),
            origin: self.number(),
        }
    }

    /// A client creates or deletes the bucket, or changes its policy.
    pub(crate) fn change_bucket(&mut self, at: usize) -> Found {
        if !self.may_change_bucket(at) {
            return Ok(());
        }
        let known = self.etcd.bucket.clone();
        let stamp = self.stamp(known.as_ref().map(|known| known.stamp));
        let next = match self.rng.u8(..6) {
            0 | 1 => self.deleted(at, known.as_ref(), stamp),
            _ if known
                .as_ref()
                .is_none_or(|known| known.phase == Phase::Gone) =>
            {
                return self.create_bucket(at);
            }
            _ => Bucket::change(known.as_ref(), stamp, |next| {
                next.documents
                    .insert(POLICY.into(), stamp.origin.to_string());
            }),
        };
        match next {
            Ok(next) => self.answer(at, next),
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn create_bucket(&mut self, at: usize) -> Found {
        let known = self.etcd.bucket.clone();
        let stamp = self.stamp(known.as_ref().map(|known| known.stamp));
        match Bucket::create(known.as_ref(), stamp, 0) {
            Ok(next) if self.may_change_bucket(at) => self.answer(at, next),
            _ => Ok(()),
        }
    }

    fn may_change_bucket(&mut self, at: usize) -> bool {
        let node = &self.nodes[at];
        let has_fault = node.process.as_ref().is_none_or(|p| p.fault.is_some());
        !has_fault && !node.is_cut && self.may_change(at)
    }

    fn answer(&mut self, at: usize, next: Bucket) -> Found {
        self.met.buckets += 1;
        // A change that comes before the record is put back is made from the older one
        // (docs/design/cluster.md).
        if self.is_registry_behind() || self.reverted_since.is_some() {
            self.forgive_bucket();
        }
        let known = self.etcd.bucket.clone();
        let ancestry = Bucket::ancestry(known.as_ref(), &next);
        self.agree(next.clone(), ancestry);
        self.push(at, &next)
    }

    fn agree(&mut self, next: Bucket, ancestry: Option<Ancestry>) {
        self.raise();
        self.etcd.ancestry = ancestry.or(self.etcd.ancestry);
        self.etcd.bucket = Some(next);
    }

    /// The record of a deletion, if all backends that take changes take part and are empty.
    fn deleted(
        &mut self,
        at: usize,
        known: Option<&Bucket>,
        stamp: Stamp,
    ) -> Result<Bucket, BucketRefusal> {
        let deleting = Bucket::begin_deletion(known, stamp)?;
        let takers = self.takers(at);
        let is_empty = |at: &usize| {
            let node = &self.nodes[*at];
            let store = node.store.as_ref();
            node.serves(self.now)
                && !node.is_cut
                && store.is_some_and(|store| {
                    let life = store.record.as_ref().map(|record| record.life);
                    store.objects.is_empty() && life == Some(deleting.life)
                })
        };
        match takers.is_some_and(|takers| takers.iter().all(is_empty)) {
            true => {
                self.ended.insert(deleting.life);
                let stamp = self.stamp(Some(stamp));
                Ok(deleting.end_deletion(stamp, true))
            }
            false => Err(BucketRefusal::Deleting),
        }
    }

    /// The backends that take changes by the view of a node.
    fn takers(&self, at: usize) -> Option<Vec<usize>> {
        let view = self.nodes[at].process.as_ref()?.view.as_ref()?;
        let backends = view.state().backends.iter();
        let takers = backends.filter(|(_, backend)| backend.status != Status::Out);
        takers.map(|(name, _)| self.index(name)).collect()
    }

    /// Tells all backends. The change is answered if all that take changes have taken it.
    fn push(&mut self, at: usize, next: &Bucket) -> Found {
        let takers = self.takers(at).unwrap_or_default();
        let mut have_all = !takers.is_empty();
        for taker in takers {
            if self.nodes[taker].serves(self.now) {
                self.follow_bucket(taker)?;
            }
            let store = self.nodes[taker].store.as_ref();
            have_all &= store.and_then(|store| store.record.as_ref()) == Some(next);
        }
        if have_all && !self.is_bucket_forgiven {
            self.agreed = Some(next.clone());
        }
        Ok(())
    }

    /// Whether the registry has lost an answered change.
    pub(crate) fn is_registry_behind(&self) -> bool {
        let order = |record: &Bucket| (record.life, record.stamp);
        self.etcd.bucket.as_ref().map(order) < self.agreed.as_ref().map(order)
    }

    /// The store of a backend acts by the registry's record, and puts back what that has lost.
    pub(crate) fn follow_bucket(&mut self, at: usize) -> Found {
        if self.nodes[at].store.is_none() || !self.may_change_bucket(at) {
            return Ok(());
        }
        if let Some(record) = self.etcd.bucket.clone() {
            self.take(at, &record)?;
        }
        self.correct(at);
        Ok(())
    }

    /// `Node::apply_record`, with `Node::proof_of`.
    fn take(&mut self, at: usize, record: &Bucket) -> Found {
        let node = &self.nodes[at];
        let view = node.process.as_ref().and_then(|p| p.view.as_ref());
        let status = view.and_then(|view| view.state().status(node.name.as_str()));
        let Some(store) = &node.store else {
            return Ok(());
        };
        let mine = store.record.as_ref().map(Bucket::which);
        let is_catching_up = status == Some(Status::Lagging);
        let proof = match is_catching_up {
            true => Proof::CatchUp,
            false if self.is(Mutation::UnprovenPurge) => Proof::TRUSTED,
            false => Proof::Registry(self.etcd.ancestry),
        };
        let take = take_bucket(mine, record.which(), proof);
        // The remains of a deleted bucket go too.
        let is_purged = take == TakeBucket::TakeWhenEmpty || record.phase == Phase::Gone;
        if matches!(take, TakeBucket::Nothing | TakeBucket::Refuse) {
            self.met.refused += u64::from(take == TakeBucket::Refuse);
            return Ok(());
        }
        let is_lost = mine.is_some_and(|mine| !self.ended.contains(&mine.life));
        let has_objects = !store.objects.is_empty();
        if is_purged && is_lost && has_objects && !is_catching_up && !self.is_contrary {
            return Err(format!("{} purges a life that has not ended", node.name));
        }
        self.is_contrary |= self.has_other_life(record.life);
        let record = record.clone();
        self.commit(at, |store| {
            if is_purged {
                store.objects.clear();
            }
            store.record = Some(record);
        });
        Ok(())
    }

    /// Whether another store has a life that has not ended. The bucket was created while the
    /// registry had lost that one. `Bucket::correction` takes the end of all earlier lives for
    /// proven, and the store purges its own if the registry then loses its records again.
    fn has_other_life(&self, life: Stamp) -> bool {
        let stores = self.nodes.iter().filter_map(|node| node.store.as_ref());
        let mut lives = stores.filter_map(|store| Some(store.record.as_ref()?.life));
        lives.any(|other| other != life && !self.ended.contains(&other))
    }

    /// `BucketFollower::correct_registry`: only a backend in sync puts records back.
    fn correct(&mut self, at: usize) {
        let node = &self.nodes[at];
        let Some(here) = node.store.as_ref().and_then(|store| store.record.clone()) else {
            return;
        };
        let known = self.etcd.bucket.clone();
        let differs = known
            .as_ref()
            .is_none_or(|known| known.stamp < here.stamp || known.life != here.life);
        if !differs || !self.is_witness(at) {
            return;
        }
        let is_later = known
            .as_ref()
            .is_some_and(|known| known.stamp >= here.stamp);
        let Some(here) = (match is_later {
            true => self.latest_in_sync(at, here),
            false => Some(here),
        }) else {
            return;
        };
        let above = known
            .as_ref()
            .map(|known| known.stamp)
            .max(Some(here.stamp));
        let stamp = self.stamp(above);
        let registry = known.as_ref().map(|known| (known, self.etcd.ancestry));
        if let Some(correction) = Bucket::correction(registry, &here, stamp) {
            self.met.corrections += 1;
            self.forgive_deleted_again(&correction.record);
            self.agree(correction.record, Some(correction.ancestry));
        }
    }

    /// Writes to a bucket whose deletion etcd has lost, while no backend was there that knows it.
    /// Once such a backend returns, the bucket is deleted again, with them.
    fn forgive_deleted_again(&mut self, record: &Bucket) {
        let known = self.etcd.bucket.as_ref();
        let is_alive =
            known.is_some_and(|known| known.life == record.life && known.phase != Phase::Gone);
        let is_written = self.answered.iter().any(Option::is_some);
        if record.phase == Phase::Gone && is_alive && is_written && self.was_etcd_reverted {
            self.met.deleted_again += 1;
            self.forgive_missing();
        }
    }

    /// Whether the store is in sync by the node's view.
    pub(crate) fn is_witness(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let (Some(store), Some(process)) = (&node.store, &node.process) else {
            return false;
        };
        let state = process.view.as_ref().map(|view| view.state());
        let backend = state.and_then(|state| state.backends.get(&node.name));
        backend.is_some_and(|backend| {
            backend.status == Status::InSync && backend.store == store.identity
        })
    }

    /// The latest record of all backends in sync; none if one of them is out of reach.
    fn latest_in_sync(&self, at: usize, here: Bucket) -> Option<Bucket> {
        let view = self.nodes[at].process.as_ref()?.view.as_ref()?;
        let backends = view.state().backends.iter();
        let mut latest = here;
        for (name, _) in backends.filter(|(_, backend)| backend.status == Status::InSync) {
            let other = &self.nodes[self.index(name)?];
            other.process.as_ref()?;
            let record = other.store.as_ref()?.record.clone();
            if let Some(record) = record
                && (record.life, record.stamp) > (latest.life, latest.stamp)
            {
                latest = record;
            }
        }
        Some(latest)
    }
}
