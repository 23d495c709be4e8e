//! Uploads in parts, in this node's store: begun, listed, completed and aborted. `put.rs` and
//! `copy.rs` receive the parts.

use prism_replicas::delete::conditions_error;
use prism_replicas::meta::{
    self, checksum_wanted, part_checksum, set_checksum, stored_meta, want_checksum,
    without_checksum_wanted,
};
use prism_replicas::{Room, StoreResult, now_ms, store_error};
use prism_s3::integrity::etag_of_parts;
use prism_s3::op::{CompleteUpload, CreateUpload, ListParts, MAX_PARTS, MIN_PART_BYTES};
use prism_s3::xml::{self, CompletedPart, PartEntry, PartsPage};
use prism_s3::{Algorithm, ChecksumType, Code, Expected, ObjectRef, S3Error};
use prism_service::Exchange;
use prism_store::{
    Body, Error, Object, Part, PutWriter, Store, Upload, UploadId, UploadName, VersionId,
};

use crate::answer::{Answer, Failure};
use crate::bodies::store_condition;
use crate::objects::Objects;
use crate::request::{Call, Request};

/// The checksum of an object, and its type.
type WholeChecksum = (Algorithm, String, ChecksumType);

/// The object that an upload becomes.
struct Completed {
    etag: String,
    checksum: Option<WholeChecksum>,
}

/// The upload that a client names. An impossible name is that of no upload.
fn named_upload<'a>(object: &'a ObjectRef, upload: &str) -> Result<UploadName<'a>, S3Error> {
    let id = UploadId::parse(upload).ok_or(Code::NoSuchUpload)?;
    Ok(UploadName {
        bucket: object.bucket.as_str(),
        key: object.key.as_str(),
        id,
    })
}

/// Begins an upload. Blocks on disk.
fn create(store: &Store, object: &ObjectRef, create: &CreateUpload) -> Result<Answer, S3Error> {
    let ObjectRef { bucket, key } = object;
    let mut meta = stored_meta(&create.headers, &create.tags, None);
    meta.created_ms = now_ms();
    if let Some((algorithm, kind)) = create.checksum {
        want_checksum(&mut meta, algorithm, kind);
    }
    let id = store.uploads().create(bucket.as_str(), key.as_str(), meta);
    let id = id.in_s3()?.to_string();
    let answer = Answer::xml(xml::initiate_result(object, &id));
    match create.checksum {
        Some((algorithm, kind)) => answer
            .with("x-amz-checksum-algorithm", algorithm.name())?
            .with("x-amz-checksum-type", kind.as_str()),
        None => Ok(answer),
    }
}

/// Lists an upload's parts. Blocks on disk.
pub(crate) fn list(store: &Store, object: &ObjectRef, list: &ListParts) -> Result<Answer, S3Error> {
    let name = named_upload(object, &list.upload)?;
    let upload = store.uploads().get(name).in_s3()?;
    let (parts, more) = store.uploads().parts(name, list.after, list.max).in_s3()?;
    let page = PartsPage {
        parts: parts.iter().map(entry).collect(),
        truncated: more && list.max > 0,
    };
    let checksum = checksum_wanted(&upload.meta);
    Ok(Answer::xml(xml::list_parts(object, list, checksum, &page)))
}

/// Aborts an upload. Blocks on disk.
pub(crate) fn abort(store: &Store, object: &ObjectRef, upload: &str) -> Result<Answer, S3Error> {
    let name = named_upload(object, upload)?;
    store.uploads().abort(name).in_s3()?;
    Ok(Answer::empty(204))
}

fn entry(part: &Part) -> PartEntry {
    PartEntry {
        number: part.number,
        created_ms: part.meta.created_ms,
        etag: part.meta.etag.clone(),
        size: part.len,
        checksum: part_checksum(&part.meta.headers),
    }
}

