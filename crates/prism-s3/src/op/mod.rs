//! Which operation a request is.
//!
//! Path style (`/bucket/key`) always works; virtual-host style
//! (`bucket.domain/key`) where a domain is configured. Names are decoded once.

mod bucket;
mod object;
mod params;
mod target;

use prism_http::RequestHead;

pub use self::params::{
    Attributes, CompleteUpload, CopyObject, CopyPart, CreateUpload, ListParts, MAX_PARTS,
    MIN_PART_BYTES, PutObject, ReadObject, UploadPart,
};
pub use self::target::CopySource;
use crate::conditions::Conditions;
use crate::list::{ListObjects, ListUploads, ListVersions};
use crate::query::{Query, decode};
use crate::streaming::Form;
pub(crate) use crate::unsupported::Target;
use crate::{BucketName, Code, ObjectKey, S3Error};

/// The largest object, or part of one, that one PUT can make: 5 GiB, as in S3.
pub const MAX_PUT_BYTES: u64 = 5 << 30;

/// A request, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "bucket, key and version are the same everywhere"
)]
pub enum Operation {
    /// `GET /`.
    ListBuckets,
    /// `PUT /bucket`. The body may hold a location constraint:
    /// [`crate::xml::parse_location_constraint`].
    CreateBucket { bucket: BucketName },
    /// `DELETE /bucket`.
    DeleteBucket { bucket: BucketName },
    /// `HEAD /bucket`.
    HeadBucket { bucket: BucketName },
    /// `GET /bucket?location`.
    GetBucketLocation { bucket: BucketName },
    /// `GET /bucket?versioning`.
    GetBucketVersioning { bucket: BucketName },
    /// `PUT /bucket?versioning`, with [`crate::xml::parse_versioning`] as body.
    PutBucketVersioning { bucket: BucketName },
    /// `GET /bucket?cors` and the like.
    GetBucketDocument {
        bucket: BucketName,
        document: Document,
    },
    /// `PUT /bucket?cors` and the like, with the document as body.
    PutBucketDocument {
        bucket: BucketName,
        document: Document,
    },
    /// `DELETE /bucket?cors` and the like.
    DeleteBucketDocument {
        bucket: BucketName,
        document: Document,
    },
    /// `GET /bucket`, with or without `list-type=2`.
    ListObjects {
        bucket: BucketName,
        list: ListObjects,
    },
    /// `GET /bucket?versions`.
    ListObjectVersions {
        bucket: BucketName,
        list: ListVersions,
    },
    /// `GET /bucket?uploads`.
    ListMultipartUploads {
        bucket: BucketName,
        list: ListUploads,
    },
    /// `POST /bucket?delete`, with [`crate::xml::parse_delete`] as body.
    DeleteObjects { bucket: BucketName },
    /// `OPTIONS` of a bucket or object.
    Preflight { bucket: BucketName },
    /// `PUT /bucket/key`.
    PutObject {
        bucket: BucketName,
        key: ObjectKey,
        put: PutObject,
    },
    /// `PUT /bucket/key` with `x-amz-copy-source`.
    CopyObject {
        bucket: BucketName,
        key: ObjectKey,
        copy: CopyObject,
    },
    /// `GET /bucket/key`.
    GetObject {
        bucket: BucketName,
        key: ObjectKey,
        read: ReadObject,
    },
    /// `HEAD /bucket/key`.
    HeadObject {
        bucket: BucketName,
        key: ObjectKey,
        read: ReadObject,
    },
    /// `DELETE /bucket/key`.
    DeleteObject {
        bucket: BucketName,
        key: ObjectKey,
        version: Option<String>,
        conditions: Conditions,
    },
    /// `GET /bucket/key?attributes`.
    GetObjectAttributes {
        bucket: BucketName,
        key: ObjectKey,
        attributes: Attributes,
    },
    /// `GET /bucket/key?tagging`.
    GetObjectTagging {
        bucket: BucketName,
        key: ObjectKey,
        version: Option<String>,
    },
    /// `PUT /bucket/key?tagging`, with [`crate::xml::parse_tagging`] as body.
    PutObjectTagging {
        bucket: BucketName,
        key: ObjectKey,
        version: Option<String>,
    },
    /// `DELETE /bucket/key?tagging`.
    DeleteObjectTagging {
        bucket: BucketName,
        key: ObjectKey,
        version: Option<String>,
    },
    /// `POST /bucket/key?uploads`.
    CreateMultipartUpload {
        bucket: BucketName,
        key: ObjectKey,
        create: CreateUpload,
    },
    /// `PUT /bucket/key?partNumber&uploadId`.
    UploadPart {
        bucket: BucketName,
        key: ObjectKey,
        part: UploadPart,
    },
    /// The same with `x-amz-copy-source`.
    UploadPartCopy {
        bucket: BucketName,
        key: ObjectKey,
        part: CopyPart,
    },
    /// `GET /bucket/key?uploadId`.
    ListParts {
        bucket: BucketName,
        key: ObjectKey,
        list: ListParts,
    },
    /// `POST /bucket/key?uploadId`, with [`crate::xml::parse_complete`] as body.
    CompleteMultipartUpload {
        bucket: BucketName,
        key: ObjectKey,
        complete: CompleteUpload,
    },
    /// `DELETE /bucket/key?uploadId`.
    AbortMultipartUpload {
        bucket: BucketName,
        key: ObjectKey,
        upload: String,
    },
    /// Known or unknown, but not served: [`Operation::not_implemented`].
    Unsupported { what: String },
}

