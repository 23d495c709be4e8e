//! Tells which operation a request is.
//!
//! Path style (`/bucket/key`) always works; virtual-host style (`bucket.domain/key`) works if a
//! domain is configured. Names are decoded once. `bucket` and `object` have tables of the
//! requests, `properties` has one of the operations.

mod bucket;
mod object;
mod params;
mod properties;
mod row;
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
pub enum Operation {
    /// `GET /`.
    ListBuckets,
    /// An operation on a bucket.
    Bucket(BucketName, BucketOperation),
    /// An operation on an object, or on an upload of one.
    Object(ObjectRef, ObjectOperation),
    /// Known or unknown, but not served: [`Operation::not_implemented`].
    Unsupported {
        /// A description, such as `POST of the service`.
        what: String,
    },
}

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the types say it")]
pub struct ObjectRef {
    pub bucket: BucketName,
    pub key: ObjectKey,
}

/// An operation on a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketOperation {
    /// `PUT /bucket`. The body may hold a location constraint:
    /// [`crate::xml::parse_location_constraint`].
    Create,
    /// `DELETE /bucket`.
    Delete,
    /// `HEAD /bucket`.
    Head,
    /// `GET /bucket?location`.
    GetLocation,
    /// `GET /bucket?versioning`.
    GetVersioning,
    /// `PUT /bucket?versioning`, with [`crate::xml::parse_versioning`] as body.
    PutVersioning,
    /// `GET /bucket?cors` and the like.
    GetDocument(Document),
    /// `PUT /bucket?cors` and the like, with the document as body.
    PutDocument(Document),
    /// `DELETE /bucket?cors` and the like.
    DeleteDocument(Document),
    /// `GET /bucket`, with or without `list-type=2`.
    ListObjects(ListObjects),
    /// `GET /bucket?versions`.
    ListVersions(ListVersions),
    /// `GET /bucket?uploads`.
    ListUploads(ListUploads),
    /// `POST /bucket?delete`, with [`crate::xml::parse_delete`] as body.
    DeleteObjects,
    /// `OPTIONS` of a bucket or object.
    Preflight,
}

/// An operation on an object, or on an upload of one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the parameters of their names")]
pub enum ObjectOperation {
    /// `PUT /bucket/key`.
    Put(PutObject),
    /// `PUT /bucket/key` with `x-amz-copy-source`.
    Copy(Box<CopyObject>),
    /// `GET /bucket/key`.
    Get(ReadObject),
    /// `HEAD /bucket/key`.
    Head(ReadObject),
    /// `DELETE /bucket/key`.
    Delete {
        version: Option<String>,
        conditions: Conditions,
    },
    /// `GET /bucket/key?attributes`.
    GetAttributes(Attributes),
    /// `GET /bucket/key?tagging`.
    GetTagging { version: Option<String> },
    /// `PUT /bucket/key?tagging`, with [`crate::xml::parse_tagging`] as body.
    PutTagging { version: Option<String> },
    /// `DELETE /bucket/key?tagging`.
    DeleteTagging { version: Option<String> },
    /// `POST /bucket/key?uploads`.
    CreateUpload(CreateUpload),
    /// `PUT /bucket/key?partNumber&uploadId`.
    UploadPart(UploadPart),
    /// The same with `x-amz-copy-source`.
    CopyPart(CopyPart),
    /// `GET /bucket/key?uploadId`.
    ListParts(ListParts),
    /// `POST /bucket/key?uploadId`, with [`crate::xml::parse_complete`] as body.
    CompleteUpload(CompleteUpload),
    /// `DELETE /bucket/key?uploadId`.
    AbortUpload { upload: String },
}

/// A document that a bucket may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Document {
    /// The web pages that may use the bucket.
    Cors,
    /// The permissions of everybody.
    Policy,
}

impl Document {
    /// The document's name in queries.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cors => "cors",
            Self::Policy => "policy",
        }
    }
}

impl Operation {
    /// Reads the operation of a request. With a `base_domain` (such as `s3.example.org`, without
    /// port) a host below it names the bucket.
    ///
    /// # Errors
    /// If the request is malformed, in the terms of S3. A request that is not served gives
    /// [`Operation::Unsupported`].
    pub fn parse(head: &RequestHead, base_domain: Option<&str>) -> Result<Self, S3Error> {
        let query = Query::parse(head.query())?;
        let path = decode(head.path())?;
        match names(head, &path, base_domain) {
            ("", "") => Ok(bucket::service(head.method(), &query)),
            ("", _) => Err(Code::InvalidBucketName.into()),
            (bucket, "") => bucket::bucket(head, &query, BucketName::parse(bucket)?),
            (bucket, key) => {
                let object = ObjectRef {
                    bucket: BucketName::parse(bucket)?,
                    key: ObjectKey::parse(key)?,
                };
                object::object(head, &query, object)
            }
        }
    }

    /// The bucket that a request names, even if the rest of the request is invalid.
    #[must_use]
    pub fn bucket_named(head: &RequestHead, base_domain: Option<&str>) -> Option<BucketName> {
        let path = decode(head.path()).ok()?;
        let (bucket, _) = names(head, &path, base_domain);
        BucketName::parse(bucket).ok()
    }

    /// The object, if the operation has one.
    #[must_use]
    pub const fn object(&self) -> Option<&ObjectRef> {
        match self {
            Self::Object(object, _) => Some(object),
            _ => None,
        }
    }

    /// The bucket, if the operation has one.
    #[must_use]
    pub const fn bucket(&self) -> Option<&BucketName> {
        match self {
            Self::Bucket(bucket, _) => Some(bucket),
            Self::Object(object, _) => Some(&object.bucket),
            _ => None,
        }
    }

    /// The error that answers an unsupported operation.
    #[must_use]
    pub fn not_implemented(what: &str) -> S3Error {
        Code::NotImplemented.with_message(format!("{what} is not implemented."))
    }
}

/// The bucket and the key that a request names. Both may be empty.
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

/// Whether the body comes in chunks of [`crate::streaming`].
fn is_streaming(head: &RequestHead) -> bool {
    let announced = head.headers().get("x-amz-content-sha256");
    announced.is_some_and(Form::is_announced)
}
