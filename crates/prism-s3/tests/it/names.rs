//! The names of operations in S3's terms.

use prism_s3::{BucketOperation as Bucket, Document, ObjectOperation as Object, Operation};

pub(crate) fn name(operation: &Operation) -> &'static str {
    match operation {
        Operation::ListBuckets(_) => "ListBuckets",
        Operation::Preflight => "Preflight of the service",
        Operation::Bucket(_, operation) => of_bucket(operation),
        Operation::Unset(_, configuration) => configuration.row().name,
        Operation::Object(_, operation) => of_object(operation),
        Operation::Unsupported { .. } => "Unsupported",
    }
}

fn of_bucket(operation: &Bucket) -> &'static str {
    use Document::{Cors, Policy};
    match operation {
        Bucket::Create => "CreateBucket",
        Bucket::Delete => "DeleteBucket",
        Bucket::Head => "HeadBucket",
        Bucket::GetLocation => "GetBucketLocation",
        Bucket::GetVersioning => "GetBucketVersioning",
        Bucket::PutVersioning => "PutBucketVersioning",
        Bucket::GetDocument(Cors) => "GetBucketCors",
        Bucket::PutDocument(Cors) => "PutBucketCors",
        Bucket::DeleteDocument(Cors) => "DeleteBucketCors",
        Bucket::GetDocument(Policy) => "GetBucketPolicy",
        Bucket::PutDocument(Policy) => "PutBucketPolicy",
        Bucket::DeleteDocument(Policy) => "DeleteBucketPolicy",
        Bucket::GetPolicyStatus => "GetBucketPolicyStatus",
        Bucket::ListObjects(_) => "ListObjects",
        Bucket::ListVersions(_) => "ListObjectVersions",
        Bucket::ListUploads(_) => "ListMultipartUploads",
        Bucket::DeleteObjects => "DeleteObjects",
        Bucket::Preflight => "Preflight",
    }
}

fn of_object(operation: &Object) -> &'static str {
    match operation {
        Object::Put(_) => "PutObject",
        Object::Copy(_) => "CopyObject",
        Object::Get(_) => "GetObject",
        Object::Head(_) => "HeadObject",
        Object::Delete { .. } => "DeleteObject",
        Object::GetAcl { .. } => "GetObjectAcl",
        Object::GetAttributes(_) => "GetObjectAttributes",
        Object::GetTagging { .. } => "GetObjectTagging",
        Object::PutTagging { .. } => "PutObjectTagging",
        Object::DeleteTagging { .. } => "DeleteObjectTagging",
        Object::CreateUpload(_) => "CreateMultipartUpload",
        Object::UploadPart(_) => "UploadPart",
        Object::CopyPart(_) => "UploadPartCopy",
        Object::ListParts(_) => "ListParts",
        Object::CompleteUpload(_) => "CompleteMultipartUpload",
        Object::AbortUpload { .. } => "AbortMultipartUpload",
    }
}
