//! GET and HEAD of objects, from this node's store.

use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;

use prism_common::input::SourceFault;
use prism_http::{Headers, Method, ResponseHead};
use prism_proto::relay::HAND_OVER;
use prism_replicas::delete::named;
use prism_replicas::{StoreResult, checked_file, meta, store_error};
use prism_s3::integrity::TYPE_HEADER;
use prism_s3::metadata::{DEFAULT_CONTENT_TYPE, told};
use prism_s3::op::ReadObject;
use prism_s3::range::{ByteRange, Unsatisfiable};
use prism_s3::time::{from_ms, http_date};
use prism_s3::{Algorithm, Code, Conditions, ObjectRef, Outcome, RangeSpec, S3Error, quoted};
use prism_service::{Exchange, set};
use prism_store::{Body, CheckedFile, Object, Parts, Removed, Segment, Store};

use crate::answer::{Answer, Failure, internal, request_id};
use crate::objects::Objects;
use crate::request::{Call, Request};
use crate::versions;

/// Bytes of a file that the kernel reads while the connection moves to this node.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// The bytes of an object that a GET or HEAD is about.
struct Selection {
    /// The part that the client names.
    part: Option<PartOf>,
    /// The range that the answer names.
    range: Option<ByteRange>,
    /// Offsets in the object.
    bytes: Range<u64>,
}

impl Objects {
    /// Answers a GET or HEAD. The lookup runs on the worker's own thread, because it is served
    /// from memory or by one read of the tree.
    pub(crate) async fn get_object(
        &self,
        call: &mut Call<'_, impl Exchange>,
        store: &Store,
        name: &ObjectRef,
        read: &ReadObject,
    ) -> Result<(), Failure> {
        let bucket = name.bucket.as_str();
        let key = name.key.as_str();
        let found = match named(read.version.as_deref())? {
            None => store.get(bucket, key),
            version => store
                .get_version(bucket, key, version)
                .map(|found| found.map(Arc::new)),
        };
        // The cluster may have gone on without this node before the lookup.
        self.if_still(call.request, Ok(()))?;
        let object = match found {
            Ok(Some(object)) => object,
            missing => return Err(missing_object(store, name, read, missing.map(drop))?),
        };
        let selection = select(&object, read)?;
        let len = selection.bytes.end - selection.bytes.start;
        let max_bytes = call.request.max_answer_bytes;
        if max_bytes.is_some_and(|max| len > max.into()) {
            read_ahead(&object, selection.bytes.start, len);
            let refusal = Answer::empty(HAND_OVER);
            return Ok(refusal.send(call.exchange).await?);
        }
        let (head, described) = answer_head(call, &object, &selection, read)?;
        self.send_object(call, head, described, &object, selection.bytes)
            .await
    }

    /// Sends a head and bytes of an object. Damaged bytes are answered by an error if they are
    /// found before the head is sent, and otherwise break the answer off.
    async fn send_object(
        &self,
        call: &mut Call<'_, impl Exchange>,
        mut head: ResponseHead,
        described: Option<&Headers>,
        object: &Object,
        range: Range<u64>,
    ) -> Result<(), Failure> {
        let exchange = &mut *call.exchange;
        let len = range.end - range.start;
        let has_body = len > 0 && *call.request.head.method() != Method::HEAD;
        set(&mut head, "x-amz-request-id", request_id(exchange))?;
        set(&mut head, "Server", "Prism")?;
        // Damage that is found before the head is sent is an error.
        let first = match &object.body {
            Body::File(file) if has_body => {
                let good = checked_file::check(file, range.start, range.end);
                Some((file.clone(), good.await.in_s3()?))
            }
            Body::Parts(parts) if has_body => match parts.segments(range.start, len).first() {
                Some(segment) => Some(open(parts, segment).await.in_s3()?),
                None => None,
            },
            Body::Inline(_) | Body::File(_) | Body::Parts(_) => None,
        };
        exchange.begin(&head, described, Some(len));
        if !has_body {
            return Ok(exchange.end(None).await?);
        }
        match &object.body {
            Body::Inline(data) => {
                let start = usize::try_from(range.start).unwrap_or(usize::MAX);
                let end = usize::try_from(range.end).unwrap_or(usize::MAX);
                let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
                exchange.put(data.get(start..end).ok_or_else(ended)?);
            }
            Body::File(file) => {
                let good = first.map_or(range.start, |(_, good)| good);
                checked_file::send(exchange, file, range, good).await?;
            }
            Body::Parts(parts) => {
                let mut first = first;
                for segment in parts.segments(range.start, len) {
                    let (file, good) = match first.take() {
                        Some(opened) => opened,
                        None => {
                            let opened = open(parts, &segment).await;
                            opened.map_err(|error| SourceFault::error(io::Error::other(error)))?
                        }
                    };
                    let end = segment.offset + segment.len;
                    checked_file::send(exchange, &file, segment.offset..end, good).await?;
                }
            }
        }
        exchange.end(None).await?;
        self.node.core.counters.bytes_out.add(len);
        self.shared.link.answered(len);
        Ok(())
    }
}

