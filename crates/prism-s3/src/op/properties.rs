//! The properties of each operation: its row, the names in it, and its parts.

use prism_http::Method;

use super::row::{Answerer, Row};
use super::rows::{LIST_BUCKETS, SERVICE_PREFLIGHT, UNSUPPORTED};
use super::{BucketOperation, ObjectOperation, ObjectRef, Operation, ReadObject};
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
            Self::Bucket(bucket, _) | Self::Unset(bucket, _) => Some(bucket),
            Self::Object(object, _) => Some(&object.bucket),
            _ => None,
        }
    }

    /// The facts of the operation that do not depend on its parameters.
    pub const fn row(&self) -> &'static Row {
        match self {
            Self::ListBuckets(_) => &LIST_BUCKETS,
            Self::Preflight => &SERVICE_PREFLIGHT,
            Self::Bucket(_, operation) => operation.row(),
            Self::Unset(_, configuration) => configuration.row(),
            Self::Object(_, operation) => operation.row(),
            Self::Unsupported { .. } => &UNSUPPORTED,
        }
    }

    /// The name of the operation in Amazon's API.
    pub const fn name(&self) -> &'static str {
        self.row().name
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
            | Op::GetAcl { version }
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

    /// Whether bringing the client and the object's owner together is worth a hand-off.
    pub const fn moves_data(&self) -> bool {
        self.row().moves_connection
    }

    /// Whether the operation only reads an object, so that every replica may answer it.
    pub const fn only_reads_object(&self) -> bool {
        matches!(self.row().answerer, Answerer::Replica)
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
        let is_change = matches!(self.row().request.method, Method::PUT | Method::DELETE);
        is_change && matches!(self, Self::Bucket(..))
    }

    /// Whether a browser asks what a web page may do.
    pub const fn is_preflight(&self) -> bool {
        matches!(
            self,
            Self::Preflight | Self::Bucket(_, BucketOperation::Preflight)
        )
    }
}
