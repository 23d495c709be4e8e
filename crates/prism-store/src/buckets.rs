//! Operations on buckets. Which record of a bucket counts, and what may become of it, is
//! decided by [`prism_replica`]; here it is kept, and changed where this store is alone.

use prism_replica::{Bucket, BucketRefusal, Phase, Stamp};

use crate::{
    commit::{Op, SetBucketOp, SetBy},
    error::Error,
    record::bucket_prefix,
    store::{BUCKETS_MAX, CONFIG_MAX, Store},
    types::{BucketInfo, check_bucket},
    versions::Versioning,
};

impl Store {
    /// Creates a bucket; [`Error::AlreadyExists`] if there is one of that name.
    /// Blocks on disk.
    pub fn create_bucket(&self, bucket: &str, created_ms: u64) -> Result<(), Error> {
        self.inner.files.check_room(0)?;
        self.alter_bucket(bucket, |known, stamp| {
            Bucket::create(known, stamp, created_ms)
        })
    }

    /// Deletes an empty bucket, with its documents and then its uploads. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoSuchBucket`], or [`Error::Busy`] if
    /// somebody else is at it.
    pub fn delete_bucket(&self, bucket: &str) -> Result<(), Error> {
        self.alter_bucket(bucket, Bucket::begin_deletion)?;
        let empty = self.check_deletable(bucket, |_| true);
        self.alter_bucket(bucket, |known, stamp| {
            let known = known.ok_or(BucketRefusal::Missing)?;
            Ok(known.end_deletion(stamp, empty.is_ok()))
        })?;
        empty?;
        self.purge_bucket(bucket)
    }

    /// Whether a bucket that takes nothing in any more may go, as far as this store is
    /// concerned: it has none of the keys that count here. May block on disk.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoSuchBucket`], or [`Error::Busy`] while a change is
    /// open.
    pub fn check_deletable(
        &self,
        bucket: &str,
        counts: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        if self.head_bucket(bucket)?.which.phase != Phase::Deleting {
            return Err(Error::Busy);
        }
        let committer = &self.inner.committer;
        // In this order: what is no longer under way is in the view.
        let open = committer.index.select(|entry| entry.scope.bucket == bucket);
        let is_busy = !open.is_empty() || committer.locks.is_busy(bucket);
        if self.has_any_of(bucket, counts)? {
            return Err(Error::NotEmpty);
        }
        match is_busy {
            true => Err(Error::Busy),
            false => Ok(()),
        }
    }

    /// Keeps a document with a bucket under a short name, or removes it.
    /// Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`], or [`Error::MetaTooLarge`] for more than
    /// [`CONFIG_MAX`] bytes.
    pub fn configure_bucket(
        &self,
        bucket: &str,
        name: &'static str,
        document: Option<&str>,
    ) -> Result<(), Error> {
        self.alter_bucket(bucket, |known, stamp| {
            Bucket::change(known, stamp, |next| match document {
                Some(text) => drop(next.documents.insert(name.into(), text.into())),
                None => drop(next.documents.remove(name)),
            })
        })
    }

    /// Begins to keep versions of a bucket's objects, or stops. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`]; [`Error::InvalidName`] for [`Versioning::Never`], to
    /// which there is no way back.
    pub fn set_versioning(&self, bucket: &str, versioning: Versioning) -> Result<(), Error> {
        if versioning == Versioning::Never {
            return Err(Error::InvalidName("versions cannot be forgotten"));
        }
        self.alter_bucket(bucket, |known, stamp| {
            Bucket::change(known, stamp, |next| next.versions = versioning.enabled())
        })
    }

    fn alter_bucket(
        &self,
        bucket: &str,
        alter: impl Fn(Option<&Bucket>, Stamp) -> Result<Bucket, BucketRefusal>,
    ) -> Result<(), Error> {
        loop {
            let known = self.bucket_record(bucket)?;
            let before = known.as_ref().map(|known| known.stamp);
            let committer = &self.inner.committer;
            let stamp = committer.stamp(committer.epoch(), before);
            let next = alter(known.as_ref(), stamp)?;
            match self.change_bucket(bucket, before, &next) {
                Err(Error::BucketChanged) => {}
                changed => return changed,
            }
        }
    }

