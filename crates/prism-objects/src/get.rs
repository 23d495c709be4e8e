//! GET and HEAD of objects, from this node's store.

use crate::answer::send_error_with;
use std::io;
use std::num::NonZero;
use std::sync::Arc;

use prism_http::{AnswerBody, Exchange, Headers, Method, ResponseFraming, ResponseHead};
use prism_proto::relay::HAND_OVER;
use prism_replicas::delete;
use prism_replicas::meta::is_hidden;
use prism_replicas::{checked_file, meta, store_error};
use prism_s3::integrity::TYPE_HEADER;
use prism_s3::metadata::told;
use prism_s3::op::ReadObject;
use prism_s3::range::{ByteRange, Unsatisfiable};
use prism_s3::{Algorithm, BucketName, Code, Conditions, ObjectKey, Outcome, RangeSpec, S3Error};
use prism_service::{Io, set};
use prism_store::{Body, CheckedFile, Object, Parts, Segment, Store};

use crate::answer::{from_ms, request_id, send, send_xml};
use crate::objects::{Objects, Request};
use crate::versions;

/// Read while a connection is on its way.
const READ_AHEAD_BYTES: u64 = 1 << 20;

impl Objects {
    /// Answers a GET or HEAD. The lookup is from memory or one read of the
    /// tree, so it is made on the worker's own thread.
    pub(crate) async fn get_object(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        store: &Store,
        (bucket, key, read): (&BucketName, &ObjectKey, &ReadObject),
    ) -> io::Result<bool> {
        let resource = request.head.path();
        let found = match &read.version {
            None => store.get(bucket.as_str(), key.as_str()),
            Some(name) => match delete::named(Some(name)) {
                Ok(version) => store
                    .get_version(bucket.as_str(), key.as_str(), version)
                    .map(|found| found.map(Arc::new)),
                Err(error) => return self.send_error(io, exchange, &error, resource).await,
            },
        };
        // What was found may be from before the cluster went on without this node.
        if let Err(error) = self.if_still(request, Ok(())) {
            return self.send_error(io, exchange, &error, resource).await;
        }
        let object = match found {
            Ok(Some(object)) => object,
            missing => {
                let missing = missing.map(drop);
                let (head, error) = versions::missing(store, (bucket, key, read), missing)?;
                return self
                    .send_error_with(io, exchange, head, &error, resource)
                    .await;
            }
        };
        let modified = from_ms(object.meta.created_ms);
        // Only conditions look at it.
        let etag = match read.conditions == Conditions::default() {
            true => String::new(),
            false => quoted(&object.meta.etag),
        };
        match read.conditions.for_read(&etag, modified) {
            Outcome::Proceed => {}
            Outcome::NotModified => {
                let mut head = ResponseHead::new(304);
                *head.headers_mut() = described(&object)?.clone();
                return send(io, exchange, head, &[]).await;
            }
            Outcome::Failed => {
                let error = Code::PreconditionFailed.into();
                return self.send_error(io, exchange, &error, resource).await;
            }
        }
        let part = match read.part.map(|part| part_of(&object, part)).transpose() {
            Ok(part) => part,
            Err(error) => return self.send_error(io, exchange, &error, resource).await,
        };
        let wanted = match &part {
            Some(part) => part.range,
            None => read
                .range
                .filter(|_| read.conditions.range_applies(&etag, modified)),
        };
        let range = match wanted.map(|range| range.resolve(object.len)).transpose() {
            Ok(range) => range,
            Err(unsatisfiable) => {
                return not_satisfiable(io, exchange, unsatisfiable, resource).await;
            }
        };
        let (offset, len) = match (range, &part) {
            (Some(range), _) => (range.offset(), range.len()),
            // A part without bytes, of which no range tells.
            (None, Some(_)) => (0, 0),
            (None, None) => (0, object.len),
        };
        if request
            .max_answer_bytes
            .is_some_and(|most| len > most.into())
        {
            read_ahead(&object, offset, len);
            return send(io, exchange, ResponseHead::new(HAND_OVER), &[]).await;
        }
        let mut head = ResponseHead::new(if range.is_some() { 206 } else { 200 });
        let described = described(&object)?;
        let mut exchange = *exchange;
        match exchange.extra {
            None if read.overrides.is_empty() => exchange.extra = Some(described),
            _ => *head.headers_mut() = described.clone(),
        }
        self.describe_more(&mut head, request, &object, (range, part))?;
        if let Some(range) = range {
            set(&mut head, "Content-Range", range.content_range())?;
        }
        for (name, value) in &read.overrides {
            set(&mut head, name, value)?;
        }
        self.send_object(io, request, &exchange, head, (&object, offset, len))
            .await
    }

