//! PUT of objects, and of parts of uploads, into this node's store.

use std::io;

use prism_http::ResponseHead;
use prism_replicas::StoreResult;
use prism_replicas::delete::{conditions_error, holds};
use prism_s3::op::{PutObject, UploadPart};
use prism_s3::{Code, Conditions, Digests, Expected, ObjectRef, S3Error};
use prism_service::{Io, set};

use crate::bodies::{Finish, Pipe, Stored};
use crate::call::Call;
use crate::objects::Objects;
use crate::request::Request;
use crate::versions;

impl Objects {
    /// Stores a body as an object. Returns whether the connection lives on.
    pub(crate) async fn put_object(
        &self,
        call: &mut Call<'_, impl Io>,
        object: &ObjectRef,
        put: &PutObject,
    ) -> io::Result<bool> {
        let pipe = self.begin_put(call.request, object, put).await;
        let (headers, tags) = (put.headers.clone(), put.tags.clone());
        let conditions = put.conditions.clone();
        let finish =
            move |digests: &Digests| Ok(Finish::object(&headers, &tags, conditions, digests));
        let stored = self.bodies.store(call, pipe, finish).await?;
        self.answer_stored(call, stored).await
    }

    /// Stores a body as a part of an upload. Returns whether the connection lives on.
    pub(crate) async fn put_part(
        &self,
        call: &mut Call<'_, impl Io>,
        object: &ObjectRef,
        part: &UploadPart,
    ) -> io::Result<bool> {
        let pipe = self.begin_put_part(call.request, object, part).await;
        let finish = |digests: &Digests| Ok(Finish::part(digests));
        let stored = self.bodies.store(call, pipe, finish).await?;
        self.answer_stored(call, stored).await
    }

    async fn answer_stored(
        &self,
        call: &mut Call<'_, impl Io>,
        stored: Result<Stored, S3Error>,
    ) -> io::Result<bool> {
        let stored = match stored {
            Ok(stored) => self.if_still(call.request, Ok(stored)),
            Err(error) => Err(error),
        };
        let Stored {
            digests, committed, ..
        } = match stored {
            Ok(stored) => stored,
            Err(error) => return self.send_error_of(call, &error).await,
        };
        let mut head = ResponseHead::new(200);
        versions::set_id(&mut head, committed.version)?;
        set(&mut head, "ETag", digests.etag())?;
        if let Some((name, value)) = &digests.checksum {
            set(&mut head, name, value)?;
        }
        call.send(head, &[]).await
    }

    async fn begin_put(
        &self,
        request: &Request,
        object: &ObjectRef,
        put: &PutObject,
    ) -> Result<Pipe, S3Error> {
        let (headers, payload) = (request.head.headers(), &request.meaning.payload);
        let expected = Expected::from_request(headers, payload)?;
        if !put.conditions.is_empty() {
            self.conditions_hold_now(object, &put.conditions).await?;
        }
        let store = self.node.store.as_ref().ok_or(Code::InternalError)?;
        // One look into the tree, which is fast enough for the worker's thread.
        let writer = store.begin_put(object.bucket.as_str(), object.key.as_str(), put.length);
        Pipe::new(writer.in_s3()?, expected, payload, headers)
    }

    /// Checks conditions before the body is read. The commit checks them again.
    async fn conditions_hold_now(
        &self,
        object: &ObjectRef,
        conditions: &Conditions,
    ) -> Result<(), S3Error> {
        let (object, conditions) = (object.clone(), conditions.clone());
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

    async fn begin_put_part(
        &self,
        request: &Request,
        object: &ObjectRef,
        part: &UploadPart,
    ) -> Result<Pipe, S3Error> {
        let (headers, payload) = (request.head.headers(), &request.meaning.payload);
        let expected = Expected::from_request(headers, payload)?;
        let begun = self.begin_part(object, &part.upload, part.number, part.length, expected);
        let (writer, expected) = begun.await?;
        Pipe::new(writer, expected, payload, headers)
    }
}
