//! What the rest of Prism needs of an object engine, so that another one can
//! stand in for [`Store`](crate::Store), for instance in a comparison.

use std::sync::Arc;

use crate::{
    error::Error,
    put::PutWriter,
    store::Store,
    types::{BucketInfo, Committed, Listing, Object, ObjectInfo, ObjectMeta, Verified},
};

/// An object engine. The methods mean what those of the same name of
/// [`Store`](crate::Store) do, which also says which of them may block.
pub trait Engine: Send + Sync {
    /// See [`Store::create_bucket`](crate::Store::create_bucket).
    fn create_bucket(&self, bucket: &str, created_ms: u64) -> Result<(), Error>;
    /// See [`Store::delete_bucket`](crate::Store::delete_bucket).
    fn delete_bucket(&self, bucket: &str) -> Result<(), Error>;
    /// See [`Store::head_bucket`](crate::Store::head_bucket).
    fn head_bucket(&self, bucket: &str) -> Result<BucketInfo, Error>;
    /// See [`Store::list_buckets`](crate::Store::list_buckets).
    fn list_buckets(&self) -> Result<Vec<BucketInfo>, Error>;
    /// See [`Store::begin_put`](crate::Store::begin_put).
    fn begin_put(
        &self,
        bucket: &str,
        key: &str,
        expected_len: Option<u64>,
    ) -> Result<Box<dyn ObjectWriter>, Error>;
    /// See [`Store::get`](crate::Store::get).
    fn get(&self, bucket: &str, key: &str) -> Result<Option<Arc<Object>>, Error>;
    /// See [`Store::head`](crate::Store::head).
    fn head(&self, bucket: &str, key: &str) -> Result<Option<ObjectInfo>, Error>;
    /// See [`Store::delete`](crate::Store::delete).
    fn delete(&self, bucket: &str, key: &str) -> Result<bool, Error>;
    /// See [`Store::list`](crate::Store::list).
    fn list(
        &self,
        bucket: &str,
        prefix: &str,
        start_after: &str,
        max: usize,
    ) -> Result<Listing, Error>;
    /// See [`Store::verify`](crate::Store::verify).
    fn verify(&self, bucket: &str, key: &str) -> Result<Option<Verified>, Error>;
}

/// An object being written. Dropped without a commit, it leaves no trace.
pub trait ObjectWriter: Send {
    /// See [`PutWriter::write`](crate::PutWriter::write).
    fn write(&mut self, data: &[u8]) -> Result<(), Error>;
    /// Bytes written so far.
    fn written(&self) -> u64;
    /// See [`PutWriter::commit`](crate::PutWriter::commit).
    fn commit(self: Box<Self>, meta: ObjectMeta) -> Result<Committed, Error>;
}

impl Engine for Store {
    fn create_bucket(&self, bucket: &str, created_ms: u64) -> Result<(), Error> {
        Store::create_bucket(self, bucket, created_ms)
    }

    fn delete_bucket(&self, bucket: &str) -> Result<(), Error> {
        Store::delete_bucket(self, bucket)
    }

    fn head_bucket(&self, bucket: &str) -> Result<BucketInfo, Error> {
        Store::head_bucket(self, bucket)
    }

    fn list_buckets(&self) -> Result<Vec<BucketInfo>, Error> {
        Store::list_buckets(self)
    }

    fn begin_put(
        &self,
        bucket: &str,
        key: &str,
        expected_len: Option<u64>,
    ) -> Result<Box<dyn ObjectWriter>, Error> {
        let writer = Store::begin_put(self, bucket, key, expected_len)?;
        Ok(Box::new(writer))
    }

    fn get(&self, bucket: &str, key: &str) -> Result<Option<Arc<Object>>, Error> {
        Store::get(self, bucket, key)
    }

    fn head(&self, bucket: &str, key: &str) -> Result<Option<ObjectInfo>, Error> {
        Store::head(self, bucket, key)
    }

    fn delete(&self, bucket: &str, key: &str) -> Result<bool, Error> {
        Store::delete(self, bucket, key)
    }

    fn list(
        &self,
        bucket: &str,
        prefix: &str,
        start_after: &str,
        max: usize,
    ) -> Result<Listing, Error> {
        Store::list(self, bucket, prefix, start_after, max)
    }

    fn verify(&self, bucket: &str, key: &str) -> Result<Option<Verified>, Error> {
        Store::verify(self, bucket, key)
    }
}

impl ObjectWriter for PutWriter {
    fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        PutWriter::write(self, data)
    }

    fn written(&self) -> u64 {
        PutWriter::written(self)
    }

    fn commit(self: Box<Self>, meta: ObjectMeta) -> Result<Committed, Error> {
        PutWriter::commit(*self, meta)
    }
}