    /// Headers that not every answer about the object has.
    fn describe_more(
        &self,
        head: &mut ResponseHead,
        request: &Request,
        object: &Object,
        (range, part): (Option<ByteRange>, Option<PartOf>),
    ) -> io::Result<()> {
        let tags = meta::tags(&object.meta);
        if !tags.is_empty() {
            set(head, "x-amz-tagging-count", tags.len().to_string())?;
            if request.is_for_node {
                set(head, meta::TAGS, tags.encode())?;
            }
        }
        if let Some(count) = part.as_ref().and_then(|part| part.of) {
            set(head, "x-amz-mp-parts-count", count.to_string())?;
        }
        let asks = request.head.headers().get_str("x-amz-checksum-mode");
        if !asks.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled")) {
            return Ok(());
        }
        match part {
            // A copy wants to know the algorithm whatever range it takes.
            None if range.is_none() || request.is_for_node => {
                if let Some((algorithm, value, kind)) = meta::checksum(&object.meta) {
                    set(head, algorithm.header(), value)?;
                    set(head, TYPE_HEADER, kind.as_str())?;
                }
            }
            Some(PartOf {
                checksum: Some((algorithm, value)),
                ..
            }) => set(head, algorithm.header(), value)?,
            _ => {}
        }
        Ok(())
    }

    async fn send_object(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        mut head: ResponseHead,
        (object, offset, len): (&Object, u64, u64),
    ) -> io::Result<bool> {
        set(&mut head, "x-amz-request-id", request_id())?;
        set(&mut head, "Server", "Prism")?;
        let mut bytes = self.answer_room.take();
        bytes.clear();
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
            Body::File(file) => {
                let end = offset + len;
                // Nothing was said yet, so an error can be.
                let good = match checked_file::check(file, offset, end).await {
                    Ok(good) => good,
                    Err(error) => return self.send_damaged(io, request, exchange, &error).await,
                };
                io.write_more(&bytes).await?;
                checked_file::send(io, file, offset..end, good).await?;
            }
            Body::Parts(parts) => {
                let segments = parts.segments(offset, len);
                let mut opened = match segments.first() {
                    Some(segment) => match open(parts, segment).await {
                        Ok(opened) => Some(opened),
                        Err(error) => {
                            return self.send_damaged(io, request, exchange, &error).await;
                        }
                    },
                    None => None,
                };
                io.write_more(&bytes).await?;
                for segment in segments {
                    let (file, good) = match opened.take() {
                        Some(opened) => opened,
                        None => open(parts, &segment).await.map_err(io::Error::other)?,
                    };
                    let end = segment.offset + segment.len;
                    checked_file::send(io, &file, segment.offset..end, good).await?;
                }
            }
        }
        self.answer_room.replace(bytes);
        self.node.counters.bytes_out.add(len);
        self.shared.link.answered(len);
        Ok(written.keep_alive)
    }

    /// The object's bytes are not what was written, or cannot be read.
    async fn send_damaged(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        error: &prism_store::Error,
    ) -> io::Result<bool> {
        let error = store_error(error);
        self.send_error(io, exchange, &error, request.head.path())
            .await
    }

    /// Sends an error, counting those that are ours.
    pub(crate) async fn send_error(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        error: &S3Error,
        resource: &str,
    ) -> io::Result<bool> {
        let head = ResponseHead::new(error.status());
        self.send_error_with(io, exchange, head, error, resource)
            .await
    }

    /// The same, with a head that says more.
    async fn send_error_with(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        head: ResponseHead,
        error: &S3Error,
        resource: &str,
    ) -> io::Result<bool> {
        if error.status() >= 500 && error.code() != Code::NotImplemented {
            self.node.counters.failed.add_one();
            tracing::warn!(%error, resource, "request failed");
        }
        send_error_with(io, exchange, head, error, resource).await
    }
}

/// Has the kernel read what will be asked for once the connection is here.
fn read_ahead(object: &Object, offset: u64, len: u64) {
    if let Body::File(file) = &object.body {
        let len = NonZero::new(len.min(READ_AHEAD_BYTES));
        // It is advice.
        let _ = rustix::fs::fadvise(file.file(), offset, len, rustix::fs::Advice::WillNeed);
    }
}

/// Opens a part's file, and says up to where the segment's bytes are good.
async fn open(parts: &Parts, segment: &Segment) -> Result<(CheckedFile, u64), prism_store::Error> {
    let file = parts.open(segment.index)?;
    let good = checked_file::check(&file, segment.offset, segment.offset + segment.len).await?;
    Ok((file, good))
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
fn described(object: &Object) -> io::Result<&Headers> {
    let made = object.derived.get_or_make(|| describe(object));
    match made {
        Some(Ok(headers)) => Ok(headers),
        Some(Err(error)) => Err(error.kind().into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn describe(object: &Object) -> io::Result<Headers> {
    let (mut head, meta) = (ResponseHead::new(200), &object.meta);
    let head = &mut head;
    versions::set_id(head, object.version)?;
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
    for (name, value) in meta.headers.iter().filter(|(name, _)| !is_hidden(name)) {
        set(head, name, value)?;
    }
    for (name, value) in &meta.user {
        let name = format!("x-amz-meta-{name}");
        set(head, &name, told(&name, value).as_ref())?;
    }
    Ok(std::mem::take(head.headers_mut()))
}

/// One part of an object, as a GET or HEAD asks for it.
struct PartOf {
    /// Where it is; `None` if it has no bytes.
    range: Option<RangeSpec>,
    /// How many parts there are; `None` if the object came in one piece.
    of: Option<usize>,
    checksum: Option<(Algorithm, String)>,
}

/// The part of this number. An object that came in one piece is its own part 1.
fn part_of(object: &Object, number: u16) -> Result<PartOf, S3Error> {
    let spec = |range: std::ops::Range<u64>| {
        range
            .end
            .checked_sub(1)
            .filter(|_| !range.is_empty())
            .map(|last| RangeSpec::From {
                first: range.start,
                last: Some(last),
            })
    };
    let missing = || S3Error::from(Code::InvalidPartNumber);
    let Body::Parts(parts) = &object.body else {
        return match number {
            1 => Ok(PartOf {
                range: spec(0..object.len),
                of: None,
                checksum: meta::part_checksum(&object.meta.headers),
            }),
            _ => Err(missing()),
        };
    };
    let index = parts.iter().position(|(found, ..)| found == number);
    let index = index.ok_or_else(missing)?;
    let headers = parts.iter().nth(index).map(|(.., headers)| headers);
    Ok(PartOf {
        range: spec(parts.range_of(index).ok_or_else(missing)?),
        of: Some(parts.count()),
        checksum: headers.and_then(meta::part_checksum),
    })
}

pub(crate) fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}
