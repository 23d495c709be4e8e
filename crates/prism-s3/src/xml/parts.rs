//! What is answered about uploads in parts.

use ::time::OffsetDateTime;

use super::listing::name;
use super::{Document, NAMESPACE, yes_or_no};
use crate::integrity::{Algorithm, ChecksumType};
use crate::list::ListUploads;
use crate::op::ListParts;
use crate::time::iso_millis;
use crate::{BucketName, ObjectKey};

/// `InitiateMultipartUploadResult`.
#[must_use]
pub fn initiate_result(bucket: &BucketName, key: &ObjectKey, upload: &str) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("InitiateMultipartUploadResult", Some(NAMESPACE));
    doc.text("Bucket", bucket.as_str());
    doc.text("Key", key.as_str());
    doc.text("UploadId", upload);
    doc.close("InitiateMultipartUploadResult");
    doc.finish()
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
    let mut doc = Document::new();
    doc.open("CompleteMultipartUploadResult", Some(NAMESPACE));
    doc.text("Location", location);
    doc.text("Bucket", bucket.as_str());
    doc.text("Key", key.as_str());
    doc.text("ETag", &completed.etag);
    if let Some((algorithm, value, kind)) = &completed.checksum {
        doc.text(algorithm.element(), value);
        doc.text("ChecksumType", kind.as_str());
    }
    doc.close("CompleteMultipartUploadResult");
    doc.finish()
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
    /// What was asked.
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
        let mut doc = Document::new();
        doc.open("ListPartsResult", Some(NAMESPACE));
        doc.text("Bucket", self.bucket.as_str());
        doc.text("Key", &name(self.key.as_str(), self.request.url_encoded));
        if self.request.url_encoded {
            doc.text("EncodingType", "url");
        }
        doc.text("UploadId", &self.request.upload);
        doc.owner("Initiator");
        doc.owner("Owner");
        doc.text("StorageClass", "STANDARD");
        doc.text("PartNumberMarker", &self.request.after.to_string());
        let last = self.parts.last().map_or(0, |part| part.number);
        doc.text("NextPartNumberMarker", &last.to_string());
        doc.text("MaxParts", &self.request.max.to_string());
        doc.text("IsTruncated", yes_or_no(self.truncated));
        if let Some((algorithm, kind)) = self.checksum {
            doc.text("ChecksumAlgorithm", algorithm.name());
            doc.text("ChecksumType", kind.as_str());
        }
        for part in &self.parts {
            doc.open("Part", None);
            doc.text("PartNumber", &part.number.to_string());
            doc.text("LastModified", &iso_millis(part.modified));
            doc.text("ETag", &part.etag);
            doc.text("Size", &part.size.to_string());
            if let Some((algorithm, value)) = &part.checksum {
                doc.text(algorithm.element(), value);
            }
            doc.close("Part");
        }
        doc.close("ListPartsResult");
        doc.finish()
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
    /// What was asked.
    pub request: &'a ListUploads,
    /// By key, then by age.
    pub uploads: Vec<UploadEntry>,
    /// Prefixes up to the delimiter, ascending.
    pub common_prefixes: Vec<String>,
    /// The last upload or common prefix of this page, if there is more behind
    /// it: key, and name or nothing.
    pub next: Option<(String, String)>,
}

impl UploadsPage<'_> {
    /// `ListMultipartUploadsResult`.
    #[must_use]
    pub fn xml(&self) -> Vec<u8> {
        let request = self.request;
        let name = |text: &str| name(text, request.url_encoded);
        let mut doc = Document::new();
        doc.open("ListMultipartUploadsResult", Some(NAMESPACE));
        doc.text("Bucket", self.bucket.as_str());
        doc.text("KeyMarker", &name(&request.key_marker));
        doc.text("UploadIdMarker", &request.upload_marker);
        if let Some((key, upload)) = &self.next {
            doc.text("NextKeyMarker", &name(key));
            doc.text("NextUploadIdMarker", upload);
        }
        doc.text("Prefix", &name(&request.prefix));
        if let Some(delimiter) = &request.delimiter {
            doc.text("Delimiter", &name(delimiter));
        }
        doc.text("MaxUploads", &request.max.to_string());
        if request.url_encoded {
            doc.text("EncodingType", "url");
        }
        doc.text("IsTruncated", yes_or_no(self.next.is_some()));
        for upload in &self.uploads {
            doc.open("Upload", None);
            doc.text("Key", &name(&upload.key));
            doc.text("UploadId", &upload.upload);
            doc.owner("Initiator");
            doc.owner("Owner");
            doc.text("StorageClass", "STANDARD");
            doc.text("Initiated", &iso_millis(upload.initiated));
            if let Some((algorithm, kind)) = upload.checksum {
                doc.text("ChecksumAlgorithm", algorithm.name());
                doc.text("ChecksumType", kind.as_str());
            }
            doc.close("Upload");
        }
        for prefix in &self.common_prefixes {
            doc.open("CommonPrefixes", None);
            doc.text("Prefix", &name(prefix));
            doc.close("CommonPrefixes");
        }
        doc.close("ListMultipartUploadsResult");
        doc.finish()
    }
}
