//! Uploads in parts, in this node's store: begun, looked at, completed and
//! aborted. Parts come in by `put` and `copy`.

use prism_replicas::meta::stored_meta;
use std::io;

use prism_http::{Exchange, ResponseHead};
use prism_replicas::delete::{conditions_error, holds};
use prism_replicas::meta::{
    checksum_wanted, part_checksum, set_checksum, want_checksum, without_checksum_wanted,
};
use prism_replicas::{Node, blocking, joined, meta, now_ms, store_error};
use prism_s3::integrity::etag_of_parts;
use prism_s3::op::{CompleteUpload, CreateUpload, ListParts, MAX_PARTS, MIN_PART_BYTES};
use prism_s3::xml::{self, Completed, CompletedPart, PartEntry, PartsPage};
use prism_s3::{Algorithm, BucketName, ChecksumType, Code, ObjectKey, S3Error};
use prism_service::{Io, set};
use prism_store::{
    Body, Error, Object, ObjectMeta, Part, Store, Upload, UploadId, UploadName, VersionId,
};

use crate::answer::{Answer, from_ms, send_xml};
use crate::documents::ReadDocument;
use crate::get::quoted;
use crate::objects::{Objects, Request};
use crate::versions;

/// Longest list of parts: 10,000 with a number, an ETag, a SHA-256 and their
/// elements take 300 bytes each; some clients indent.
const MAX_LIST_BYTES: u64 = 6 << 20;

/// The upload that a client names; one that cannot be does not exist.
pub(crate) fn named_upload<'a>(
    bucket: &'a BucketName,
    key: &'a ObjectKey,
    upload: &str,
) -> Result<UploadName<'a>, S3Error> {
    let id = UploadId::parse(upload).ok_or(Code::NoSuchUpload)?;
    Ok(UploadName {
        bucket: bucket.as_str(),
        key: key.as_str(),
        id,
    })
}

/// Begins an upload. Blocks.
pub(crate) fn create(
    store: &Store,
    (bucket, key): (&BucketName, &ObjectKey),
    create: &CreateUpload,
) -> Result<Answer, S3Error> {
    let mut meta = ObjectMeta {
        created_ms: now_ms(),
        ..stored_meta(&create.headers, &create.tags, None)
    };
    let mut head = ResponseHead::new(200);
    if let Some((algorithm, kind)) = create.checksum {
        want_checksum(&mut meta, algorithm, kind);
        set(&mut head, "x-amz-checksum-algorithm", algorithm.name()).map_err(internal)?;
        set(&mut head, "x-amz-checksum-type", kind.as_str()).map_err(internal)?;
    }
    let id = store.uploads().create(bucket.as_str(), key.as_str(), meta);
    let id = id.map_err(|e| store_error(&e))?;
    Ok((head, xml::initiate_result(bucket, key, &id.to_string())))
}

/// Lists an upload's parts. Blocks.
pub(crate) fn list(
    store: &Store,
    (bucket, key): (&BucketName, &ObjectKey),
    list: &ListParts,
) -> Result<Answer, S3Error> {
    let name = named_upload(bucket, key, &list.upload)?;
    let upload = store.uploads().get(name).map_err(|e| store_error(&e))?;
    let found = store.uploads().parts(name, list.after, list.max);
    let (parts, more) = found.map_err(|e| store_error(&e))?;
    let page = PartsPage {
        bucket,
        key,
        request: list,
        checksum: checksum_wanted(&upload.meta),
        parts: parts.iter().map(entry).collect(),
        truncated: more && list.max > 0,
    };
    Ok((ResponseHead::new(200), page.xml()))
}

fn entry(part: &Part) -> PartEntry {
    PartEntry {
        number: part.number,
        modified: from_ms(part.meta.created_ms),
        etag: quoted(&part.meta.etag),
        size: part.len,
        checksum: part_checksum(&part.meta.headers),
    }
}

/// Ends an upload. Blocks.
pub(crate) fn abort(
    store: &Store,
    (bucket, key): (&BucketName, &ObjectKey),
    upload: &str,
) -> Result<Answer, S3Error> {
    let name = named_upload(bucket, key, upload)?;
    store.uploads().abort(name).map_err(|e| store_error(&e))?;
    Ok((ResponseHead::new(204), Vec::new()))
}

