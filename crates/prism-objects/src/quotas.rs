//! The growth of a bucket by each operation that writes, for its quota. Deletions, and changes of
//! metadata and tags, are never asked.
//!
//! | operation | counts | replaces |
//! |---|---|---|
//! | PutObject, CopyObject | 1 object, its bytes | that of the key, unless versions are kept |
//! | UploadPart, UploadPartCopy | its bytes | the part of that number |
//! | CreateMultipartUpload, CompleteMultipartUpload | 1 object | as PutObject; parts count before |
//!
//! Not here: the quota (`prism_replicas`).

use prism_replicas::{Growth, Room, StoreResult};
use prism_s3::{ObjectRef, S3Error};
use prism_store::{Store, UploadId, UploadName, Versioning};

use crate::objects::Objects;

impl Objects {
    /// Room for an object of `len` bytes; 0 if the client does not say it.
    pub(crate) async fn room_for_object(
        &self,
        object: &ObjectRef,
        len: u64,
    ) -> Result<Option<Room>, S3Error> {
        self.room(object, move |store, object| {
            Ok(Growth::by_object(len, replaced(store, object)?))
        })
        .await
    }

    /// Room for a part of `len` bytes; 0 if the client does not say it.
    pub(crate) async fn room_for_part(
        &self,
        object: &ObjectRef,
        upload: &str,
        number: u16,
        len: u64,
    ) -> Result<Option<Room>, S3Error> {
        let upload = UploadId::parse(upload);
        self.room(object, move |store, object| {
            let Some(name) = upload.map(|id| named(object, id)) else {
                return Ok(Growth::default());
            };
            let parts = store.uploads().parts(name, number.saturating_sub(1), 1);
            let (parts, _) = parts.in_s3()?;
            let same = parts.first().filter(|part| part.number == number);
            Ok(Growth::by_part(len, same.map(|part| part.len)))
        })
        .await
    }

    /// Room for the object that an upload becomes. An upload that has ended already adds nothing.
    pub(crate) async fn room_for_completion(
        &self,
        object: &ObjectRef,
        upload: &str,
    ) -> Result<Option<Room>, S3Error> {
        let upload = UploadId::parse(upload);
        self.room(object, move |store, object| {
            let is_open = upload.is_some_and(|id| store.uploads().get(named(object, id)).is_ok());
            if is_open {
                Ok(Growth::by_object(0, replaced(store, object)?))
            } else {
                Ok(Growth::default())
            }
        })
        .await
    }

    async fn room(
        &self,
        object: &ObjectRef,
        growth: impl FnOnce(&Store, &ObjectRef) -> Result<Growth, S3Error> + Send + 'static,
    ) -> Result<Option<Room>, S3Error> {
        let reserving = self.replicator.reserve(object.bucket.as_str(), async || {
            let object = object.clone();
            let growth = self.node.on_store(move |_, store| growth(store, &object));
            growth.await
        });
        Box::pin(reserving).await
    }
}

fn named(object: &ObjectRef, id: UploadId) -> UploadName<'_> {
    UploadName {
        bucket: object.bucket.as_str(),
        key: object.key.as_str(),
        id,
    }
}

/// The length of the object that a write of its key replaces. A bucket with versions keeps the
/// object.
fn replaced(store: &Store, object: &ObjectRef) -> Result<Option<u64>, S3Error> {
    let bucket = object.bucket.as_str();
    let key = object.key.as_str();
    match store.buckets().get(bucket).in_s3()?.versioning {
        Versioning::Never => {
            let current = store.head(bucket, key).in_s3()?;
            Ok(current.map(|info| info.len))
        }
        Versioning::Enabled | Versioning::Suspended => Ok(None),
    }
}
