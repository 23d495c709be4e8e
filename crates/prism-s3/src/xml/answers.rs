//! Answers of one document each: buckets, access control lists, copies, deletions, tags.

use super::parts::write_checksum;
use super::requests::DeleteTarget;
use super::write::{Document, document};
use crate::checksum::{Algorithm, ChecksumType};
use crate::tags::Tags;
use crate::{BucketName, ListBuckets, ListObjects, S3Error};

/// `ListAllMyBucketsResult`: buckets of this region, with the milliseconds from the Unix epoch to
/// their creation. The region stands in answers to requests with a parameter, as in S3.
pub fn list_buckets(
    request: &ListBuckets,
    region: &str,
    buckets: &[(BucketName, u64)],
    is_truncated: bool,
) -> Vec<u8> {
    let region = Some(region).filter(|_| *request != ListBuckets::default());
    let last = buckets.last().filter(|_| is_truncated);
    document("ListAllMyBucketsResult", |doc| {
        doc.owner("Owner");
        doc.element("Buckets", |doc| {
            for (name, created_ms) in buckets {
                doc.element("Bucket", |doc| {
                    doc.text("Name", name.as_str());
                    doc.time("CreationDate", *created_ms);
                    doc.optional("BucketRegion", region);
                });
            }
        });
        let token = last.map(|(name, _)| ListObjects::token(name.as_str()));
        doc.optional("ContinuationToken", token.as_deref());
        doc.optional("Prefix", request.prefix.as_deref());
    })
}

/// `AccessControlPolicy`: the owner of everything has every right, because ACLs are not served.
pub fn acl() -> Vec<u8> {
    document("AccessControlPolicy", |doc| {
        doc.owner("Owner");
        doc.element("AccessControlList", |doc| {
            doc.element("Grant", |doc| {
                doc.grantee();
                doc.text("Permission", "FULL_CONTROL");
            });
        });
    })
}

/// `PolicyStatus`.
pub fn policy_status(is_public: bool) -> Vec<u8> {
    document("PolicyStatus", |doc| doc.value("IsPublic", is_public))
}

/// `LocationConstraint`. S3 writes nothing for `us-east-1`.
pub fn location(region: &str) -> Vec<u8> {
    document("LocationConstraint", |doc| {
        if region != "us-east-1" {
            doc.push_escaped(region);
        }
    })
}

/// `CopyObjectResult` or `CopyPartResult`. The `etag` has no quotes. The checksum is that of the
/// bytes.
pub fn copy_result(
    is_part: bool,
    etag: &str,
    created_ms: u64,
    checksum: Option<&(Algorithm, String)>,
) -> Vec<u8> {
    let root = if is_part {
        "CopyPartResult"
    } else {
        "CopyObjectResult"
    };
    document(root, |doc| {
        doc.time("LastModified", created_ms);
        doc.etag(etag);
        write_checksum(doc, checksum);
        if !is_part && checksum.is_some() {
            doc.text("ChecksumType", ChecksumType::FullObject.as_str());
        }
    })
}

/// The result of one target of a DeleteObjects. A success has the delete marker that was made,
/// or that was named and is deleted.
pub type DeleteResult<'a> = (&'a DeleteTarget, Result<Option<String>, S3Error>);

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
                Ok(marker) => doc.element("Deleted", |doc| {
                    name(doc, target);
                    if let Some(marker) = &marker {
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
    let status = enabled.map(|enabled| if enabled { "Enabled" } else { "Suspended" });
    document("VersioningConfiguration", |doc| {
        doc.optional("Status", status)
    })
}