/// The head of a 200 or 206, and the object's fields that it does not have itself.
fn answer_head<'o>(
    call: &Call<'_, impl Exchange>,
    object: &'o Object,
    selection: &Selection,
    read: &ReadObject,
) -> io::Result<(ResponseHead, Option<&'o Headers>)> {
    let status = if selection.range.is_some() { 206 } else { 200 };
    let mut head = ResponseHead::new(status);
    let described = described(object)?;
    // Fields that the client replaces have to be copied.
    let is_alone = read.overrides.is_empty() && !call.exchange.has_fields();
    if !is_alone {
        *head.headers_mut() = described.clone();
    }
    describe_more(&mut head, call.request, object, selection)?;
    if let Some(range) = selection.range {
        set(&mut head, "Content-Range", range.content_range())?;
    }
    for (name, value) in &read.overrides {
        set(&mut head, name, value)?;
    }
    Ok((head, is_alone.then_some(described)))
}

/// Sets the fields that only some answers about an object have.
fn describe_more(
    head: &mut ResponseHead,
    request: &Request<'_>,
    object: &Object,
    selection: &Selection,
) -> io::Result<()> {
    let tags = meta::tags(&object.meta);
    if !tags.is_empty() {
        set(head, "x-amz-tagging-count", tags.len().to_string())?;
        if request.is_for_node {
            set(head, meta::TAGS, tags.encode())?;
        }
    }
    let part = selection.part.as_ref();
    if let Some(count) = part.and_then(|part| part.count) {
        set(head, "x-amz-mp-parts-count", count.to_string())?;
    }
    let mode = request.head.headers().get_str("x-amz-checksum-mode");
    if !mode.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled")) {
        return Ok(());
    }
    match part {
        // A node that copies a range needs to know the algorithm too.
        None if selection.range.is_none() || request.is_for_node => {
            if let Some((algorithm, value, kind)) = meta::checksum(&object.meta.headers) {
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

/// The failure of a GET or HEAD that finds no object. It names the delete marker if there is one.
fn missing_object(
    store: &Store,
    object: &ObjectRef,
    read: &ReadObject,
    found: Result<(), prism_store::Error>,
) -> io::Result<Failure> {
    let (error, marker) = match found {
        Err(prism_store::Error::IsDeleteMarker) => (
            Code::MethodNotAllowed.into(),
            named(read.version.as_deref()).ok(),
        ),
        Err(error) => (store_error(&error), None),
        Ok(()) => match store.delete_marker(object.bucket.as_str(), object.key.as_str()) {
            Ok(marker) => (Code::NoSuchKey.into(), Some(marker)),
            Err(error) => (store_error(&error), None),
        },
    };
    let mut head = ResponseHead::new(error.status());
    if let Some(version) = marker.flatten() {
        let is_marker = true;
        versions::set_removed(&mut head, Some(Removed { version, is_marker }))?;
    }
    if error.code() == Code::MethodNotAllowed {
        set(&mut head, "Allow", "DELETE")?;
    }
    let fields = std::mem::take(head.headers_mut());
    Ok(Failure::Refused { error, fields })
}

/// The bytes that a request reads, if its conditions hold.
fn select(object: &Object, read: &ReadObject) -> Result<Selection, Failure> {
    let modified = from_ms(object.meta.created_ms);
    // Only conditions need the ETag.
    let etag = if read.conditions == Conditions::default() {
        String::new()
    } else {
        quoted(&object.meta.etag)
    };
    match read.conditions.for_read(&etag, modified) {
        Outcome::Proceed => {}
        Outcome::NotModified => {
            return Err(Failure::Refused {
                error: Code::NotModified.into(),
                fields: described(object)?.clone(),
            });
        }
        Outcome::Failed => return Err(Code::PreconditionFailed.into()),
    }
    let part = read
        .part
        .map(|number| part_of(object, number))
        .transpose()?;
    let wanted = match &part {
        Some(part) => part.range,
        None => read
            .range
            .filter(|_| read.conditions.range_applies(&etag, modified)),
    };
    let range = match wanted {
        Some(range) => range.resolve(object.len).map_err(out_of_range)?,
        None => None,
    };
    let bytes = match (range, &part) {
        (Some(range), _) => range.offset()..range.offset() + range.len(),
        // No range stands for a part without bytes.
        (None, Some(_)) => 0..0,
        (None, None) => 0..object.len,
    };
    Ok(Selection { part, range, bytes })
}

/// Has the kernel read the first bytes that are asked for when the connection is here.
fn read_ahead(object: &Object, offset: u64, len: u64) {
    if let Body::File(file) = &object.body {
        let len = NonZero::new(len.min(READ_AHEAD_BYTES));
        // The advice may be ignored.
        let _ = rustix::fs::fadvise(file.file(), offset, len, rustix::fs::Advice::WillNeed);
    }
}

/// Opens a part's file, and checks the segment's first block. Returns the end of the bytes that
/// are good.
async fn open(parts: &Parts, segment: &Segment) -> Result<(CheckedFile, u64), prism_store::Error> {
    let file = parts.open(segment.index)?;
    let good = checked_file::check(&file, segment.offset, segment.offset + segment.len).await?;
    Ok((file, good))
}

fn out_of_range(range: Unsatisfiable) -> Failure {
    let error = range.error();
    let mut fields = Headers::new();
    match fields.append("Content-Range", range.content_range()) {
        Ok(()) => Failure::Refused { error, fields },
        Err(error) => internal(error).into(),
    }
}

/// The headers of every answer about an object, which are made once.
fn described(object: &Object) -> io::Result<&Headers> {
    let made = object.derived.get_or_make(|| describe(object));
    match made {
        Some(Ok(headers)) => Ok(headers),
        Some(Err(error)) => Err(error.kind().into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn describe(object: &Object) -> io::Result<Headers> {
    let head = &mut ResponseHead::new(200);
    versions::set_id(head, object.version)?;
    set(head, "ETag", quoted(&object.meta.etag))?;
    set(
        head,
        "Last-Modified",
        http_date(from_ms(object.meta.created_ms)),
    )?;
    set(head, "Accept-Ranges", "bytes")?;
    set(head, "Content-Type", DEFAULT_CONTENT_TYPE)?;
    let shown = object.meta.headers.iter();
    for (name, value) in shown.filter(|(name, _)| !meta::is_hidden(name)) {
        set(head, name, value)?;
    }
    for (name, value) in &object.meta.user {
        let name = format!("x-amz-meta-{name}");
        set(head, &name, told(&name, value).as_ref())?;
    }
    Ok(std::mem::take(head.headers_mut()))
}

/// The part of an object that a GET or HEAD names.
struct PartOf {
    /// Its bytes; `None` if it has none.
    range: Option<RangeSpec>,
    /// The number of all parts; `None` if the object came in one piece.
    count: Option<usize>,
    checksum: Option<(Algorithm, String)>,
}

/// The part with this number. An object that came in one piece is its own part 1.
fn part_of(object: &Object, number: u16) -> Result<PartOf, S3Error> {
    let spec = |range: Range<u64>| {
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
                count: None,
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
        count: Some(parts.count()),
        checksum: headers.and_then(meta::part_checksum),
    })
}
