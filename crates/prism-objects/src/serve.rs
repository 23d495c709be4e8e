//! Requests that are answered from this node's store.

use crate::answer::Answer;
use std::io;

use prism_http::{Exchange, Headers, ResponseHead};
use prism_replicas::delete;
use prism_replicas::{meta, store_error};
use prism_s3::cors;
use prism_s3::op::Attributes;
use prism_s3::xml::{self, PartEntry, PartsOfObject};
use prism_s3::{
    BucketName, BucketOperation, Code, Conditions, Document, ObjectKey, ObjectOperation, ObjectRef,
    Operation, S3Error, Tags,
};
use prism_service::{Io, MAX_SKIP_BYTES, set};
use prism_store::{Body, Object, ObjectInfo, ObjectMeta, Store, ToDelete};

use crate::answer::{from_ms, send, send_xml};
use crate::objects::{Objects, Request};
use crate::rules::rules_here;
use crate::{multipart, versions};

/// Longest body of a PutObjectTagging: ten tags with every character escaped.
const MAX_TAGGING_BYTES: u64 = 64 << 10;

impl Objects {
    /// Answers from this node's store.
    pub(crate) async fn serve_from_store(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let node = self.node.clone();
        let Some(store) = node.store.as_ref() else {
            return self.serve_without_store(io, request, exchange).await;
        };
        let certain = match self.may_answer(&request.meaning) {
            Ok(()) => self.make_sure(request).await,
            Err(error) => Err(error),
        };
        if let Err(error) = certain {
            return self.refuse_here(io, request, exchange, &error).await;
        }
        match &request.meaning.operation {
            Operation::Object(ObjectRef { bucket, key }, ObjectOperation::Put(put)) => {
                Box::pin(self.put_object(io, request, exchange, (bucket, key, put))).await
            }
            Operation::Object(ObjectRef { bucket, key }, ObjectOperation::UploadPart(part)) => {
                Box::pin(self.put_part(io, request, exchange, (bucket, key, part))).await
            }
            Operation::Object(
                ObjectRef { bucket, key },
                ObjectOperation::CompleteUpload(complete),
            ) => {
                Box::pin(self.complete_upload(io, request, exchange, (bucket, key, complete))).await
            }
            Operation::Object(
                ObjectRef { bucket, key },
                ObjectOperation::PutTagging { version },
            ) => {
                let what = (bucket, key, version.as_deref());
                Box::pin(self.put_tagging(io, request, exchange, what)).await
            }
            _ => {
                // Bodies of all others mean nothing.
                let mut body = request.take_body(MAX_SKIP_BYTES);
                let keep_alive = exchange.keep_alive && body.skip_rest(io).await;
                let exchange = Exchange {
                    keep_alive,
                    ..*exchange
                };
                self.serve_without_body(io, request, &exchange, store).await
            }
        }
    }

    /// Makes sure that this store's copy is current.
    async fn make_sure(&self, request: &Request) -> Result<(), S3Error> {
        if let Some(bucket) = request.meaning.operation.bucket() {
            self.replicator.ensure_bucket(bucket.as_str()).await?;
        }
        match request.meaning.operation.object() {
            Some(ObjectRef { bucket, key }) => {
                self.replicator
                    .resolve_key_with_retry(bucket.as_str(), key.as_str())
                    .await
            }
            None => Ok(()),
        }
    }

    async fn serve_without_body(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        store: &Store,
    ) -> io::Result<bool> {
        use ObjectOperation::{Copy, CopyPart, Get, Head};
        match &request.meaning.operation {
            Operation::Object(ObjectRef { bucket, key }, Get(read) | Head(read)) => {
                self.get_object(io, request, exchange, store, (bucket, key, read))
                    .await
            }
            Operation::Object(ObjectRef { bucket, key }, Copy(copy)) => {
                Box::pin(self.copy_object(io, request, exchange, (bucket, key, copy))).await
            }
            Operation::Object(ObjectRef { bucket, key }, CopyPart(part)) => {
                Box::pin(self.copy_part(io, request, exchange, (bucket, key, part))).await
            }
            _ => {
                let answer = self.small(request).await;
                self.answer(io, request, exchange, answer).await
            }
        }
    }

    async fn serve_without_store(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let error = match &request.meaning.operation {
            Operation::Unsupported { what } => Operation::not_implemented(what),
            _ => Code::ServiceUnavailable.into(),
        };
        self.refuse_here(io, request, exchange, &error).await
    }