impl Objects {
    /// Begins an upload, if the quota of the bucket allows one more object.
    pub(crate) async fn create_upload(
        &self,
        object: &ObjectRef,
        wanted: &CreateUpload,
    ) -> Result<Answer, Failure> {
        drop(self.room_for_object(object, 0).await?);
        self.on_store(object, wanted, create).await
    }

    /// Makes an object of an upload's parts.
    pub(crate) async fn complete_upload(
        &self,
        call: &mut Call<'_, impl Exchange>,
        object: &ObjectRef,
        complete: &CompleteUpload,
    ) -> Result<Answer, Failure> {
        let (xml, _memory) = self.read_document(call).await?;
        let room = self.room_for_completion(object, &complete.upload).await?;
        let location = self.location(call.request);
        let object = object.clone();
        let complete = complete.clone();
        let completing = self.node.on_store(move |_, store| {
            let (completed, version) =
                complete_here(store, &object, &complete, &xml, room.as_ref())?;
            let etag = &completed.etag;
            let checksum = completed.checksum.as_ref();
            let document = xml::complete_result(&location, &object, etag, checksum);
            Answer::xml(document).with_version(version)
        });
        Ok(completing.await?)
    }

    /// Begins a part of `length` bytes, if that is known. Adds the checksum that the upload
    /// wants, or the default one, to `expected`.
    pub(crate) async fn begin_part(
        &self,
        object: &ObjectRef,
        upload: &str,
        number: u16,
        length: Option<u64>,
        expected: Expected,
    ) -> Result<(PutWriter, Expected), S3Error> {
        let object = object.clone();
        let upload = upload.to_owned();
        let begun = self.node.on_store(move |_, store| {
            let name = named_upload(&object, &upload)?;
            let upload = store.uploads().get(name).in_s3()?;
            let expected = match checksum_wanted(&upload.meta) {
                Some((algorithm, _)) => expected.want(algorithm)?,
                None => expected.or_computed(Algorithm::DEFAULT),
            };
            let writer = store.uploads().begin_part(name, number, length);
            Ok((writer.in_s3()?, expected))
        });
        begun.await
    }

