//! Answers about uploads in parts.

use ::time::OffsetDateTime;

use super::write::{Document, document};
use crate::integrity::{Algorithm, ChecksumType};
use crate::op::ListParts;
use crate::query::name;
use crate::time::iso_millis;
use crate::{BucketName, ObjectKey};

/// `InitiateMultipartUploadResult`.
pub fn initiate_result(bucket: &BucketName, key: &ObjectKey, upload: &str) -> Vec<u8> {
    document("InitiateMultipartUploadResult", |doc| {
        doc.text("Bucket", bucket.as_str());
        doc.text("Key", key.as_str());
        doc.text("UploadId", upload);
    })
}

/// An object that was made of parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// The ETag, with its quotes.
    pub etag: String,
    /// Its checksum, as in headers.
    pub checksum: Option<(Algorithm, String, ChecksumType)>,
}

/// `CompleteMultipartUploadResult`.
pub fn complete_result(
    location: &str,
    bucket: &BucketName,
    key: &ObjectKey,
    completed: &Completed,
) -> Vec<u8> {
    document("CompleteMultipartUploadResult", |doc| {
        doc.text("Location", location);
        doc.text("Bucket", bucket.as_str());
        doc.text("Key", key.as_str());
        doc.text("ETag", &completed.etag);
        if let Some((algorithm, value, kind)) = &completed.checksum {
            write_checksum(doc, Some((*algorithm, value)));
            doc.text("ChecksumType", kind.as_str());
        }
    })
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartEntry {
    /// Its number.
    pub number: u16,
    /// When it was written.
    pub modified: OffsetDateTime,
    /// Its ETag, with quotes.
    pub etag: String,
    /// Bytes.
    pub size: u64,
    /// Its checksum, as in headers.
    pub checksum: Option<(Algorithm, String)>,
}

impl PartEntry {
    pub(super) fn checksum(&self) -> Option<(Algorithm, &str)> {
        let checksum = self.checksum.as_ref();
        checksum.map(|(algorithm, value)| (*algorithm, value.as_str()))
    }
}

/// One page of an upload's parts.
#[derive(Debug, Clone)]
pub struct PartsPage<'a> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// The key of the object to be.
    pub key: &'a ObjectKey,
    /// The parameters of the request.
    pub request: &'a ListParts,
    /// Checksums that the upload's parts have.
    pub checksum: Option<(Algorithm, ChecksumType)>,
    /// By number.
    pub parts: Vec<PartEntry>,
    /// Whether there are more.
    pub truncated: bool,
}

impl PartsPage<'_> {
    /// `ListPartsResult`.
    pub fn xml(&self) -> Vec<u8> {
        let request = self.request;
        document("ListPartsResult", |doc| {
            doc.text("Bucket", self.bucket.as_str());
            doc.text("Key", &name(self.key.as_str(), request.url_encoded));
            doc.optional("EncodingType", request.url_encoded.then_some("url"));
            doc.text("UploadId", &request.upload);
            doc.owner("Initiator");
            doc.owner("Owner");
            doc.text("StorageClass", "STANDARD");
            doc.value("PartNumberMarker", request.after);
            let last = self.parts.last().map_or(0, |part| part.number);
            doc.value("NextPartNumberMarker", last);
            doc.value("MaxParts", request.max);
            doc.value("IsTruncated", self.truncated);
            write_checksum_kind(doc, self.checksum);
            for part in &self.parts {
                doc.element("Part", |doc| {
                    doc.value("PartNumber", part.number);
                    doc.text("LastModified", &iso_millis(part.modified));
                    doc.text("ETag", &part.etag);
                    doc.value("Size", part.size);
                    write_checksum(doc, part.checksum());
                });
            }
        })
    }
}

pub(super) fn write_checksum(doc: &mut Document, checksum: Option<(Algorithm, &str)>) {
    if let Some((algorithm, value)) = checksum {
        doc.text(&format!("Checksum{}", algorithm.name()), value);
    }
}

pub(super) fn write_checksum_kind(doc: &mut Document, checksum: Option<(Algorithm, ChecksumType)>) {
    if let Some((algorithm, kind)) = checksum {
        doc.text("ChecksumAlgorithm", algorithm.name());
        doc.text("ChecksumType", kind.as_str());
    }
}
