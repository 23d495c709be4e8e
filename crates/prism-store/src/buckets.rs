//! Operations on buckets. `prism_cluster::replica` decides which record of a bucket counts and how
//! it may change; this module stores the record, and changes it where the store is alone.

use prism_cluster::replica::{Bucket, BucketRefusal, Phase, Proof, Stamp};

use crate::{
    commit::{Op, SetBy},
    error::Error,
    store::Store,
    types::{BUCKETS_MAX, BucketInfo, CONFIG_MAX, check_bucket},
};

/// The buckets of a store.
#[derive(Debug, Clone, Copy)]
pub struct Buckets<'a> {
    pub(crate) store: &'a Store,
}

impl Store {
    /// The buckets.
    #[must_use]
    pub fn buckets(&self) -> Buckets<'_> {
        Buckets { store: self }
    }
}

impl Buckets<'_> {
    /// Checks that this store has no object that keeps a bucket from its deletion. The
    /// bucket takes no more writes by then. `counts` says which keys matter here. May block
    /// on disk.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::NoSuchBucket`]; [`Error::Busy`] while a change is open,
    /// or if the bucket still takes writes.
    pub fn check_deletable(
        &self,
        bucket: &str,
        counts: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        if self.get(bucket)?.which.phase != Phase::Deleting {
            return Err(Error::Busy);
        }
        let index = &self.store.committer().index;
        // Before the view is taken: the view has every change that is no longer under way.
        let is_busy = index.has_any_of(bucket) || self.store.primary.locks.is_busy(bucket);
        if self.store.catch_up().has_any_of(bucket, counts)? {
            return Err(Error::NotEmpty);
        }
        if is_busy { Err(Error::Busy) } else { Ok(()) }
    }

    /// Replaces the record of a bucket if its stamp is `before`. This is the registry of
    /// buckets where this store keeps it. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::BucketChanged`]; [`Error::TooManyBuckets`]; [`Error::MetaTooLarge`] for a
    /// document of more than [`CONFIG_MAX`] bytes; [`Error::NoSpace`].
    pub fn change_record(
        &self,
        bucket: &str,
        before: Option<Stamp>,
        record: &Bucket,
    ) -> Result<(), Error> {
        let mut documents = record.documents.values();
        if documents.any(|text| text.len() > CONFIG_MAX) {
            return Err(Error::MetaTooLarge);
        }
        self.store.files().check_room(0)?;
        self.set(bucket, record, SetBy::Change(before))
    }

    /// Replaces the record of a bucket by the agreed one, unless the store has a later one.
    /// Objects of an earlier life are deleted first, by the `proof` that it has ended. Blocks
    /// on disk.
    ///
    /// # Errors
    /// [`Error::UnprovenDeletion`]; errors of the disk.
    pub fn accept_record(&self, bucket: &str, record: &Bucket, proof: Proof) -> Result<(), Error> {
        check_bucket(bucket)?;
        match self.set(bucket, record, SetBy::Agreed(proof)) {
            Err(Error::Busy) => {}
            accepted => return accepted,
        }
        if let Some(known) = self.record(bucket)?
            && known.life != record.life
            && known.phase != Phase::Gone
        {
            // The known life is over, even if its deletion was not heard of here. From now on
            // no change of it is accepted.
            self.set(bucket, &known.buried(known.stamp), SetBy::Over)?;
        }
        match self.store.catch_up().purge(bucket) {
            Ok(()) | Err(Error::AlreadyExists) => {}
            Err(error) => return Err(error),
        }
        self.set(bucket, record, SetBy::Agreed(proof))
    }

    /// Deletes the record of a bucket that is gone, if the record has this stamp. Blocks on
    /// disk.
    pub fn forget(&self, bucket: &str, stamp: Stamp) -> Result<(), Error> {
        let name = bucket.to_owned();
        self.store.submit(Op::ForgetBucket { name, stamp })?;
        Ok(())
    }

    fn set(&self, bucket: &str, record: &Bucket, by: SetBy) -> Result<(), Error> {
        check_bucket(bucket)?;
        self.store.submit(Op::SetBucket {
            name: bucket.to_owned(),
            record: record.clone(),
            by,
        })?;
        Ok(())
    }

    /// Whether this store knows a bucket of this name that is not being deleted. Does not
    /// block.
    #[must_use]
    pub fn has(&self, bucket: &str) -> bool {
        self.store.committer().buckets.has(bucket)
    }

    /// A number that changes with every bucket's record. Does not block.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.store.committer().buckets.version()
    }

    /// The record of a bucket's name, also if the bucket is gone. May block on disk.
    ///
    /// # Errors
    /// [`Error::InvalidName`]; errors of the disk.
    pub fn record(&self, bucket: &str) -> Result<Option<Bucket>, Error> {
        check_bucket(bucket)?;
        let view = self.store.view();
        let Some(info) = view.bucket_record(bucket)? else {
            return Ok(None);
        };
        Ok(Some(Bucket {
            stamp: info.which.stamp,
            life: info.which.life,
            phase: info.which.phase,
            created_ms: info.created_ms,
            versions: info.versioning.enabled(),
            documents: view.documents(bucket)?,
        }))
    }

    /// At most `max` names behind `after` that have a record, in order. May block on disk.
    pub fn names(&self, after: &str, max: usize) -> Result<Vec<BucketInfo>, Error> {
        self.store.view().bucket_records(after).take(max).collect()
    }

    /// Whether a bucket's name has a quota, also if the bucket is gone. May block on disk.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn has_quota(&self, bucket: &str) -> Result<bool, Error> {
        let document = self.store.view().document(bucket, Bucket::QUOTA)?;
        Ok(document.is_some())
    }

    /// The document of a bucket under this name, if it has one. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`].
    pub fn document(&self, bucket: &str, name: &str) -> Result<Option<Vec<u8>>, Error> {
        check_bucket(bucket)?;
        let view = self.store.view();
        view.existing_bucket(bucket)?;
        view.document(bucket, name)
    }

    /// Looks a bucket up. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`].
    pub fn get(&self, bucket: &str) -> Result<BucketInfo, Error> {
        self.store.existing_bucket(bucket)
    }

    /// All buckets, by name, at most [`BUCKETS_MAX`]. May block on disk.
    pub fn list(&self) -> Result<Vec<BucketInfo>, Error> {
        self.store.view().buckets(BUCKETS_MAX)
    }
}

impl From<BucketRefusal> for Error {
    fn from(refusal: BucketRefusal) -> Self {
        match refusal {
            BucketRefusal::Exists => Self::AlreadyExists,
            BucketRefusal::Missing => Self::NoSuchBucket,
            BucketRefusal::Deleting => Self::Busy,
        }
    }
}
