//! GET and HEAD of objects, from this node's store.

use std::io;

use prism_http::{AnswerBody, Exchange, Method, ResponseFraming, ResponseHead};
use prism_s3::op::ReadObject;
use prism_s3::range::{ByteRange, Unsatisfiable};
use prism_s3::{BucketName, Code, ObjectKey, Outcome, S3Error};
use prism_store::{Body, Object, ObjectMeta, Store};

use super::Worker;
use super::answer::{from_ms, request_id, send, send_error, send_xml, set};
use super::io::Io;
use super::session::Request;

impl Worker {
    /// Answers a GET or HEAD. The lookup is from memory or one read of the
    /// tree, so it is made on the worker's own thread.
    pub(super) async fn get_object(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        store: &Store,
        (bucket, key, read): (&BucketName, &ObjectKey, &ReadObject),
    ) -> io::Result<bool> {
        let resource = request.head.path();
        let found = match store.get(bucket.as_str(), key.as_str()) {
            Ok(Some(object)) => Ok(object),
            Ok(None) => Err(match store.head_bucket(bucket.as_str()) {
                Ok(_) => Code::NoSuchKey.into(),
                Err(error) => store_error(&error),
            }),
            Err(error) => Err(store_error(&error)),
        };
        let object = match found {
            Ok(object) => object,
            Err(error) => return self.send_error(io, exchange, &error, resource).await,
        };
        let modified = from_ms(object.meta.created_ms);
        let etag = quoted(&object.meta.etag);
        match read.conditions.for_read(&etag, modified) {
            Outcome::Proceed => {}
            Outcome::NotModified => {
                let mut head = ResponseHead::new(304);
                describe(&mut head, &object.meta)?;
                return send(io, exchange, head, &[]).await;
            }
            Outcome::Failed => {
                let error = Code::PreconditionFailed.into();
                return self.send_error(io, exchange, &error, resource).await;
            }
        }
        let wanted = read
            .range
            .filter(|_| read.conditions.range_applies(&etag, modified));
        match wanted.map(|range| range.resolve(object.len)).transpose() {
            Ok(range) => {
                self.send_object(io, request, exchange, &object, range)
                    .await
            }
            Err(unsatisfiable) => not_satisfiable(io, exchange, unsatisfiable, resource).await,
        }
    }

    async fn send_object(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        object: &Object,
        range: Option<ByteRange>,
    ) -> io::Result<bool> {
        let mut head = ResponseHead::new(if range.is_some() { 206 } else { 200 });
        describe(&mut head, &object.meta)?;
        set(&mut head, "x-amz-request-id", request_id())?;
        set(&mut head, "Server", "Prism")?;
        let (offset, len) = match range {
            Some(range) => {
                set(&mut head, "Content-Range", range.content_range())?;
                (range.offset(), range.len())
            }
            None => (0, object.len),
        };
        let asks = request.head.headers().get_str("x-amz-checksum-mode");
        if range.is_none() && asks.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled")) {
            for (name, value) in object.meta.headers.iter().filter(|(n, _)| is_checksum(n)) {
                set(&mut head, name, value)?;
            }
        }
        let mut bytes = Vec::with_capacity(1024);
        let written = head.write_to(exchange, AnswerBody::Length(len), &mut bytes);
        if written.framing == ResponseFraming::None || len == 0 {
            io.write_all(&bytes).await?;
            return Ok(written.keep_alive);
        }
        match &object.body {
            Body::Inline(data) => {
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = data.get(at..).unwrap_or_default();
                let part = part.get(..usize::try_from(len).unwrap_or(usize::MAX));
                bytes.extend_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
                io.write_all(&bytes).await?;
            }
            Body::File { file, .. } => {
                io.write_more(&bytes).await?;
                io.send_file(file, offset, len).await?;
            }
        }
        self.node.counters.bytes_out.add(len);
        Ok(written.keep_alive)
    }

    /// Sends an error, counting those that are ours.
    pub(super) async fn send_error(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        error: &S3Error,
        resource: &str,
    ) -> io::Result<bool> {
        if error.status() >= 500 && error.code() != Code::NotImplemented {
            self.node.counters.failed.add_one();
            tracing::warn!(%error, resource, "request failed");
        }
        send_error(io, exchange, error, resource).await
    }
}

async fn not_satisfiable(
    io: &mut impl Io,
    exchange: &Exchange<'_>,
    unsatisfiable: Unsatisfiable,
    resource: &str,
) -> io::Result<bool> {
    let error = S3Error::from(Code::InvalidRange);
    let mut head = ResponseHead::new(error.status());
    set(&mut head, "Content-Range", unsatisfiable.content_range())?;
    let body = match exchange.method {
        Method::Head => Vec::new(),
        _ => error.xml(resource, &request_id()),
    };
    send_xml(io, exchange, head, &body).await
}

/// The headers that every answer about an object carries.
fn describe(head: &mut ResponseHead, meta: &ObjectMeta) -> io::Result<()> {
    set(head, "ETag", quoted(&meta.etag))?;
    set(
        head,
        "Last-Modified",
        prism_s3::time::http_date(from_ms(meta.created_ms)),
    )?;
    set(head, "Accept-Ranges", "bytes")?;
    set(
        head,
        "Content-Type",
        prism_s3::metadata::DEFAULT_CONTENT_TYPE,
    )?;
    for (name, value) in meta.headers.iter().filter(|(name, _)| !is_checksum(name)) {
        set(head, name, value)?;
    }
    for (name, value) in &meta.user {
        set(head, &format!("x-amz-meta-{name}"), value)?;
    }
    Ok(())
}

fn is_checksum(name: &str) -> bool {
    name.starts_with("x-amz-checksum-")
}

pub(super) fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

/// What a client is told of a store's error.
pub(super) fn store_error(error: &prism_store::Error) -> S3Error {
    use prism_store::Error;
    match error {
        Error::NoSuchBucket => Code::NoSuchBucket.into(),
        Error::AlreadyExists => Code::BucketAlreadyOwnedByYou.into(),
        Error::NotEmpty => Code::BucketNotEmpty.into(),
        Error::TooLarge => Code::EntityTooLarge.into(),
        Error::LengthMismatch { .. } => Code::IncompleteBody.into(),
        Error::MetaTooLarge => Code::MetadataTooLarge.into(),
        Error::InvalidName(what) => S3Error::with_message(Code::InvalidArgument, *what),
        Error::NoSpace => Code::InsufficientStorage.into(),
        Error::TooManyBuckets | Error::WritesDisabled => Code::ServiceUnavailable.into(),
        error => {
            tracing::error!(%error, "store");
            Code::InternalError.into()
        }
    }
}
