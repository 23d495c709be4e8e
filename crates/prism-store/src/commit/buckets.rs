//! A bucket's record, set where it is the later one, and the names that there are.
//!
//! Which record that is, is decided by `prism_replica`. A bucket that was deleted and
//! made again is another one: its record is taken only when nothing is left of the one
//! before.

use std::{
    collections::HashSet,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use prism_replica::{BucketStamp, Phase, Stamp, TakeBucket, take_bucket};

use super::{
    Committer,
    op::{Mark, Outcome, SetBucketOp, SetBy},
};
use crate::{
    error::Error,
    lsm::Batch,
    record::bucket_prefix,
    store::{BUCKET_RECORDS_MAX, BUCKETS_MAX},
    types::BucketInfo,
    uploads::upload_prefix,
    view::{View, bucket_value},
};

/// The buckets that exist and are not about to be deleted, in memory: every request asks.
#[derive(Debug, Default)]
pub(crate) struct Names {
    live: RwLock<HashSet<String>>,
    /// Changes with every record.
    version: AtomicU64,
}

impl Names {
    pub(crate) fn has(&self, name: &str) -> bool {
        let names = self.live.read().unwrap_or_else(PoisonError::into_inner);
        names.contains(name)
    }

    /// Begins anywhere, so that no two processes have the same for long.
    pub(super) fn begin(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, name: &str, is_there: bool) {
        let mut names = self.live.write().unwrap_or_else(PoisonError::into_inner);
        match is_there {
            true => names.insert(name.to_owned()),
            false => names.remove(name),
        };
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

impl Committer {
    pub(super) fn stage_bucket(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        SetBucketOp { name, record, by }: SetBucketOp,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        let known = view.bucket_record(&name)?;
        let mine = known.as_ref().map(|known| known.which);
        // Stamps that this store gives are above it from here on.
        self.observe(record.stamp);
        let stamp = mine.map(|mine| mine.stamp);
        let take = match by {
            SetBy::Change(before) if stamp != before => return Err(Error::BucketChanged),
            SetBy::Change(_) => {
                check_number(view, mine, record.phase)?;
                take_bucket(mine, record.which())
            }
            SetBy::Agreed => take_bucket(mine, record.which()),
            SetBy::Over if stamp == Some(record.stamp) => TakeBucket::Take,
            SetBy::Over => TakeBucket::Nothing,
        };
        match take {
            TakeBucket::Nothing => return Ok(outcome),
            TakeBucket::TakeWhenEmpty if self.has_any(view, &name)? => return Err(Error::Busy),
            TakeBucket::TakeWhenEmpty | TakeBucket::Take => {}
        }
        let prefix = bucket_prefix(&name);
        for key in view.config_keys(&prefix)? {
            batch.remove(&self.lsm.configs, key);
        }
        for (document, text) in &record.documents {
            let key = [&prefix, document.as_bytes()].concat();
            batch.insert(&self.lsm.configs, key, text.as_bytes());
        }
        batch.insert(&self.lsm.buckets, name.as_str(), bucket_value(&record));
        let is_live = record.phase == Phase::Live;
        outcome.marks.push(Mark::Bucket(name, is_live));
        Ok(outcome)
    }

    pub(super) fn stage_forgotten(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        name: String,
        stamp: Stamp,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        let known = view.bucket_record(&name)?;
        let is_meant =
            |known: &BucketInfo| known.which.stamp == stamp && known.which.phase == Phase::Gone;
        if known.as_ref().is_some_and(is_meant) && !self.has_any(view, &name)? {
            batch.remove(&self.lsm.buckets, name.as_str());
            outcome.marks.push(Mark::Bucket(name, false));
        }
        Ok(outcome)
    }

    /// Whether there is anything under a bucket's name, or on its way in.
    fn has_any(&self, view: &View<'_>, name: &str) -> Result<bool, Error> {
        Ok(self.index.has_any_of(name)
            || view.any_object(&bucket_prefix(name))?
            || view.any_upload(&upload_prefix(name, ""))?)
    }
}

/// There may be one more bucket, if it is one.
fn check_number(view: &View<'_>, mine: Option<BucketStamp>, phase: Phase) -> Result<(), Error> {
    let is_there = |mine: BucketStamp| mine.phase != Phase::Gone;
    if phase != Phase::Live || mine.is_some_and(is_there) {
        return Ok(());
    }
    let records = view.bucket_records("").take(BUCKET_RECORDS_MAX);
    let are_full = mine.is_none() && records.count() == BUCKET_RECORDS_MAX;
    match are_full || view.buckets(BUCKETS_MAX)?.len() == BUCKETS_MAX {
        true => Err(Error::TooManyBuckets),
        false => Ok(()),
    }
}
