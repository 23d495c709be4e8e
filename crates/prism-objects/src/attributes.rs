//! GetObjectAttributes and GetObjectAcl, from this node's store.

use prism_replicas::delete::named;
use prism_replicas::{StoreResult, meta};
use prism_s3::op::Attributes;
use prism_s3::time::{from_ms, http_date};
use prism_s3::xml::{self, PartEntry, PartsPage};
use prism_s3::{Code, ObjectRef, S3Error};
use prism_store::{Body, Object, Store};

use crate::answer::Answer;

/// Answers with an object's access control list, which is that of every object. Blocks on disk.
pub(crate) fn acl(
    store: &Store,
    object: &ObjectRef,
    version: &Option<String>,
) -> Result<Answer, S3Error> {
    let version = named(version.as_deref())?;
    let found = store.head_version(object.bucket.as_str(), object.key.as_str(), version);
    let found = found.in_s3()?.ok_or(Code::NoSuchKey)?;
    Answer::xml(xml::acl()).with_version(found.version)
}

/// Answers with the attributes that the client wants. Blocks on disk.
pub(crate) fn read(
    store: &Store,
    object: &ObjectRef,
    wanted: &Attributes,
) -> Result<Answer, S3Error> {
    let version = named(wanted.version.as_deref())?;
    let found = store.get_version(object.bucket.as_str(), object.key.as_str(), version);
    let found = found.in_s3()?.ok_or(Code::NoSuchKey)?;
    let meta = &found.meta;
    let parts = wanted.parts.then(|| parts(&found, wanted)).flatten();
    let checksum = meta::checksum(&meta.headers);
    let checksum = checksum.as_ref();
    let parts = parts.as_ref();
    Answer::xml(xml::attributes(
        wanted, &meta.etag, found.len, checksum, parts,
    ))
    .with("Last-Modified", http_date(from_ms(meta.created_ms)))?
    .with_version(found.version)
}

/// The number of an object's parts, and a page of them. Parts without checksums are not listed.
fn parts(object: &Object, wanted: &Attributes) -> Option<(usize, PartsPage)> {
    let Body::Parts(parts) = &object.body else {
        return None;
    };
    let behind = parts.iter().filter(|(number, ..)| *number > wanted.after);
    let with_checksum = behind.map_while(|(number, size, headers)| {
        Some(PartEntry {
            number,
            created_ms: object.meta.created_ms,
            etag: String::new(),
            size,
            checksum: Some(meta::part_checksum(headers)?),
        })
    });
    // One part more than wanted shows that there are more.
    let mut page: Vec<_> = with_checksum.take(wanted.max_parts + 1).collect();
    let truncated = page.len() > wanted.max_parts;
    page.truncate(wanted.max_parts);
    let page = PartsPage {
        parts: page,
        truncated,
    };
    Some((parts.count(), page))
}
