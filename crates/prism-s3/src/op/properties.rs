//! The properties of each operation: its name, who may be allowed it, and whether it moves data.

use super::{BucketOperation, Document, ObjectOperation, Operation};

/// One row of the table.
struct Properties {
    /// The name in S3's terms.
    name: &'static str,
    /// The actions that everybody must be allowed for an anonymous caller to do this. With
    /// none, only callers with a signature may.
    actions: &'static [&'static str],
    /// Whether an object's bytes go between the client and the object's owner.
    moves_data: bool,
}

const fn signed(name: &'static str) -> Properties {
    open(name, &[])
}

const fn open(name: &'static str, actions: &'static [&'static str]) -> Properties {
    Properties {
        name,
        actions,
        moves_data: false,
    }
}

const fn moving(properties: Properties) -> Properties {
    Properties {
        moves_data: true,
        ..properties
    }
}

impl BucketOperation {
    /// The name of the operation in S3's terms.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.properties().name
    }

    const fn properties(&self) -> Properties {
        use Document::{Cors, Policy};
        match self {
            Self::Create => signed("CreateBucket"),
            Self::Delete => signed("DeleteBucket"),
            Self::Head => open("HeadBucket", &["s3:ListBucket"]),
            Self::GetLocation => open("GetBucketLocation", &["s3:GetBucketLocation"]),
            Self::GetVersioning => signed("GetBucketVersioning"),
            Self::PutVersioning => signed("PutBucketVersioning"),
            Self::GetDocument(Cors) => signed("GetBucketCors"),
            Self::PutDocument(Cors) => signed("PutBucketCors"),
            Self::DeleteDocument(Cors) => signed("DeleteBucketCors"),
            Self::GetDocument(Policy) => signed("GetBucketPolicy"),
            Self::PutDocument(Policy) => signed("PutBucketPolicy"),
            Self::DeleteDocument(Policy) => signed("DeleteBucketPolicy"),
            Self::ListObjects(_) => open("ListObjects", &["s3:ListBucket"]),
            Self::ListVersions(_) => signed("ListObjectVersions"),
            Self::ListUploads(_) => signed("ListMultipartUploads"),
            Self::DeleteObjects => signed("DeleteObjects"),
            Self::Preflight => signed("Preflight"),
        }
    }
}

impl ObjectOperation {
    /// The name of the operation in S3's terms.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.properties().name
    }

    const fn properties(&self) -> Properties {
        match self {
            Self::Put(_) => moving(signed("PutObject")),
            Self::Copy(_) => signed("CopyObject"),
            Self::Get(_) => moving(open("GetObject", &["s3:GetObject"])),
            Self::Head(_) => open("HeadObject", &["s3:GetObject"]),
            Self::Delete { .. } => signed("DeleteObject"),
            Self::GetAttributes(_) => open(
                "GetObjectAttributes",
                &["s3:GetObject", "s3:GetObjectAttributes"],
            ),
            Self::GetTagging { .. } => open("GetObjectTagging", &["s3:GetObjectTagging"]),
            Self::PutTagging { .. } => signed("PutObjectTagging"),
            Self::DeleteTagging { .. } => signed("DeleteObjectTagging"),
            Self::CreateUpload(_) => signed("CreateMultipartUpload"),
            Self::UploadPart(_) => moving(signed("UploadPart")),
            Self::CopyPart(_) => signed("UploadPartCopy"),
            Self::ListParts(_) => signed("ListParts"),
            Self::CompleteUpload(_) => signed("CompleteMultipartUpload"),
            Self::AbortUpload { .. } => signed("AbortMultipartUpload"),
        }
    }

    /// Whether the operation names a version of its object.
    fn names_version(&self) -> bool {
        match self {
            Self::Get(read) | Self::Head(read) => read.version.is_some(),
            Self::GetAttributes(attributes) => attributes.version.is_some(),
            Self::Delete { version, .. }
            | Self::GetTagging { version }
            | Self::PutTagging { version }
            | Self::DeleteTagging { version } => version.is_some(),
            _ => false,
        }
    }
}

impl Operation {
    const fn properties(&self) -> Properties {
        match self {
            Self::ListBuckets => signed("ListBuckets"),
            Self::Bucket(_, operation) => operation.properties(),
            Self::Object(_, operation) => operation.properties(),
            Self::Unsupported { .. } => signed("Unsupported"),
        }
    }

    /// The name of the operation in S3's terms, for logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.properties().name
    }

    /// Whether an object's bytes go between the client and the object's owner, so that
    /// bringing them together is worth a hand-off.
    #[must_use]
    pub const fn moves_data(&self) -> bool {
        self.properties().moves_data
    }

    /// Whether the operation only reads an object, so that every replica may answer it.
    #[must_use]
    pub const fn only_reads_object(&self) -> bool {
        matches!(self, Self::Object(..)) && self.may_be_anonymous()
    }

    /// Whether anonymous callers may be allowed this.
    pub(crate) const fn may_be_anonymous(&self) -> bool {
        !self.properties().actions.is_empty()
            || matches!(self, Self::Bucket(_, BucketOperation::Preflight))
    }

    /// The actions that a policy must allow to everybody, if it can allow this operation.
    /// A version takes other actions, which no policy here can allow.
    pub(crate) fn actions_for_everybody(&self) -> Option<&'static [&'static str]> {
        let names_version = match self {
            Self::Object(_, operation) => operation.names_version(),
            _ => false,
        };
        let actions = self.properties().actions;
        (!actions.is_empty() && !names_version).then_some(actions)
    }
}
