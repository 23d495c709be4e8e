//! PUT of objects, and of parts of uploads, into this node's store.

use prism_replicas::StoreResult;
use prism_replicas::delete::{conditions_error, holds};
use prism_s3::integrity::TYPE_HEADER;
use prism_s3::op::{PutObject, UploadPart};
use prism_s3::{
    Algorithm, ChecksumType, Code, Conditions, Expected, ObjectOperation, ObjectRef, Operation,
    S3Error, quoted,
};
use prism_service::Exchange;

use crate::answer::{Answer, Failure};
use crate::bodies::{Becomes, Pipe};
use crate::objects::Objects;
use crate::request::{Call, Request};

impl Objects {
    /// Stores a body as `pipe` says, which begins an object or a part.
    pub(crate) async fn store_body(
        &self,
        call: &mut Call<'_, impl Exchange>,
        pipe: impl Future<Output = Result<Pipe, S3Error>>,
    ) -> Result<Answer, Failure> {
        let stored = self.bodies.store(call, pipe.await).await?;
        let answer = Answer::empty(200).with_version(stored.committed.version)?;
        let answer = answer.with("ETag", quoted(&stored.digests.etag()))?;
        let Some((name, value)) = &stored.digests.checksum else {
            return Ok(answer);
        };
        let answer = answer.with(name, value)?;
        Ok(match call.request.meaning.operation {
            Operation::Object(_, ObjectOperation::Put(_)) => {
                answer.with(TYPE_HEADER, ChecksumType::FullObject.as_str())?
            }
            _ => answer,
        })
    }

    /// Begins an object.
    pub(crate) async fn begin_put(
        &self,
        request: &Request<'_>,
        object: &ObjectRef,
        put: &PutObject,
    ) -> Result<Pipe, S3Error> {
        let expected = Expected::from_request(request.head.headers(), &request.meaning.payload)?;
        let expected = expected.or_computed(Algorithm::DEFAULT);
        if !put.conditions.is_empty() {
            self.conditions_hold_now(object, &put.conditions).await?;
        }
        let length = put.length.unwrap_or_default();
        let room = self.room_for_object(object, length).await?;
        let store = self.node.store.as_ref().ok_or(Code::InternalError)?;
        // One look into the tree, which is fast enough for the worker's thread.
        let writer = store.begin_put(object.bucket.as_str(), object.key.as_str(), put.length);
        let becomes = Becomes {
            headers: put.headers.clone(),
            tags: put.tags.clone(),
            conditions: put.conditions.clone(),
        };
        let pipe = Pipe::new(writer.in_s3()?, expected, becomes, request)?;
        Ok(pipe.within(room))
    }

    /// Checks conditions before the body is read. The commit checks them again.
    async fn conditions_hold_now(
        &self,
        object: &ObjectRef,
        conditions: &Conditions,
    ) -> Result<(), S3Error> {
        let object = object.clone();
        let conditions = conditions.clone();
        let checked = self.node.on_store(move |_, store| {
            let current = store.head(object.bucket.as_str(), object.key.as_str());
            let current = current.in_s3()?;
            if holds(&conditions, current.as_ref().map(|info| &info.meta)) {
                return Ok(());
            }
            let exists = current.is_some();
            let error = prism_store::Error::ConditionFailed { exists };
            Err(conditions_error(&conditions, &error))
        });
        checked.await
    }

    /// Begins a part of an upload.
    pub(crate) async fn begin_put_part(
        &self,
        request: &Request<'_>,
        object: &ObjectRef,
        part: &UploadPart,
    ) -> Result<Pipe, S3Error> {
        let expected = Expected::from_request(request.head.headers(), &request.meaning.payload)?;
        let begun = self.begin_part(object, &part.upload, part.number, part.length, expected);
        let (writer, expected) = begun.await?;
        let length = part.length.unwrap_or_default();
        let room = self.room_for_part(object, &part.upload, part.number, length);
        let room = room.await?;
        let pipe = Pipe::new(writer, expected, Becomes::default(), request)?;
        Ok(pipe.within(room))
    }
}
