//! Answers about uploads in parts, and about the parts of objects.

use super::write::{Document, document};
use crate::ObjectRef;
use crate::checksum::{Algorithm, ChecksumType};
use crate::op::{Attributes, ListParts};
use crate::query::name;

/// A checksum as in headers.
type Checksum = (Algorithm, String);
/// The checksum of an object, with its type.
type WholeChecksum = (Algorithm, String, ChecksumType);

/// `InitiateMultipartUploadResult`.
pub fn initiate_result(object: &ObjectRef, upload: &str) -> Vec<u8> {
    document("InitiateMultipartUploadResult", |doc| {
        doc.text("Bucket", object.bucket.as_str());
        doc.text("Key", object.key.as_str());
        doc.text("UploadId", upload);
    })
}

/// `CompleteMultipartUploadResult`. The ETag has no quotes.
pub fn complete_result(
    location: &str,
    object: &ObjectRef,
    etag: &str,
    checksum: Option<&WholeChecksum>,
) -> Vec<u8> {
    document("CompleteMultipartUploadResult", |doc| {
        doc.text("Location", location);
        doc.text("Bucket", object.bucket.as_str());
        doc.text("Key", object.key.as_str());
        doc.etag(etag);
        write_whole_checksum(doc, checksum);
    })
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartEntry {
    /// Its number.
    pub number: u16,
    /// When it was written, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Bytes.
    pub size: u64,
    /// Its checksum.
    pub checksum: Option<Checksum>,
}

/// A page of the parts of an upload or object, by number.
#[derive(Debug)]
pub struct PartsPage {
    /// The parts.
    pub parts: Vec<PartEntry>,
    /// Whether there are more.
    pub truncated: bool,
}

/// `ListPartsResult`. `checksum`: the one that the upload's parts have.
pub fn list_parts(
    object: &ObjectRef,
    request: &ListParts,
    checksum: Option<(Algorithm, ChecksumType)>,
    page: &PartsPage,
) -> Vec<u8> {
    document("ListPartsResult", |doc| {
        doc.text("Bucket", object.bucket.as_str());
        doc.text("Key", &name(object.key.as_str(), request.url_encoded));
        doc.optional("EncodingType", request.url_encoded.then_some("url"));
        doc.text("UploadId", &request.upload);
        doc.owner("Initiator");
        doc.owner("Owner");
        doc.text("StorageClass", "STANDARD");
        page.write_position(doc, request.after, request.max);
        if let Some((algorithm, kind)) = checksum {
            doc.text("ChecksumAlgorithm", algorithm.name());
            doc.text("ChecksumType", kind.as_str());
        }
        for part in &page.parts {
            doc.element("Part", |doc| {
                doc.value("PartNumber", part.number);
                doc.time("LastModified", part.created_ms);
                doc.etag(&part.etag);
                doc.value("Size", part.size);
                write_checksum(doc, part.checksum.as_ref());
            });
        }
    })
}

/// `GetObjectAttributesResponse`: each attribute that was asked for and exists. `parts`, if
/// wanted: the number of all parts of an object that was uploaded in parts, and a page of those
/// that have checksums, as in S3.
pub fn attributes(
    wanted: &Attributes,
    etag: &str,
    size: u64,
    checksum: Option<&WholeChecksum>,
    parts: Option<&(usize, PartsPage)>,
) -> Vec<u8> {
    document("GetObjectAttributesResponse", |doc| {
        // S3 writes no quotes here.
        doc.optional("ETag", wanted.etag.then_some(etag));
        if wanted.checksum && checksum.is_some() {
            doc.element("Checksum", |doc| write_whole_checksum(doc, checksum));
        }
        if let Some((count, page)) = parts {
            doc.element("ObjectParts", |doc| {
                doc.value("PartsCount", count);
                if !page.parts.is_empty() {
                    page.write_position(doc, wanted.after, wanted.max_parts);
                }
                for part in &page.parts {
                    doc.element("Part", |doc| {
                        doc.value("PartNumber", part.number);
                        doc.value("Size", part.size);
                        write_checksum(doc, part.checksum.as_ref());
                    });
                }
            });
        }
        doc.optional("StorageClass", wanted.storage_class.then_some("STANDARD"));
        if wanted.size {
            doc.value("ObjectSize", size);
        }
    })
}

impl PartsPage {
    fn write_position(&self, doc: &mut Document, after: u16, max: usize) {
        doc.value("PartNumberMarker", after);
        let last = self.parts.last().map_or(0, |part| part.number);
        doc.value("NextPartNumberMarker", last);
        doc.value("MaxParts", max);
        doc.value("IsTruncated", self.truncated);
    }
}

pub(super) fn write_checksum(doc: &mut Document, checksum: Option<&Checksum>) {
    if let Some((algorithm, value)) = checksum {
        doc.text(&format!("Checksum{}", algorithm.name()), value);
    }
}

fn write_whole_checksum(doc: &mut Document, checksum: Option<&WholeChecksum>) {
    if let Some((algorithm, value, kind)) = checksum {
        doc.text(&format!("Checksum{}", algorithm.name()), value);
        doc.text("ChecksumType", kind.as_str());
    }
}
