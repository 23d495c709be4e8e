//! PUT of objects, and of parts of uploads, into this node's store.

use prism_replicas::meta::stored_meta;
use std::io;

use prism_http::{Exchange, ResponseHead};
use prism_replicas::delete::{conditions_error, holds};
use prism_replicas::meta::checksum_wanted;
use prism_replicas::{blocking, joined, now_ms, store_error};
use prism_s3::op::{PutObject, UploadPart};
use prism_s3::{BucketName, Code, Conditions, Digests, Expected, ObjectKey, S3Error};
use prism_service::{Io, set};
use prism_store::{Condition, ObjectMeta};

use crate::answer::send;
use crate::bodies::{Finish, Pipe, Stored};
use crate::multipart::named_upload;
use crate::objects::{Objects, Request};
use crate::versions;

impl Objects {
    pub(crate) async fn put_object(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        (bucket, key, put): (&BucketName, &ObjectKey, &PutObject),
    ) -> io::Result<bool> {
        let pipe = self.begin_put(request, bucket, key, put).await;
        let (headers, tags) = (put.headers.clone(), put.tags.clone());
        let conditions = put.conditions.clone();
        let finish = move |digests: &Digests| {
            let meta = ObjectMeta {
                etag: digests.etag().trim_matches('"').to_owned(),
                created_ms: now_ms(),
                ..stored_meta(&headers, &tags, digests.checksum.as_ref())
            };
            Ok(Finish { meta, conditions })
        };
        let stored = self
            .bodies
            .store(io, request, exchange, pipe, finish)
            .await?;
        self.answer_stored(io, request, exchange, stored).await
    }

    pub(crate) async fn put_part(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        (bucket, key, part): (&BucketName, &ObjectKey, &UploadPart),
    ) -> io::Result<bool> {
        let pipe = self.begin_part(request, bucket, key, part).await;
        let stored = self
            .bodies
            .store(io, request, exchange, pipe, |digests| Ok(as_part(digests)))
            .await?;
        self.answer_stored(io, request, exchange, stored).await
    }

    async fn answer_stored(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        stored: Result<Stored, (S3Error, bool)>,
    ) -> io::Result<bool> {
        let may_say_so = |error| (error, exchange.keep_alive);
        let stored =
            stored.and_then(|stored| self.if_still(request, Ok(stored)).map_err(may_say_so));
        match stored {
            Ok(Stored {
                digests, committed, ..
            }) => {
                let mut head = ResponseHead::new(200);
                versions::set_id(&mut head, committed.version)?;
                set(&mut head, "ETag", digests.etag())?;
                if let Some((name, value)) = &digests.checksum {
                    set(&mut head, name, value)?;
                }
                send(io, exchange, head, &[]).await
            }
            Err((error, keep_alive)) => {
                let exchange = Exchange {
                    keep_alive,
                    ..*exchange
                };
                self.send_error(io, &exchange, &error, request.head.path())
                    .await
            }
        }
    }

    async fn begin_put(
        &self,
        request: &Request,
        bucket: &BucketName,
        key: &ObjectKey,
        put: &PutObject,
    ) -> Result<Pipe, S3Error> {
        let headers = request.head.headers();
        let expected = Expected::from_request(headers, &request.meaning.payload)?;
        let (bucket, key) = (bucket.as_str().to_owned(), key.as_str().to_owned());
        let (length, conditions) = (put.length, put.conditions.clone());
        if !conditions.is_empty() {
            self.conditions_hold_now(&bucket, &key, conditions).await?;
        }
        let store = self.node.store.as_ref().ok_or(Code::InternalError)?;
        // A look into the tree, as for reading.
        let writer = store.begin_put(&bucket, &key, length);
        let writer = writer.map_err(|e| store_error(&e))?;
        Pipe::new(writer, expected, &request.meaning.payload, headers)
    }

    /// What fails now need not be read; the commit asks again.
    async fn conditions_hold_now(
        &self,
        bucket: &str,
        key: &str,
        conditions: Conditions,
    ) -> Result<(), S3Error> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let asked = blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            let current = store.head(&bucket, &key).map_err(|e| store_error(&e))?;
            if holds(&conditions, current.as_ref().map(|info| &info.meta)) {
                return Ok(());
            }
            let exists = current.is_some();
            let error = prism_store::Error::ConditionFailed { exists };
            Err(conditions_error(&conditions, &error))
        });
        joined(asked).await
    }

    async fn begin_part(
        &self,
        request: &Request,
        bucket: &BucketName,
        key: &ObjectKey,
        part: &UploadPart,
    ) -> Result<Pipe, S3Error> {
        let headers = request.head.headers();
        let expected = Expected::from_request(headers, &request.meaning.payload)?;
        let (bucket, key, part) = (bucket.clone(), key.clone(), part.clone());
        let begun = blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            let name = named_upload(&bucket, &key, &part.upload)?;
            let upload = store.uploads().get(name).map_err(|e| store_error(&e))?;
            let expected = match checksum_wanted(&upload.meta) {
                Some((algorithm, _)) => expected.want(algorithm)?,
                None => expected,
            };
            let writer = store.uploads().begin_part(name, part.number, part.length);
            Ok((writer.map_err(|e| store_error(&e))?, expected))
        });
        let (writer, expected) = joined(begun).await?;
        Pipe::new(writer, expected, &request.meaning.payload, headers)
    }
}

/// What is kept with a part of an upload.
pub(crate) fn as_part(digests: &Digests) -> Finish {
    let checksum = digests.checksum.iter();
    let meta = ObjectMeta {
        etag: digests.etag().trim_matches('"').to_owned(),
        created_ms: now_ms(),
        headers: checksum
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        user: Vec::new(),
    };
    Finish {
        meta,
        conditions: Conditions::default(),
    }
}

/// The conditions of a write as the store asks them.
pub(crate) fn condition(conditions: &Conditions) -> Option<Condition> {
    if conditions.is_empty() {
        return None;
    }
    let asked = conditions.clone();
    Some(Box::new(move |current: Option<&ObjectMeta>| {
        holds(&asked, current)
    }))
}
