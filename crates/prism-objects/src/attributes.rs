//! GetObjectAttributes, from this node's store.

use prism_replicas::delete::named;
use prism_replicas::{StoreResult, meta};
use prism_s3::op::Attributes;
use prism_s3::time::http_date;
use prism_s3::xml::{self, PartEntry, PartsOfObject};
use prism_s3::{Code, ObjectRef, S3Error};
use prism_store::{Body, Object, Store};

use crate::answer::{Answer, from_ms};

/// Answers with the attributes that the client wants. Blocks on disk.
pub(crate) fn read(
    store: &Store,
    object: &ObjectRef,
    wanted: &Attributes,
) -> Result<Answer, S3Error> {
    let version = named(wanted.version.as_deref())?;
    let found = store.get_version(object.bucket.as_str(), object.key.as_str(), version);
    let found = found.in_s3()?.ok_or(Code::NoSuchKey)?;
    let document = xml::Attributes {
        etag: wanted.etag.then(|| found.meta.etag.clone()),
        checksum: meta::checksum(&found.meta).filter(|_| wanted.checksum),
        parts: wanted
            .parts
            .then(|| page_of_parts(&found, wanted))
            .flatten(),
        storage_class: wanted.storage_class,
        size: wanted.size.then_some(found.len),
    };
    Answer::xml(document.xml())
        .with("Last-Modified", http_date(from_ms(found.meta.created_ms)))?
        .with_version(found.version)
}

/// The page of an object's parts. Parts without checksums are not listed.
fn page_of_parts(object: &Object, wanted: &Attributes) -> Option<PartsOfObject> {
    let Body::Parts(parts) = &object.body else {
        return None;
    };
    let mut page = Vec::new();
    for (number, size, headers) in parts.iter().filter(|(number, ..)| *number > wanted.after) {
        // The page gets one part more than wanted if there are more.
        let Some(checksum) =
            meta::part_checksum(headers).filter(|_| page.len() <= wanted.max_parts)
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
    let truncated = page.len() > wanted.max_parts;
    page.truncate(wanted.max_parts);
    Some(PartsOfObject {
        count: parts.count(),
        after: wanted.after,
        max: wanted.max_parts,
        truncated,
        page,
    })
}
