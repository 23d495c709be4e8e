//! The properties of each operation: what it is about, its parts, and whether it moves data.

use super::{BucketOperation, Document, ObjectOperation, ObjectRef, Operation, ReadObject};
use crate::conditions::Conditions;
use crate::{BucketName, Code, S3Error};

impl Operation {
    /// The object, if the operation has one.
    pub const fn object(&self) -> Option<&ObjectRef> {
        match self {
            Self::Object(object, _) => Some(object),
            _ => None,
        }
    }

    /// The bucket, if the operation has one.
    pub const fn bucket(&self) -> Option<&BucketName> {
        match self {
            Self::Bucket(bucket, _) => Some(bucket),
            Self::Object(object, _) => Some(&object.bucket),
            _ => None,
        }
    }

    /// The name of the operation in Amazon's API.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ListBuckets => "ListBuckets",
            Self::Preflight => "Preflight",
            Self::Bucket(_, operation) => operation.name(),
            Self::Object(_, operation) => operation.name(),
            Self::Unsupported { .. } => "Unsupported",
        }
    }

    /// The version of an object that the operation names.
    pub fn version(&self) -> Option<&str> {
        use ObjectOperation as Op;
        let Self::Object(_, operation) = self else {
            return None;
        };
        match operation {
            Op::Get(read) | Op::Head(read) => read.version.as_deref(),
            Op::GetAttributes(attributes) => attributes.version.as_deref(),
            Op::Delete { version, .. }
            | Op::GetTagging { version }
            | Op::PutTagging { version }
            | Op::DeleteTagging { version } => version.as_deref(),
            _ => None,
        }
    }

    /// The error that answers an unsupported operation.
    pub fn not_implemented(what: &str) -> S3Error {
        Code::NotImplemented.with_message(format!("{what} is not implemented."))
    }

    /// Whether an object's bytes go between the client and the object's owner, so that
    /// bringing them together is worth a hand-off.
    pub const fn moves_data(&self) -> bool {
        use ObjectOperation::{Get, Put, UploadPart};
        matches!(self, Self::Object(_, Put(_) | Get(_) | UploadPart(_)))
    }

    /// Whether the operation only reads an object, so that every replica may answer it.
    pub const fn only_reads_object(&self) -> bool {
        use ObjectOperation as Op;
        matches!(
            self,
            Self::Object(
                _,
                Op::Get(_) | Op::Head(_) | Op::GetAttributes(_) | Op::GetTagging { .. }
            )
        )
    }

    /// The read of the source that is a part of a copy.
    pub fn read_of_source(&self) -> Option<Self> {
        let Self::Object(_, operation) = self else {
            return None;
        };
        let source = match operation {
            ObjectOperation::Copy(copy) => &copy.source,
            ObjectOperation::CopyPart(part) => &part.source,
            _ => return None,
        };
        let object = ObjectRef {
            bucket: source.bucket.clone(),
            key: source.key.clone(),
        };
        let read = ReadObject {
            version: source.version.clone(),
            ..ReadObject::default()
        };
        Some(Self::Object(object, ObjectOperation::Get(read)))
    }

    /// The deletion of one object, or of a version of it, that is a part of a DeleteObjects.
    pub fn deletion_of(object: ObjectRef, version: Option<String>) -> Self {
        let conditions = Conditions::default();
        let deletion = ObjectOperation::Delete {
            version,
            conditions,
        };
        Self::Object(object, deletion)
    }

    /// Whether the operation changes a bucket itself, and not objects in it.
    pub const fn changes_bucket(&self) -> bool {
        use BucketOperation as Op;
        matches!(
            self,
            Self::Bucket(
                _,
                Op::Create
                    | Op::Delete
                    | Op::PutVersioning
                    | Op::PutDocument(_)
                    | Op::DeleteDocument(_)
            )
        )
    }

    /// Whether a browser asks what a web page may do.
    pub const fn is_preflight(&self) -> bool {
        matches!(
            self,
            Self::Preflight | Self::Bucket(_, BucketOperation::Preflight)
        )
    }
}

impl BucketOperation {
    const fn name(&self) -> &'static str {
        match self {
            Self::Create => "CreateBucket",
            Self::Delete => "DeleteBucket",
            Self::Head => "HeadBucket",
            Self::GetLocation => "GetBucketLocation",
            Self::GetVersioning => "GetBucketVersioning",
            Self::PutVersioning => "PutBucketVersioning",
            Self::GetDocument(Document::Cors) => "GetBucketCors",
            Self::PutDocument(Document::Cors) => "PutBucketCors",
            Self::DeleteDocument(Document::Cors) => "DeleteBucketCors",
            Self::GetDocument(Document::Policy) => "GetBucketPolicy",
            Self::PutDocument(Document::Policy) => "PutBucketPolicy",
            Self::DeleteDocument(Document::Policy) => "DeleteBucketPolicy",
            Self::ListObjects(_) => "ListObjects",
            Self::ListVersions(_) => "ListObjectVersions",
            Self::ListUploads(_) => "ListMultipartUploads",
            Self::DeleteObjects => "DeleteObjects",
            Self::Preflight => "Preflight",
        }
    }
}

impl ObjectOperation {
    const fn name(&self) -> &'static str {
        match self {
            Self::Put(_) => "PutObject",
            Self::Copy(_) => "CopyObject",
            Self::Get(_) => "GetObject",
            Self::Head(_) => "HeadObject",
            Self::Delete { .. } => "DeleteObject",
            Self::GetAttributes(_) => "GetObjectAttributes",
            Self::GetTagging { .. } => "GetObjectTagging",
            Self::PutTagging { .. } => "PutObjectTagging",
            Self::DeleteTagging { .. } => "DeleteObjectTagging",
            Self::CreateUpload(_) => "CreateMultipartUpload",
            Self::UploadPart(_) => "UploadPart",
            Self::CopyPart(_) => "UploadPartCopy",
            Self::ListParts(_) => "ListParts",
            Self::CompleteUpload(_) => "CompleteMultipartUpload",
            Self::AbortUpload { .. } => "AbortMultipartUpload",
        }
    }
}
