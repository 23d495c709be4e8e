//! The operations of S3.
//!
//! Requests have path style (`/bucket/key`); [`crate::Domains`] gives it to those of other hosts.
//! Names are decoded once. `rows` has the tables of operations.

mod params;
mod parse;
mod properties;
mod row;
mod rows;

pub use self::params::{
    Attributes, CompleteUpload, CopyObject, CopyPart, CopySource, CreateUpload, ListParts,
    MAX_PARTS, MAX_PUT_BYTES, MIN_PART_BYTES, PutObject, ReadObject, UploadPart,
};
pub(crate) use self::row::Permission;
pub use self::row::{Answerer, Body, Row};
pub use self::rows::UnsetConfiguration;
use crate::conditions::Conditions;
use crate::list::{ListBuckets, ListMarked, ListObjects};
use crate::{BucketName, ObjectKey};

/// A request, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// `GET /`.
    ListBuckets(ListBuckets),
    /// `OPTIONS /`, or of a bucket if the service's own rules allow it.
    Preflight,
    /// An operation on a bucket.
    Bucket(BucketName, BucketOperation),
    /// An operation on a configuration that no bucket has.
    Unset(BucketName, UnsetConfiguration),
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
    /// `GET /bucket?policyStatus`.
    GetPolicyStatus,
    /// `GET /bucket`, with or without `list-type=2`.
    ListObjects(ListObjects),
    /// `GET /bucket?versions`.
    ListVersions(ListMarked),
    /// `GET /bucket?uploads`.
    ListUploads(ListMarked),
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
    /// `GET /bucket/key?acl`.
    GetAcl { version: Option<String> },
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
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cors => "cors",
            Self::Policy => "policy",
        }
    }
}
