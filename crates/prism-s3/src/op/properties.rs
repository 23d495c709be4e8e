//! The properties of each operation: who may be allowed it, and whether it moves data.

use super::{BucketOperation, ObjectOperation, ObjectRef, Operation};
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
        matches!(self, Self::Object(..)) && self.may_be_anonymous()
    }

    /// Whether anonymous callers may be allowed this.
    pub(crate) const fn may_be_anonymous(&self) -> bool {
        !self.actions().is_empty() || matches!(self, Self::Bucket(_, BucketOperation::Preflight))
    }

    /// The actions that a policy must allow to everybody, if it can allow this operation.
    /// A version takes other actions, which no policy here can allow.
    pub(crate) fn actions_for_everybody(&self) -> Option<&'static [&'static str]> {
        let actions = self.actions();
        (!actions.is_empty() && !self.names_version()).then_some(actions)
    }

    /// The actions that everybody must be allowed for an anonymous caller to do this. With
    /// none, only callers with a signature may.
    const fn actions(&self) -> &'static [&'static str] {
        use BucketOperation as OfBucket;
        use ObjectOperation as OfObject;
        match self {
            Self::Bucket(_, OfBucket::GetLocation) => &["s3:GetBucketLocation"],
            Self::Bucket(_, OfBucket::Head | OfBucket::ListObjects(_)) => &["s3:ListBucket"],
            Self::Object(_, OfObject::Get(_) | OfObject::Head(_)) => &["s3:GetObject"],
            Self::Object(_, OfObject::GetAttributes(_)) => {
                &["s3:GetObject", "s3:GetObjectAttributes"]
            }
            Self::Object(_, OfObject::GetTagging { .. }) => &["s3:GetObjectTagging"],
            _ => &[],
        }
    }

    /// Whether the operation reads a version that it names.
    const fn names_version(&self) -> bool {
        use ObjectOperation::{Get, GetAttributes, GetTagging, Head};
        match self {
            Self::Object(_, Get(read) | Head(read)) => read.version.is_some(),
            Self::Object(_, GetAttributes(attributes)) => attributes.version.is_some(),
            Self::Object(_, GetTagging { version }) => version.is_some(),
            _ => false,
        }
    }
}