impl Objects {
    /// Makes an object of an upload's parts.
    pub(crate) async fn complete_upload(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        (bucket, key, complete): (&BucketName, &ObjectKey, &CompleteUpload),
    ) -> io::Result<bool> {
        let body = self.read_document(io, request, MAX_LIST_BYTES).await?;
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.is_whole,
            ..*exchange
        };
        let result = match body {
            ReadDocument { bytes: Ok(xml), .. } => {
                let (bucket, key, complete) = (bucket.clone(), key.clone(), complete.clone());
                joined(blocking(&self.node, move |node| {
                    complete_here(node, (&bucket, &key), &complete, &xml)
                }))
                .await
            }
            ReadDocument {
                bytes: Err(error), ..
            } => Err(error),
        };
        match self.if_still(request, result) {
            Ok((completed, version)) => {
                let location = self.location(request);
                let xml = xml::complete_result(&location, bucket, key, &completed);
                let mut head = ResponseHead::new(200);
                versions::set_id(&mut head, version)?;
                send_xml(io, &exchange, head, &xml).await
            }
            Err(error) => {
                let path = request.head.path();
                self.send_error(io, &exchange, &error, path).await
            }
        }
    }

    /// Where the client finds the object that it asked to be made.
    fn location(&self, request: &Request) -> String {
        let host = request.head.host().unwrap_or_default();
        let scheme = match self.node.config.tls_address() {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{host}{}", request.head.path())
    }
}

fn complete_here(
    node: &Node,
    (bucket, key): (&BucketName, &ObjectKey),
    complete: &CompleteUpload,
    xml: &[u8],
) -> Result<(Completed, Option<VersionId>), S3Error> {
    let store = node.store.as_ref().ok_or(Code::InternalError)?;
    let wanted = xml::parse_complete(xml)?;
    let name = named_upload(bucket, key, &complete.upload)?;
    let upload = match store.uploads().get(name) {
        Ok(upload) => upload,
        Err(Error::NoSuchUpload) => return completed_before(store, name, &wanted),
        Err(error) => return Err(store_error(&error)),
    };
    let parts = store.uploads().parts(name, 0, MAX_PARTS.into());
    let parts = chosen(parts.map_err(|e| store_error(&e))?.0, &wanted)?;
    check_sizes(&parts, complete)?;
    let completed = describe(&upload, &parts, complete)?;
    let mut meta = without_checksum_wanted(upload.meta);
    completed.etag.trim_matches('"').clone_into(&mut meta.etag);
    meta.created_ms = now_ms();
    if let Some(sum) = &completed.checksum {
        set_checksum(&mut meta, sum);
    }
    let versions: Vec<_> = parts
        .iter()
        .map(|part| (part.number, part.version))
        .collect();
    let conditions = complete.conditions.clone();
    let condition: Option<prism_store::Condition> = match conditions.is_empty() {
        true => None,
        false => {
            let asked = conditions.clone();
            Some(Box::new(move |current: Option<&ObjectMeta>| {
                holds(&asked, current)
            }))
        }
    };
    match store.uploads().complete(name, &versions, meta, condition) {
        Ok(committed) => Ok((completed, committed.version)),
        // Somebody was faster, perhaps this client's first try.
        Err(Error::NoSuchUpload) => completed_before(store, name, &wanted),
        Err(error) => Err(conditions_error(&conditions, &error)),
    }
}

/// A client that did not hear the first answer asks again, for the same parts.
fn completed_before(
    store: &Store,
    name: UploadName<'_>,
    wanted: &[CompletedPart],
) -> Result<(Completed, Option<VersionId>), S3Error> {
    let object = store.get(name.bucket, name.key);
    let object = object.map_err(|e| store_error(&e))?;
    match object {
        Some(object) if matches!(&object.body, Body::Parts(p) if p.upload() == name.id) => {
            if !is_made_of(&object, wanted) {
                return Err(Code::InvalidPart.into());
            }
            let completed = Completed {
                etag: quoted(&object.meta.etag),
                checksum: meta::checksum(&object.meta),
            };
            Ok((completed, object.version))
        }
        _ => Err(Code::NoSuchUpload.into()),
    }
}