    /// The URL of the object that the upload makes.
    fn location(&self, request: &Request<'_>) -> String {
        let host = request.head.host().unwrap_or_default();
        let scheme = match self.node.core.config.now().tls_address() {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{host}{}", request.head.path())
    }
}

fn complete_here(
    store: &Store,
    object: &ObjectRef,
    complete: &CompleteUpload,
    xml: &[u8],
    room: Option<&Room>,
) -> Result<(Completed, Option<VersionId>), S3Error> {
    let wanted = xml::parse_complete(xml)?;
    let name = named_upload(object, &complete.upload)?;
    let upload = match store.uploads().get(name) {
        Ok(upload) => upload,
        Err(Error::NoSuchUpload) => return completed_before(store, name, &wanted, complete),
        Err(error) => return Err(store_error(&error)),
    };
    let (parts, _) = store.uploads().parts(name, 0, MAX_PARTS.into()).in_s3()?;
    let parts = chosen(parts, &wanted)?;
    check_sizes(&parts, complete)?;
    let completed = describe(&upload, &parts)?;
    check_checksum(completed.checksum.as_ref(), complete)?;
    let mut meta = without_checksum_wanted(upload.meta);
    meta.etag.clone_from(&completed.etag);
    meta.created_ms = now_ms();
    if let Some(sum) = &completed.checksum {
        set_checksum(&mut meta, sum);
    }
    let versions: Vec<_> = parts
        .iter()
        .map(|part| (part.number, part.version))
        .collect();
    let condition = store_condition(&complete.conditions);
    let quota = room.map(Room::check_at_commit);
    let done = store
        .uploads()
        .complete(name, &versions, meta, condition, quota);
    match done {
        Ok(committed) => Ok((completed, committed.version)),
        // Another request was faster, perhaps this client's first try.
        Err(Error::NoSuchUpload) => completed_before(store, name, &wanted, complete),
        Err(error) => Err(conditions_error(&complete.conditions, &error)),
    }
}

/// The result of an earlier completion: a client that got no answer asks again for the same parts.
fn completed_before(
    store: &Store,
    name: UploadName<'_>,
    wanted: &[CompletedPart],
    complete: &CompleteUpload,
) -> Result<(Completed, Option<VersionId>), S3Error> {
    match store.get(name.bucket, name.key).in_s3()? {
        Some(object) if matches!(&object.body, Body::Parts(p) if p.upload() == name.id) => {
            if !is_made_of(&object, wanted) {
                return Err(Code::InvalidPart.into());
            }
            let completed = Completed {
                etag: object.meta.etag.clone(),
                checksum: meta::checksum(&object.meta.headers),
            };
            check_checksum(completed.checksum.as_ref(), complete)?;
            Ok((completed, object.version))
        }
        _ => Err(Code::NoSuchUpload.into()),
    }
}

/// Whether an object was made of these parts, by their numbers and ETags.
fn is_made_of(object: &Object, wanted: &[CompletedPart]) -> bool {
    let Body::Parts(parts) = &object.body else {
        return false;
    };
    let numbers = wanted.iter().map(|part| part.number);
    let etag = etag_of_parts(wanted.iter().map(|part| part.etag.as_str()));
    numbers.eq(parts.iter().map(|(number, ..)| number)) && etag.as_ref() == Some(&object.meta.etag)
}

/// The parts that the client names, if their ETags and checksums are the ones that it expects.
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
fn describe(upload: &Upload, parts: &[Part]) -> Result<Completed, S3Error> {
    let etag = etag_of_parts(parts.iter().map(|part| part.meta.etag.as_str()));
    Ok(Completed {
        etag: etag.ok_or(Code::InternalError)?,
        checksum: whole_checksum(upload, parts)?,
    })
}

/// The checksum of the whole, computed from those of its parts. An upload that began without an
/// algorithm has the default one, or none if the client gave another with a part.
fn whole_checksum(upload: &Upload, parts: &[Part]) -> Result<Option<WholeChecksum>, S3Error> {
    let wanted = checksum_wanted(&upload.meta);
    let (algorithm, kind) = wanted.unwrap_or((Algorithm::DEFAULT, ChecksumType::FullObject));
    let sums: Option<Vec<(String, u64)>> = parts
        .iter()
        .map(|part| {
            let (of, sum) = part_checksum(&part.meta.headers)?;
            (of == algorithm).then_some((sum, part.len))
        })
        .collect();
    let whole = sums.and_then(|sums| {
        let sums = sums.iter().map(|(sum, len)| (sum.as_str(), *len));
        algorithm.of_parts(kind, sums)
    });
    match whole {
        Some(whole) => Ok(Some((algorithm, whole, kind))),
        None if wanted.is_none() => Ok(None),
        None => Err(Code::InternalError.into()),
    }
}

/// Compares the object's checksum with the one that the client announces, as far as it does.
fn check_checksum(
    checksum: Option<&WholeChecksum>,
    complete: &CompleteUpload,
) -> Result<(), S3Error> {
    let invalid = |message| Err(Code::InvalidRequest.with_message(message));
    if let (Some((_, _, kind)), Some(announced)) = (checksum, complete.checksum_type)
        && *kind != announced
    {
        let kind = kind.as_str();
        return invalid(format!(
            "The checksum type of this upload is {kind}. Name the same one."
        ));
    }
    let Some((algorithm, announced)) = &complete.checksum else {
        return Ok(());
    };
    let name = algorithm.name();
    let value = match checksum {
        Some((of, value, _)) if of == algorithm => value,
        _ => {
            return invalid(format!(
                "The upload was not begun with the checksum algorithm {name}."
            ));
        }
    };
    // Some clients omit the number of parts.
    let (bare, _) = value.split_once('-').unwrap_or((value, ""));
    if announced == value || announced == bare {
        Ok(())
    } else {
        let message = format!("The {name} of the object is {value}, not the announced one.");
        Err(Code::BadDigest.with_message(message))
    }
}