/// A document that a bucket may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Document {
    /// Which web pages may use the bucket.
    Cors,
    /// What everybody may do with the bucket.
    Policy,
}

impl Document {
    pub(crate) const ALL: [Self; 2] = [Self::Cors, Self::Policy];

    /// Its name, as in queries.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cors => "cors",
            Self::Policy => "policy",
        }
    }
}

impl Operation {
    /// Understands a request. With a `base_domain` (as `s3.example.org`, without
    /// port), a host below it names the bucket.
    ///
    /// # Errors
    /// If the request is malformed, in the terms of S3. What is merely not
    /// served comes back as [`Operation::Unsupported`].
    pub fn parse(head: &RequestHead, base_domain: Option<&str>) -> Result<Self, S3Error> {
        let query = Query::parse(head.query())?;
        let path = decode(head.path())?;
        match names(head, &path, base_domain) {
            ("", "") => Ok(bucket::service(head.method(), &query)),
            ("", _) => Err(Code::InvalidBucketName.into()),
            (bucket, "") => bucket::bucket(head, &query, BucketName::parse(bucket)?),
            (bucket, key) => {
                let (bucket, key) = (BucketName::parse(bucket)?, ObjectKey::parse(key)?);
                object::object(head, &query, bucket, key)
            }
        }
    }

    /// The bucket that a request names, whatever else it is or lacks.
    #[must_use]
    pub fn bucket_named(head: &RequestHead, base_domain: Option<&str>) -> Option<BucketName> {
        let path = decode(head.path()).ok()?;
        let (bucket, _) = names(head, &path, base_domain);
        BucketName::parse(bucket).ok()
    }