    /// Replaces the record of a bucket if its stamp is `before`: the registry of buckets,
    /// where this store keeps it. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::BucketChanged`]; [`Error::TooManyBuckets`]; [`Error::MetaTooLarge`].
    pub fn change_bucket(
        &self,
        bucket: &str,
        before: Option<Stamp>,
        record: &Bucket,
    ) -> Result<(), Error> {
        let mut documents = record.documents.values();
        if documents.any(|text| text.len() > CONFIG_MAX) {
            return Err(Error::MetaTooLarge);
        }
        self.inner.files.check_room(0)?;
        self.set_bucket(bucket, record, SetBy::Change(before))
    }

    /// Takes a bucket's agreed record, unless the store has a later one. Objects of an
    /// earlier life are deleted first. Blocks on disk.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn take_bucket(&self, bucket: &str, record: &Bucket) -> Result<(), Error> {
        check_bucket(bucket)?;
        match self.set_bucket(bucket, record, SetBy::Agreed) {
            Err(Error::Busy) => {}
            taken => return taken,
        }
        if let Some(known) = self.bucket_record(bucket)?
            && known.life != record.life
            && known.phase != Phase::Gone
        {
            // It is over, whoever has not heard how: nothing of it is taken in any more.
            self.set_bucket(bucket, &known.buried(known.stamp), SetBy::Over)?;
        }
        match self.purge_bucket(bucket) {
            Ok(()) | Err(Error::AlreadyExists) => {}
            Err(error) => return Err(error),
        }
        self.set_bucket(bucket, record, SetBy::Agreed)
    }

    /// Forgets a bucket that is gone, by the stamp of what is known of it. Blocks on disk.
    pub fn forget_bucket(&self, bucket: &str, stamp: Stamp) -> Result<(), Error> {
        let name = bucket.to_owned();
        self.submit(Op::ForgetBucket { name, stamp })?;
        Ok(())
    }

    fn set_bucket(&self, bucket: &str, record: &Bucket, by: SetBy) -> Result<(), Error> {
        check_bucket(bucket)?;
        let set = SetBucketOp {
            name: bucket.to_owned(),
            record: record.clone(),
            by,
        };
        self.submit(Op::SetBucket(set))?;
        Ok(())
    }

    /// Whether there is a bucket of this name that is not about to be deleted, as far as
    /// this store knows. Does not block.
    #[must_use]
    pub fn has_bucket(&self, bucket: &str) -> bool {
        self.inner.committer.buckets.has(bucket)
    }

    /// Another one after every change of a bucket's record. Does not block.
    #[must_use]
    pub fn buckets_version(&self) -> u64 {
        self.inner.committer.buckets.version()
    }

    /// The record of a bucket's name, also if the bucket is gone. May block on disk.
    pub fn bucket_record(&self, bucket: &str) -> Result<Option<Bucket>, Error> {
        check_bucket(bucket)?;
        let view = self.view();
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

    /// The names behind `after` of which something is known, at most `max`, in order. May
    /// block on disk.
    pub fn bucket_names(&self, after: &str, max: usize) -> Result<Vec<BucketInfo>, Error> {
        self.view().bucket_records(after).take(max).collect()
    }

    /// A document of a bucket, if it has one of this name. May block on disk.
    pub fn bucket_document(&self, bucket: &str, name: &str) -> Result<Option<Vec<u8>>, Error> {
        check_bucket(bucket)?;
        let view = self.view();
        view.bucket(bucket)?.ok_or(Error::NoSuchBucket)?;
        view.config(&[&bucket_prefix(bucket), name.as_bytes()].concat())
    }

    /// Looks a bucket up; [`Error::NoSuchBucket`] if there is none. May block
    /// on disk.
    pub fn head_bucket(&self, bucket: &str) -> Result<BucketInfo, Error> {
        check_bucket(bucket)?;
        self.view().bucket(bucket)?.ok_or(Error::NoSuchBucket)
    }

    /// All buckets, by name, at most [`BUCKETS_MAX`]. May block on disk.
    pub fn list_buckets(&self) -> Result<Vec<BucketInfo>, Error> {
        self.view().buckets(BUCKETS_MAX)
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
