//! Answers of one document each: buckets, copies, deletions, tags, attributes.

use ::time::OffsetDateTime;

use super::parts::{PartEntry, write_checksum};
use super::requests::DeleteTarget;
use super::write::{Document, document};
use crate::integrity::{Algorithm, ChecksumType};
use crate::tags::Tags;
use crate::time::iso_millis;
use crate::{BucketName, S3Error};

/// `ListAllMyBucketsResult`: buckets with their creation times.
pub fn list_buckets<'a>(
    buckets: impl IntoIterator<Item = (&'a BucketName, OffsetDateTime)>,
) -> Vec<u8> {
    document("ListAllMyBucketsResult", |doc| {
        doc.owner("Owner");
        doc.element("Buckets", |doc| {
            for (name, created) in buckets {
                doc.element("Bucket", |doc| {
                    doc.text("Name", name.as_str());
                    doc.text("CreationDate", &iso_millis(created));
                });
            }
        });
    })
}

/// `LocationConstraint`. S3 writes nothing for `us-east-1`.
pub fn location(region: &str) -> Vec<u8> {
    document("LocationConstraint", |doc| {
        if region != "us-east-1" {
            doc.push_escaped(region);
        }
    })
}

/// `CopyObjectResult` or `CopyPartResult`. The `etag` comes with its quotes.
pub fn copy_result(
    is_part: bool,
    etag: &str,
    modified: OffsetDateTime,
    checksum: Option<(Algorithm, &str)>,
) -> Vec<u8> {
    let root = match is_part {
        true => "CopyPartResult",
        false => "CopyObjectResult",
    };
    document(root, |doc| {
        doc.text("LastModified", &iso_millis(modified));
        doc.text("ETag", etag);
        write_checksum(doc, checksum);
    })
}

/// The result of one target of a DeleteObjects.
pub type DeleteResult<'a> = (&'a DeleteTarget, Result<Deleted, S3Error>);

/// A deletion in a bucket that may keep versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The delete marker: the one that was made, or the one that was named and is deleted.
    pub marker: Option<String>,
}

/// `DeleteResult`; with `quiet`, failures only.
pub fn delete_result<'a>(
    quiet: bool,
    results: impl IntoIterator<Item = DeleteResult<'a>>,
) -> Vec<u8> {
    let name = |doc: &mut Document, target: &DeleteTarget| {
        doc.text("Key", &target.key);
        doc.optional("VersionId", target.version.as_deref());
    };
    document("DeleteResult", |doc| {
        for (target, result) in results {
            match result {
                Ok(_) if quiet => {}
                Ok(deleted) => doc.element("Deleted", |doc| {
                    name(doc, target);
                    if let Some(marker) = &deleted.marker {
                        doc.text("DeleteMarker", "true");
                        doc.text("DeleteMarkerVersionId", marker);
                    }
                }),
                Err(error) => doc.element("Error", |doc| {
                    name(doc, target);
                    doc.text("Code", error.code().as_str());
                    doc.text("Message", error.message());
                }),
            }
        }
    })
}

/// `Tagging`.
pub fn tagging(tags: &Tags) -> Vec<u8> {
    document("Tagging", |doc| {
        doc.element("TagSet", |doc| {
            for (key, value) in tags.iter() {
                doc.element("Tag", |doc| {
                    doc.text("Key", key);
                    doc.text("Value", value);
                });
            }
        });
    })
}

/// `VersioningConfiguration`; with nothing for a bucket that never kept versions.
pub fn versioning(enabled: Option<bool>) -> Vec<u8> {
    let status = enabled.map(|enabled| match enabled {
        true => "Enabled",
        false => "Suspended",
    });
    document("VersioningConfiguration", |doc| {
        doc.optional("Status", status)
    })
}

/// The answer to GetObjectAttributes: each attribute that was asked for and exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The ETag without quotes, as S3 writes it here only.
    pub etag: Option<String>,
    /// The object's checksum.
    pub checksum: Option<(Algorithm, String, ChecksumType)>,
    /// Its parts.
    pub parts: Option<PartsOfObject>,
    /// Whether to tell the storage class, of which there is one.
    pub storage_class: bool,
    /// Bytes.
    pub size: Option<u64>,
}

/// The parts of an object that was uploaded in parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartsOfObject {
    /// How many there are.
    pub count: usize,
    /// Only parts with greater numbers were asked for.
    pub after: u16,
    /// At most so many.
    pub max: usize,
    /// Whether there are more behind `page`.
    pub truncated: bool,
    /// Parts with checksums, as in S3. Their times and ETags are not written.
    pub page: Vec<PartEntry>,
}

impl Attributes {
    /// `GetObjectAttributesResponse`.
    pub fn xml(&self) -> Vec<u8> {
        document("GetObjectAttributesResponse", |doc| {
            doc.optional("ETag", self.etag.as_deref());
            if let Some((algorithm, value, kind)) = &self.checksum {
                doc.element("Checksum", |doc| {
                    write_checksum(doc, Some((*algorithm, value)));
                    doc.text("ChecksumType", kind.as_str());
                });
            }
            if let Some(parts) = &self.parts {
                doc.element("ObjectParts", |doc| parts.write(doc));
            }
            doc.optional("StorageClass", self.storage_class.then_some("STANDARD"));
            if let Some(size) = self.size {
                doc.value("ObjectSize", size);
            }
        })
    }
}

impl PartsOfObject {
    fn write(&self, doc: &mut Document) {
        doc.value("PartsCount", self.count);
        if let Some(last) = self.page.last() {
            doc.value("PartNumberMarker", self.after);
            doc.value("NextPartNumberMarker", last.number);
            doc.value("MaxParts", self.max);
            doc.value("IsTruncated", self.truncated);
        }
        for part in &self.page {
            doc.element("Part", |doc| {
                doc.value("PartNumber", part.number);
                doc.value("Size", part.size);
                write_checksum(doc, part.checksum());
            });
        }
    }
}
