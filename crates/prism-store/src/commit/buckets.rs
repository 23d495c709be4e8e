//! Records of buckets.
//!
//! `prism_cluster::replica` decides which record of a name is the later one. A bucket that was
//! deleted and created again has another life: its record is accepted only when the store
//! has nothing left of the life before.

use prism_cluster::replica::{Bucket, BucketStamp, Phase, Proof, Stamp, TakeBucket, take_bucket};

use super::{
    op::{Mark, SetBy},
    stage::Stage,
};
use crate::{
    error::Error,
    keys::document_key,
    record::bucket_value,
    types::{BUCKET_RECORDS_MAX, BUCKETS_MAX, BucketInfo},
    view::View,
};

impl Stage<'_> {
    pub(super) fn set_bucket(
        &mut self,
        name: String,
        record: &Bucket,
        by: SetBy,
    ) -> Result<(), Error> {
        let known = self.view.bucket_record(&name)?;
        let mine = known.as_ref().map(|known| known.which);
        // Every later stamp of this store is above it.
        self.committer.observe(record.stamp);
        let stamp = mine.map(|mine| mine.stamp);
        let take = match by {
            SetBy::Change(before) if stamp != before => return Err(Error::BucketChanged),
            SetBy::Change(_) => {
                check_number(self.view, mine, record.phase)?;
                take_bucket(mine, record.which(), Proof::Registry(None))
            }
            SetBy::Agreed(proof) => take_bucket(mine, record.which(), proof),
            SetBy::Over if stamp == Some(record.stamp) => TakeBucket::Take,
            SetBy::Over => TakeBucket::Nothing,
        };
        match take {
            TakeBucket::Nothing => return Ok(()),
            TakeBucket::Refuse => return Err(Error::UnprovenDeletion(name)),
            TakeBucket::TakeWhenEmpty if self.has_any(&name)? => return Err(Error::Busy),
            TakeBucket::TakeWhenEmpty | TakeBucket::Take => {}
        }
        for document in self.view.documents(&name)?.keys() {
            let key = document_key(&name, document);
            self.batch.remove(&self.lsm.configs, key);
        }
        for (document, text) in &record.documents {
            let key = document_key(&name, document);
            self.batch.insert(&self.lsm.configs, key, text.as_bytes());
        }
        let buckets = &self.lsm.buckets;
        let value = bucket_value(record);
        self.batch.insert(buckets, name.as_str(), value);
        let is_live = record.phase == Phase::Live;
        self.outcome.marks.push(Mark::Bucket(name, is_live));
        Ok(())
    }

    pub(super) fn forget_bucket(&mut self, name: String, stamp: Stamp) -> Result<(), Error> {
        let known = self.view.bucket_record(&name)?;
        let is_meant =
            |known: &BucketInfo| known.which.stamp == stamp && known.which.phase == Phase::Gone;
        if known.as_ref().is_some_and(is_meant) && !self.has_any(&name)? {
            self.batch.remove(&self.lsm.buckets, name.as_str());
            self.outcome.marks.push(Mark::Bucket(name, false));
        }
        Ok(())
    }

    /// Whether a bucket's name has objects, uploads or open changes.
    fn has_any(&self, name: &str) -> Result<bool, Error> {
        Ok(self.committer.index.has_any_of(name) || self.view.has_any_of(name)?)
    }
}

/// Checks that the store has room for one more bucket, if a record makes one.
fn check_number(view: &View<'_>, mine: Option<BucketStamp>, phase: Phase) -> Result<(), Error> {
    let is_there = |mine: BucketStamp| mine.phase != Phase::Gone;
    if phase != Phase::Live || mine.is_some_and(is_there) {
        return Ok(());
    }
    let records = view.bucket_records("").take(BUCKET_RECORDS_MAX);
    let are_full = mine.is_none() && records.count() == BUCKET_RECORDS_MAX;
    if are_full || view.buckets(BUCKETS_MAX)?.len() == BUCKETS_MAX {
        Err(Error::TooManyBuckets)
    } else {
        Ok(())
    }
}