    /// Answers with an error before the body is read.
    async fn refuse_here(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        error: &S3Error,
    ) -> io::Result<bool> {
        let mut body = request.take_body(MAX_SKIP_BYTES);
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.can_skip_rest(io).await,
            ..*exchange
        };
        let resource = request.head.path();
        let answered = self.send_error(io, &exchange, error, resource).await;
        body.skip_behind(io, answered).await
    }

    /// Sends a small answer, or an error.
    pub(crate) async fn answer(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        answer: Result<Answer, S3Error>,
    ) -> io::Result<bool> {
        match self.if_still(request, answer) {
            Ok((head, body)) if body.is_empty() || head.headers().get("content-type").is_some() => {
                send(io, exchange, head, &body).await
            }
            Ok((head, xml)) => send_xml(io, exchange, head, &xml).await,
            Err(error) => {
                self.send_error(io, exchange, &error, request.head.path())
                    .await
            }
        }
    }

    /// Operations without a body, whose answer is an XML document or nothing.
    async fn small(&self, request: &Request) -> Result<Answer, S3Error> {
        if let Operation::Unsupported { what } = &request.meaning.operation {
            return Err(Operation::not_implemented(what));
        }
        let region = self.node.config.cluster.region.clone();
        let operation = request.meaning.operation.clone();
        let headers = match &operation {
            Operation::Bucket(_, BucketOperation::Preflight) => request.head.headers().clone(),
            _ => Headers::new(),
        };
        self.node
            .on_store(move |_, store| small_here(store, &operation, &headers, &region))
            .await
    }

    async fn put_tagging(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        (bucket, key, version): (&BucketName, &ObjectKey, Option<&str>),
    ) -> io::Result<bool> {
        let body = self.read_document(io, request, MAX_TAGGING_BYTES).await?;
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.is_whole,
            ..*exchange
        };
        let tags = body.bytes.and_then(|xml| xml::parse_tagging(&xml));
        let answer = match tags {
            Ok(tags) => {
                let (bucket, key) = (bucket.clone(), key.clone());
                let version = version.map(str::to_owned);
                self.node
                    .on_store(move |_, store| {
                        retag(store, (&bucket, &key, version.as_deref()), tags, 200)
                    })
                    .await
            }
            Err(error) => Err(error),
        };
        self.answer(io, request, &exchange, answer).await
    }
}

fn small_here(
    store: &Store,
    operation: &Operation,
    headers: &Headers,
    region: &str,
) -> Result<Answer, S3Error> {
    match operation {
        Operation::ListBuckets => Ok((ResponseHead::new(200), list_buckets(store)?)),
        Operation::Bucket(bucket, operation) => {
            small_of_bucket(store, bucket, operation, headers, region)
        }
        Operation::Object(object, operation) => small_of_object(store, object, operation),
        Operation::Unsupported { what } => Err(Operation::not_implemented(what)),
    }
}

fn small_of_bucket(
    store: &Store,
    bucket: &BucketName,
    operation: &BucketOperation,
    headers: &Headers,
    region: &str,
) -> Result<Answer, S3Error> {
    let ok = |xml| Ok((ResponseHead::new(200), xml));
    match operation {
        BucketOperation::Head => {
            existing(store, bucket)?;
            let head = ResponseHead::new(200).with("x-amz-bucket-region", region);
            Ok((head.map_err(|_| Code::InternalError)?, Vec::new()))
        }
        BucketOperation::GetLocation => {
            existing(store, bucket)?;
            ok(xml::location(region))
        }
        BucketOperation::GetVersioning => {
            let info = store.buckets().get(bucket.as_str());
            let info = info.map_err(|e| store_error(&e))?;
            ok(xml::versioning(info.versioning.enabled()))
        }
        BucketOperation::GetDocument(document) => {
            let found = store.buckets().document(bucket.as_str(), document.as_str());
            let found = found.map_err(|e| store_error(&e))?;
            match document {
                Document::Cors => ok(found.ok_or(Code::NoSuchCORSConfiguration)?),
                Document::Policy => {
                    let head = ResponseHead::new(200).with("Content-Type", "application/json");
                    let head = head.map_err(|_| Code::InternalError)?;
                    Ok((head, found.ok_or(Code::NoSuchBucketPolicy)?))
                }
            }
        }
        BucketOperation::Preflight => {
            cors::asked(headers)?;
            let config = rules_here(store, bucket).ok_or_else(cors::forbidden)?;
            Ok((config.preflight(headers)?, Vec::new()))
        }
        other => Err(not_for_one_node(other.name())),
    }
}

fn small_of_object(
    store: &Store,
    object: &ObjectRef,
    operation: &ObjectOperation,
) -> Result<Answer, S3Error> {
    let ObjectRef { bucket, key } = object;
    match operation {
        ObjectOperation::Delete {
            version,
            conditions,
        } => delete(store, (bucket, key, version.as_deref()), conditions),
        ObjectOperation::GetTagging { version } => {
            let object = head(store, (bucket, key, version.as_deref()))?;
            let mut head = ResponseHead::new(200);
            versions::set_id(&mut head, object.version).map_err(|_| Code::InternalError)?;
            Ok((head, xml::tagging(&meta::tags(&object.meta))))
        }
        ObjectOperation::DeleteTagging { version } => {
            let what = (bucket, key, version.as_deref());
            retag(store, what, Tags::default(), 204)
        }
        ObjectOperation::GetAttributes(attributes) => {
            object_attributes(store, (bucket, key), attributes)
        }
        ObjectOperation::CreateUpload(create) => multipart::create(store, (bucket, key), create),
        ObjectOperation::ListParts(list) => multipart::list(store, (bucket, key), list),
        ObjectOperation::AbortUpload { upload } => multipart::abort(store, (bucket, key), upload),
        other => Err(not_for_one_node(other.name())),
    }
}