/// Whether an object was made of these parts: its ETag is that of theirs.
fn is_made_of(object: &Object, wanted: &[CompletedPart]) -> bool {
    let Body::Parts(parts) = &object.body else {
        return false;
    };
    let numbers = wanted.iter().map(|part| part.number);
    let etag = etag_of_parts(wanted.iter().map(|part| part.etag.as_str()));
    numbers.eq(parts.iter().map(|(number, ..)| number)) && etag.as_ref() == Some(&object.meta.etag)
}

/// The parts that the client names, if they are what it takes them for.
fn chosen(parts: Vec<Part>, wanted: &[CompletedPart]) -> Result<Vec<Part>, S3Error> {
    let mut there = parts.into_iter();
    let mut chosen = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let part = there.by_ref().find(|part| part.number >= wanted.number);
        let part = part.filter(|part| {
            let sum = part_checksum(&part.meta.headers);
            part.number == wanted.number
                && part.meta.etag == wanted.etag
                && (wanted.checksum.is_none() || sum.is_none() || sum == wanted.checksum)
        });
        chosen.push(part.ok_or(Code::InvalidPart)?);
    }
    Ok(chosen)
}

fn check_sizes(parts: &[Part], complete: &CompleteUpload) -> Result<(), S3Error> {
    let all_but_last = parts.split_last().map_or(&[][..], |(_, before)| before);
    if all_but_last.iter().any(|part| part.len < MIN_PART_BYTES) {
        return Err(Code::EntityTooSmall.into());
    }
    let len: u64 = parts.iter().map(|part| part.len).sum();
    if complete.size.is_some_and(|size| size != len) {
        return Err(
            Code::InvalidRequest.with_message("The parts do not add up to x-amz-mp-object-size.")
        );
    }
    Ok(())
}

/// ETag and checksum of the whole, computed from its parts.
fn describe(
    upload: &Upload,
    parts: &[Part],
    complete: &CompleteUpload,
) -> Result<Completed, S3Error> {
    let etag = etag_of_parts(parts.iter().map(|part| part.meta.etag.as_str()));
    let checksum = match checksum_wanted(&upload.meta) {
        Some(wanted) => Some(whole_checksum(wanted, parts)?),
        None => None,
    };
    let bad = |message| Err(Code::InvalidRequest.with_message(message));
    match (&checksum, complete.checksum_type) {
        (Some((_, _, kind)), Some(claimed)) if *kind != claimed => {
            return bad("The upload was not begun with this checksum type.");
        }
        _ => {}
    }
    match (&checksum, &complete.checksum) {
        (_, None) => {}
        (Some((algorithm, value, _)), Some((claimed, claim))) if algorithm == claimed => {
            // Some clients leave the number of parts away.
            let bare = value
                .split_once('-')
                .map_or(value.as_str(), |(bare, _)| bare);
            if claim != value && claim != bare {
                return Err(Code::BadDigest.into());
            }
        }
        _ => return bad("The upload was not begun with this checksum algorithm."),
    }
    Ok(Completed {
        etag: quoted(&etag.ok_or(Code::InternalError)?),
        checksum,
    })
}

fn whole_checksum(
    (algorithm, kind): (Algorithm, ChecksumType),
    parts: &[Part],
) -> Result<(Algorithm, String, ChecksumType), S3Error> {
    let sums: Vec<(String, u64)> = parts
        .iter()
        .filter_map(|part| Some((part_checksum(&part.meta.headers)?.1, part.len)))
        .collect();
    let given = sums.iter().map(|(sum, len)| (sum.as_str(), *len));
    let whole = match sums.len() == parts.len() {
        true => algorithm.of_parts(kind, given),
        false => None,
    };
    Ok((algorithm, whole.ok_or(Code::InternalError)?, kind))
}

fn internal(_: io::Error) -> S3Error {
    Code::InternalError.into()
}
