//! Operations on buckets.

use prism_replica::Stamp;

use crate::{
    commit::{Op, SetBy},
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
        check_bucket(bucket)?;
        self.inner.files.check_room(0)?;
        let name = bucket.to_owned();
        self.submit(Op::CreateBucket { name, created_ms })?;
        Ok(())
    }

    /// Deletes an empty bucket, with its uploads and documents. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoSuchBucket`], or [`Error::Busy`] if
    /// somebody else is at it.
    pub fn delete_bucket(&self, bucket: &str) -> Result<(), Error> {
        let token = crate::multipart::random()?;
        self.seal_bucket(bucket, token)?;
        let deleted = self.delete_sealed_bucket(bucket, token);
        // Also after a deletion: the name may be taken again at once.
        self.unseal_bucket(bucket, token)?;
        deleted
    }

    /// The first half of deleting a bucket that lies on several nodes: it has
    /// to be empty, and takes nothing in for
    /// [`SEAL_LIFETIME`](crate::SEAL_LIFETIME). May block on disk.
    ///
    /// # Errors
    /// As for [`Store::delete_bucket`].
    pub fn seal_bucket(&self, bucket: &str, token: u64) -> Result<(), Error> {
        check_bucket(bucket)?;
        let name = bucket.to_owned();
        self.submit(Op::SealBucket { name, token })?;
        Ok(())
    }

    /// Takes a seal off. It may have ended already. May block on disk.
    pub fn unseal_bucket(&self, bucket: &str, token: u64) -> Result<(), Error> {
        let name = bucket.to_owned();
        self.submit(Op::UnsealBucket { name, token })?;
        Ok(())
    }

    /// The second half: deletes a bucket that is sealed with this token.
    /// Blocks on disk.
    ///
    /// # Errors
    /// As for [`Store::delete_bucket`]; [`Error::Busy`] if the seal has ended.
    pub fn delete_sealed_bucket(&self, bucket: &str, token: u64) -> Result<(), Error> {
        check_bucket(bucket)?;
        self.abort_all(bucket)?;
        let name = bucket.to_owned();
        self.submit(Op::DeleteBucket { name, token })?;
        Ok(())
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
        document: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        check_bucket(bucket)?;
        match &document {
            Some(document) if document.len() > CONFIG_MAX => return Err(Error::MetaTooLarge),
            Some(_) => self.inner.files.check_room(0)?,
            None => {}
        }
        let bucket = bucket.to_owned();
        self.submit(Op::Configure {
            bucket,
            name,
            document,
        })?;
        Ok(())
    }

    /// A document of a bucket, if it has one of this name. May block on disk.
    pub fn bucket_document(&self, bucket: &str, name: &str) -> Result<Option<Vec<u8>>, Error> {
        check_bucket(bucket)?;
        let view = self.view();
        view.bucket(bucket)?.ok_or(Error::NoSuchBucket)?;
        view.config(&[&bucket_prefix(bucket), name.as_bytes()].concat())
    }

    /// Begins to keep versions of a bucket's objects, or stops. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`]; [`Error::InvalidName`] for [`Versioning::Never`], to
    /// which there is no way back.
    pub fn set_versioning(&self, bucket: &str, versioning: Versioning) -> Result<(), Error> {
        let known = self.head_bucket(bucket)?.versioning_set;
        let committer = &self.inner.committer;
        let stamp = committer.stamp(committer.epoch(), Some(known));
        self.set_versioning_as_of(bucket, versioning, stamp)
    }

    /// The same, as every node that has the bucket does it: of two that say so the one
    /// with the greater stamp counts, whoever comes first. Blocks on disk.
    ///
    /// # Errors
    /// The same; [`Error::SaidLater`].
    pub fn set_versioning_as_of(
        &self,
        bucket: &str,
        versioning: Versioning,
        stamp: Stamp,
    ) -> Result<(), Error> {
        check_bucket(bucket)?;
        if versioning == Versioning::Never {
            return Err(Error::InvalidName("versions cannot be forgotten"));
        }
        self.inner.files.check_room(0)?;
        self.say_versioning(bucket, (versioning, stamp), SetBy::Request)
    }

    /// Has it as another node has it, that knows all that was said before the epoch
    /// `since`, unless it was said later here. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`].
    pub fn take_versioning(
        &self,
        bucket: &str,
        (versioning, stamp): (Versioning, Stamp),
        since: u64,
    ) -> Result<(), Error> {
        self.say_versioning(bucket, (versioning, stamp), SetBy::Replica(since))
    }

    fn say_versioning(
        &self,
        bucket: &str,
        (versioning, stamp): (Versioning, Stamp),
        by: SetBy,
    ) -> Result<(), Error> {
        let name = bucket.to_owned();
        self.submit(Op::SetVersioning {
            name,
            versioning,
            stamp,
            by,
        })?;
        Ok(())
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