fn not_for_one_node(operation: &str) -> S3Error {
    tracing::error!(operation, "not for one node alone");
    Code::InternalError.into()
}

fn existing(store: &Store, bucket: &BucketName) -> Result<(), S3Error> {
    let found = store.buckets().get(bucket.as_str());
    found.map(drop).map_err(|e| store_error(&e))
}

fn list_buckets(store: &Store) -> Result<Vec<u8>, S3Error> {
    let buckets = store.buckets().list().map_err(|e| store_error(&e))?;
    let named: Vec<_> = buckets
        .iter()
        .filter_map(|b| Some((BucketName::parse(&b.name).ok()?, from_ms(b.created_ms))))
        .collect();
    let listed = named.iter().map(|(name, created)| (name, *created));
    Ok(xml::list_buckets(listed))
}

/// An object, or the version of it that the client names.
type What<'a> = (&'a BucketName, &'a ObjectKey, Option<&'a str>);

fn head(store: &Store, (bucket, key, version): What<'_>) -> Result<ObjectInfo, S3Error> {
    let version = delete::named(version)?;
    let found = store.head_version(bucket.as_str(), key.as_str(), version);
    let found = found.map_err(|e| store_error(&e))?;
    Ok(found.ok_or(Code::NoSuchKey)?)
}

fn delete(
    store: &Store,
    (bucket, key, version): What<'_>,
    conditions: &Conditions,
) -> Result<Answer, S3Error> {
    let key = key.as_str();
    let version = delete::named(version)?;
    let removed = delete::delete(
        store,
        bucket.as_str(),
        ToDelete { key, version },
        conditions,
    )?;
    let mut head = ResponseHead::new(204);
    versions::set_removed(&mut head, removed).map_err(|_| Code::InternalError)?;
    Ok((head, Vec::new()))
}

fn retag(
    store: &Store,
    (bucket, key, version): What<'_>,
    tags: Tags,
    status: u16,
) -> Result<Answer, S3Error> {
    let version = delete::named(version)?;
    let change = move |meta: &mut ObjectMeta| meta::set_tags(meta, &tags);
    let changed = store.change_meta(bucket.as_str(), key.as_str(), version, change);
    let mut head = ResponseHead::new(status);
    let id = changed.map_err(|e| store_error(&e))?;
    versions::set_id(&mut head, id).map_err(|_| Code::InternalError)?;
    Ok((head, Vec::new()))
}

fn object_attributes(
    store: &Store,
    (bucket, key): (&BucketName, &ObjectKey),
    asked: &Attributes,
) -> Result<Answer, S3Error> {
    let version = delete::named(asked.version.as_deref())?;
    let object = store.get_version(bucket.as_str(), key.as_str(), version);
    let object = object
        .map_err(|e| store_error(&e))?
        .ok_or(Code::NoSuchKey)?;
    let answer = xml::Attributes {
        etag: asked.etag.then(|| object.meta.etag.clone()),
        checksum: meta::checksum(&object.meta).filter(|_| asked.checksum),
        parts: asked.parts.then(|| parts_of(&object, asked)).flatten(),
        storage_class: asked.storage_class,
        size: asked.size.then_some(object.len),
    };
    let mut head = ResponseHead::new(200);
    let modified = prism_s3::time::http_date(from_ms(object.meta.created_ms));
    set(&mut head, "Last-Modified", modified).map_err(|_| Code::InternalError)?;
    versions::set_id(&mut head, object.version).map_err(|_| Code::InternalError)?;
    Ok((head, answer.xml()))
}

fn parts_of(object: &Object, asked: &Attributes) -> Option<PartsOfObject> {
    let Body::Parts(parts) = &object.body else {
        return None;
    };
    let mut page = Vec::new();
    for (number, size, headers) in parts.iter().filter(|(number, ..)| *number > asked.after) {
        // One more than wanted tells that there are more.
        let Some(checksum) = meta::part_checksum(headers).filter(|_| page.len() <= asked.max_parts)
        else {
            break;
        };
        page.push(PartEntry {
            number,
            modified: from_ms(object.meta.created_ms),
            etag: String::new(),
            size,
            checksum: Some(checksum),
        });
    }
    let truncated = page.len() > asked.max_parts;
    page.truncate(asked.max_parts);
    Some(PartsOfObject {
        count: parts.count(),
        after: asked.after,
        max: asked.max_parts,
        truncated,
        page,
    })
}