    /// The name of the operation in S3's terms, for logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        use Document::{Cors, Policy};
        match self {
            Self::ListBuckets => "ListBuckets",
            Self::CreateBucket { .. } => "CreateBucket",
            Self::DeleteBucket { .. } => "DeleteBucket",
            Self::HeadBucket { .. } => "HeadBucket",
            Self::GetBucketLocation { .. } => "GetBucketLocation",
            Self::GetBucketVersioning { .. } => "GetBucketVersioning",
            Self::PutBucketVersioning { .. } => "PutBucketVersioning",
            Self::ListObjectVersions { .. } => "ListObjectVersions",
            Self::GetBucketDocument { document: Cors, .. } => "GetBucketCors",
            Self::PutBucketDocument { document: Cors, .. } => "PutBucketCors",
            Self::DeleteBucketDocument { document: Cors, .. } => "DeleteBucketCors",
            Self::GetBucketDocument {
                document: Policy, ..
            } => "GetBucketPolicy",
            Self::PutBucketDocument {
                document: Policy, ..
            } => "PutBucketPolicy",
            Self::DeleteBucketDocument {
                document: Policy, ..
            } => "DeleteBucketPolicy",
            Self::ListObjects { .. } => "ListObjects",
            Self::ListMultipartUploads { .. } => "ListMultipartUploads",
            Self::DeleteObjects { .. } => "DeleteObjects",
            Self::Preflight { .. } => "Preflight",
            Self::PutObject { .. } => "PutObject",
            Self::CopyObject { .. } => "CopyObject",
            Self::GetObject { .. } => "GetObject",
            Self::HeadObject { .. } => "HeadObject",
            Self::DeleteObject { .. } => "DeleteObject",
            Self::GetObjectAttributes { .. } => "GetObjectAttributes",
            Self::GetObjectTagging { .. } => "GetObjectTagging",
            Self::PutObjectTagging { .. } => "PutObjectTagging",
            Self::DeleteObjectTagging { .. } => "DeleteObjectTagging",
            Self::CreateMultipartUpload { .. } => "CreateMultipartUpload",
            Self::UploadPart { .. } => "UploadPart",
            Self::UploadPartCopy { .. } => "UploadPartCopy",
            Self::ListParts { .. } => "ListParts",
            Self::CompleteMultipartUpload { .. } => "CompleteMultipartUpload",
            Self::AbortMultipartUpload { .. } => "AbortMultipartUpload",
            Self::Unsupported { .. } => "Unsupported",
        }
    }

    /// The bucket and key, where there are: what placement needs.
    #[must_use]
    pub const fn object(&self) -> Option<(&BucketName, &ObjectKey)> {
        match self {
            Self::PutObject { bucket, key, .. }
            | Self::CopyObject { bucket, key, .. }
            | Self::GetObject { bucket, key, .. }
            | Self::HeadObject { bucket, key, .. }
            | Self::DeleteObject { bucket, key, .. }
            | Self::GetObjectAttributes { bucket, key, .. }
            | Self::GetObjectTagging { bucket, key, .. }
            | Self::PutObjectTagging { bucket, key, .. }
            | Self::DeleteObjectTagging { bucket, key, .. }
            | Self::CreateMultipartUpload { bucket, key, .. }
            | Self::UploadPart { bucket, key, .. }
            | Self::UploadPartCopy { bucket, key, .. }
            | Self::ListParts { bucket, key, .. }
            | Self::CompleteMultipartUpload { bucket, key, .. }
            | Self::AbortMultipartUpload { bucket, key, .. } => Some((bucket, key)),
            _ => None,
        }
    }

    /// The bucket, where there is one.
    #[must_use]
    pub const fn bucket(&self) -> Option<&BucketName> {
        match self {
            Self::CreateBucket { bucket }
            | Self::DeleteBucket { bucket }
            | Self::HeadBucket { bucket }
            | Self::GetBucketLocation { bucket }
            | Self::GetBucketVersioning { bucket }
            | Self::PutBucketVersioning { bucket }
            | Self::ListObjectVersions { bucket, .. }
            | Self::GetBucketDocument { bucket, .. }
            | Self::PutBucketDocument { bucket, .. }
            | Self::DeleteBucketDocument { bucket, .. }
            | Self::ListObjects { bucket, .. }
            | Self::ListMultipartUploads { bucket, .. }
            | Self::DeleteObjects { bucket }
            | Self::Preflight { bucket } => Some(bucket),
            other => match other.object() {
                Some((bucket, _)) => Some(bucket),
                None => None,
            },
        }
    }

    /// Whether an object's bytes go between the client and the object's owner,
    /// so that bringing them together is worth a hand-off.
    #[must_use]
    pub const fn moves_data(&self) -> bool {
        matches!(
            self,
            Self::GetObject { .. } | Self::PutObject { .. } | Self::UploadPart { .. }
        )
    }

    /// The error that answers an unsupported operation.
    #[must_use]
    pub fn not_implemented(what: &str) -> S3Error {
        S3Error::with_message(Code::NotImplemented, format!("{what} is not implemented."))
    }
}

/// The bucket and the key that a request names, of which both may be empty.
fn names<'a>(
    head: &'a RequestHead,
    path: &'a str,
    base_domain: Option<&str>,
) -> (&'a str, &'a str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    match target::virtual_bucket(head.host(), base_domain) {
        Some(bucket) => (bucket, path),
        None => path.split_once('/').unwrap_or((path, "")),
    }
}

fn unsupported(what: impl Into<String>) -> Operation {
    Operation::Unsupported { what: what.into() }
}

fn other_method() -> Result<Operation, S3Error> {
    Err(Code::MethodNotAllowed.into())
}

/// A body that comes in chunks of [`crate::streaming`].
fn is_streaming(head: &RequestHead) -> bool {
    let announced = head.headers().get("x-amz-content-sha256");
    announced.is_some_and(Form::is_announced)
}
