//! Answers about uploads in parts.

use ::time::OffsetDateTime;

use super::{Document, document, name};
use crate::integrity::{Algorithm, ChecksumType};
use crate::list::ListUploads;
use crate::op::ListParts;
use crate::time::iso_millis;
use crate::{BucketName, ObjectKey};

/// `InitiateMultipartUploadResult`.
#[must_use]
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
#[must_use]
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
            doc.text(algorithm.element(), value);
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
    #[must_use]
    pub fn xml(&self) -> Vec<u8> {
        let request = self.request;
        document("ListPartsResult", |doc| {
            doc.text("Bucket", self.bucket.as_str());
            doc.text("Key", &name(self.key.as_str(), request.url_encoded));
            doc.encoding(request.url_encoded);
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
                    if let Some((algorithm, value)) = &part.checksum {
                        doc.text(algorithm.element(), value);
                    }
                });
            }
        })
    }
}

fn write_checksum_kind(doc: &mut Document, checksum: Option<(Algorithm, ChecksumType)>) {
    if let Some((algorithm, kind)) = checksum {
        doc.text("ChecksumAlgorithm", algorithm.name());
        doc.text("ChecksumType", kind.as_str());
    }
}

/// An upload that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadEntry {
    /// The key of the object to be.
    pub key: String,
    /// Its name.
    pub upload: String,
    /// When it began.
    pub initiated: OffsetDateTime,
    /// Checksums that its parts have.
    pub checksum: Option<(Algorithm, ChecksumType)>,
}

/// One page of a bucket's uploads.
#[derive(Debug, Clone)]
pub struct UploadsPage<'a> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// The parameters of the request.
    pub request: &'a ListUploads,
    /// By key, then by age.
    pub uploads: Vec<UploadEntry>,
    /// Prefixes up to the delimiter, ascending.
    pub common_prefixes: Vec<String>,
    /// The last upload or common prefix of this page, if more follow: its key, and the
    /// upload's name or nothing.
    pub next: Option<(String, String)>,
}

impl UploadsPage<'_> {
    /// `ListMultipartUploadsResult`.
    #[must_use]
    pub fn xml(&self) -> Vec<u8> {
        let request = self.request;
        let name = |text| name(text, request.url_encoded);
        document("ListMultipartUploadsResult", |doc| {
            doc.text("Bucket", self.bucket.as_str());
            doc.text("KeyMarker", &name(&request.key_marker));
            doc.text("UploadIdMarker", &request.upload_marker);
            if let Some((key, upload)) = &self.next {
                doc.text("NextKeyMarker", &name(key));
                doc.text("NextUploadIdMarker", upload);
            }
            doc.text("Prefix", &name(&request.prefix));
            let delimiter = request.delimiter.as_deref();
            doc.optional("Delimiter", delimiter.map(name).as_deref());
            doc.value("MaxUploads", request.max);
            doc.encoding(request.url_encoded);
            doc.value("IsTruncated", self.next.is_some());
            for upload in &self.uploads {
                doc.element("Upload", |doc| {
                    doc.text("Key", &name(&upload.key));
                    doc.text("UploadId", &upload.upload);
                    doc.owner("Initiator");
                    doc.owner("Owner");
                    doc.text("StorageClass", "STANDARD");
                    doc.text("Initiated", &iso_millis(upload.initiated));
                    write_checksum_kind(doc, upload.checksum);
                });
            }
            let prefixes = self.common_prefixes.iter().map(String::as_str);
            doc.common_prefixes(prefixes, request.url_encoded);
        })
    }
}
