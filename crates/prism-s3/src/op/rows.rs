//! The tables of operations on the service, on buckets, and on objects and uploads.
//!
//! A new operation is a variant of its enum and a row here.

use prism_http::{Method, RequestHead};

use super::params::{upload_id, version_id};
use super::row::{Answerer, Body, Permission, Request, Row};
use super::{
    Attributes, BucketOperation, CompleteUpload, CopyObject, CopyPart, CreateUpload, Document,
    ListParts, ObjectOperation, PutObject, ReadObject, UploadPart,
};
use crate::S3Error;
use crate::conditions::Conditions;
use crate::list::{ListMarked, ListObjects};
use crate::policy::actions::Action;
use crate::query::Query;
use crate::rights::{Right, Rights};

/// The parts of a request that decide its operation.
pub(super) struct Given<'r> {
    pub(super) head: &'r RequestHead,
    pub(super) query: &'r Query,
    /// The source, if the request copies an object.
    pub(super) source: Option<&'r str>,
}

/// An operation's row, and the function that reads the operation from a request.
pub(super) struct Entry<T> {
    pub(super) row: Row,
    pub(super) read: fn(&Given<'_>) -> Result<T, S3Error>,
}

/// Makes a table of entries, of which the first that fits a request counts, and the function
/// that finds the row of an operation.
macro_rules! table {
    ($table:ident of $operation:ident: $($name:ident $pattern:pat => $row:expr, $read:expr;)*) => {
        $(static $name: Entry<$operation> = Entry { row: $row, read: $read };)*

        pub(super) static $table: &[&Entry<$operation>] = &[$(&$name,)*];

        impl $operation {
            /// The facts of the operation that do not depend on its parameters.
            pub const fn row(&self) -> &'static Row {
                use $operation as Op;
                match self { $($pattern => &$name.row,)* }
            }
        }
    };
}

const READ: Rights = Rights::NONE.with(Right::Read);
const WRITE: Rights = Rights::NONE.with(Right::Write);
const OWNER: Rights = Rights::NONE.with(Right::Owner);
const READ_OR_OWNER: Rights = READ.and(OWNER);

/// The longest document about a bucket, or about an object's tags: ten tags with every character
/// escaped take less.
const DOCUMENT: Body = Body::Document(64 << 10);
/// The longest list of keys to delete, or of an upload's parts. 1,000 keys of 1 KiB, in which
/// every byte is a reference such as `&amp;`, have elements of 100 bytes each. 10,000 parts with a
/// number, an ETag, a SHA-256 and their elements take 300 bytes each; some clients indent.
const LONG_LIST: Body = Body::Document(6 << 20);

const VERSION: &[&str] = &["versionId"];

pub(super) static LIST_BUCKETS: Row = Row::new(
    "ListBuckets",
    Request::new(Method::Get, &[], &[]),
    Permission::AnyKey,
    Body::Skipped,
    Answerer::Backend,
);

pub(super) static SERVICE_PREFLIGHT: Row = Row::new(
    "Preflight",
    Request::new(Method::Options, &[], &[]),
    Permission::Nothing,
    Body::Skipped,
    Answerer::Reader,
);

/// An unsupported operation does nothing. Only callers who are known learn what is missing.
pub(super) static UNSUPPORTED: Row = Row::new(
    "Unsupported",
    Request::new(Method::Get, &[], &[]),
    Permission::AnyKey,
    Body::Skipped,
    Answerer::Reader,
);

table! { BUCKET of BucketOperation:
    GET_LOCATION Op::GetLocation => Row::new(
        "GetBucketLocation",
        Request::new(Method::Get, &["location"], &[]),
        Permission::one_of(Rights::ALL, &[Action::GetBucketLocation]),
        Body::Skipped,
        Answerer::Backend,
    ), |_| Ok(BucketOperation::GetLocation);
    GET_VERSIONING Op::GetVersioning => Row::new(
        "GetBucketVersioning",
        Request::new(Method::Get, &["versioning"], &[]),
        Permission::one_of(READ_OR_OWNER, &[Action::GetBucketVersioning]),
        Body::Skipped,
        Answerer::Backend,
    ), |_| Ok(BucketOperation::GetVersioning);
    PUT_VERSIONING Op::PutVersioning => Row::new(
        "PutBucketVersioning",
        Request::new(Method::Put, &["versioning"], &[]),
        Permission::one_of(OWNER, &[Action::PutBucketVersioning]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::PutVersioning);
    LIST_VERSIONS Op::ListVersions(_) => Row::new(
        "ListObjectVersions",
        Request::new(Method::Get, &["versions"], &ListMarked::OF_VERSIONS),
        Permission::one_of(READ, &[Action::ListBucketVersions]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |given| {
        ListMarked::versions(given.query).map(BucketOperation::ListVersions)
    };
    LIST_UPLOADS Op::ListUploads(_) => Row::new(
        "ListMultipartUploads",
        Request::new(Method::Get, &["uploads"], &ListMarked::OF_UPLOADS),
        Permission::one_of(WRITE, &[Action::ListBucketMultipartUploads]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |given| {
        ListMarked::uploads(given.query).map(BucketOperation::ListUploads)
    };
    DELETE_OBJECTS Op::DeleteObjects => Row::new(
        "DeleteObjects",
        Request::new(Method::Post, &["delete"], &[]),
        Permission::for_some_key(WRITE, &[Action::DeleteObject, Action::DeleteObjectVersion]),
        LONG_LIST,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::DeleteObjects);
    GET_CORS Op::GetDocument(Document::Cors) => Row::new(
        "GetBucketCors",
        Request::new(Method::Get, &["cors"], &[]),
        Permission::one_of(OWNER, &[Action::GetBucketCors]),
        Body::Skipped,
        Answerer::Backend,
    ), |_| Ok(BucketOperation::GetDocument(Document::Cors));
    PUT_CORS Op::PutDocument(Document::Cors) => Row::new(
        "PutBucketCors",
        Request::new(Method::Put, &["cors"], &[]),
        Permission::one_of(OWNER, &[Action::PutBucketCors]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::PutDocument(Document::Cors));
    // As in S3, which has no action of its own for the deletion.
    DELETE_CORS Op::DeleteDocument(Document::Cors) => Row::new(
        "DeleteBucketCors",
        Request::new(Method::Delete, &["cors"], &[]),
        Permission::one_of(OWNER, &[Action::PutBucketCors]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::DeleteDocument(Document::Cors));
    GET_POLICY Op::GetDocument(Document::Policy) => Row::new(
        "GetBucketPolicy",
        Request::new(Method::Get, &["policy"], &[]),
        Permission::of_policy(OWNER, Action::GetBucketPolicy),
        Body::Skipped,
        Answerer::Backend,
    ), |_| Ok(BucketOperation::GetDocument(Document::Policy));
    PUT_POLICY Op::PutDocument(Document::Policy) => Row::new(
        "PutBucketPolicy",
        Request::new(Method::Put, &["policy"], &[]),
        Permission::of_policy(OWNER, Action::PutBucketPolicy),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::PutDocument(Document::Policy));
    DELETE_POLICY Op::DeleteDocument(Document::Policy) => Row::new(
        "DeleteBucketPolicy",
        Request::new(Method::Delete, &["policy"], &[]),
        Permission::of_policy(OWNER, Action::DeleteBucketPolicy),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::DeleteDocument(Document::Policy));
    LIST_OBJECTS Op::ListObjects(_) => Row::new(
        "ListObjects",
        Request::new(Method::Get, &[], &ListObjects::PARAMETERS),
        Permission::one_of(READ, &[Action::ListBucket]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |given| {
        ListObjects::parse(given.query).map(BucketOperation::ListObjects)
    };
    CREATE Op::Create => Row::new(
        "CreateBucket",
        Request::new(Method::Put, &[], &[]),
        Permission::one_of(OWNER, &[Action::CreateBucket]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::Create);
    DELETE_BUCKET Op::Delete => Row::new(
        "DeleteBucket",
        Request::new(Method::Delete, &[], &[]),
        Permission::one_of(OWNER, &[Action::DeleteBucket]),
        DOCUMENT,
        Answerer::ReaderWithAll,
    ), |_| Ok(BucketOperation::Delete);
    // Clients look for a bucket, and its region, before they write to it.
    HEAD_BUCKET Op::Head => Row::new(
        "HeadBucket",
        Request::new(Method::Head, &[], &[]),
        Permission::one_of(Rights::ALL, &[Action::ListBucket]),
        Body::Skipped,
        Answerer::Backend,
    ), |_| Ok(BucketOperation::Head);
    PREFLIGHT Op::Preflight => Row::new(
        "Preflight",
        Request::new(Method::Options, &[], &[]),
        Permission::Nothing,
        Body::Skipped,
        Answerer::Backend,
    ), |_| Ok(BucketOperation::Preflight);
}

table! { OBJECT of ObjectOperation:
    CREATE_UPLOAD Op::CreateUpload(_) => Row::new(
        "CreateMultipartUpload",
        Request::new(Method::Post, &["uploads"], &[]),
        Permission::one_of(WRITE, &[Action::PutObject]),
        Body::Skipped,
        Answerer::Owner,
    ), |given| {
        CreateUpload::parse(given).map(ObjectOperation::CreateUpload)
    };
    UPLOAD_PART Op::UploadPart(_) => Row::new(
        "UploadPart",
        Request::new(Method::Put, &["uploadId", "partNumber"], &[]),
        Permission::one_of(WRITE, &[Action::PutObject]),
        Body::Data,
        Answerer::Owner,
    ).moving(), |given| {
        UploadPart::parse(given).map(ObjectOperation::UploadPart)
    };
    COPY_PART Op::CopyPart(_) => Row::new(
        "UploadPartCopy",
        Request::copy(&["uploadId", "partNumber"]),
        Permission::one_of(WRITE, &[Action::PutObject]),
        Body::Skipped,
        Answerer::Owner,
    ), |given| {
        CopyPart::parse(given).map(ObjectOperation::CopyPart)
    };
    LIST_PARTS Op::ListParts(_) => Row::new(
        "ListParts",
        Request::new(Method::Get, &["uploadId"], &ListParts::PARAMETERS),
        Permission::one_of(WRITE, &[Action::ListMultipartUploadParts]),
        Body::Skipped,
        Answerer::Owner,
    ), |given| {
        ListParts::parse(given).map(ObjectOperation::ListParts)
    };
    COMPLETE_UPLOAD Op::CompleteUpload(_) => Row::new(
        "CompleteMultipartUpload",
        Request::new(Method::Post, &["uploadId"], &[]),
        Permission::one_of(WRITE, &[Action::PutObject]),
        LONG_LIST,
        Answerer::Owner,
    ), |given| {
        CompleteUpload::parse(given).map(ObjectOperation::CompleteUpload)
    };
    ABORT_UPLOAD Op::AbortUpload { .. } => Row::new(
        "AbortMultipartUpload",
        Request::new(Method::Delete, &["uploadId"], &[]),
        Permission::one_of(WRITE, &[Action::AbortMultipartUpload]),
        Body::Skipped,
        Answerer::Owner,
    ), |given| {
        let upload = upload_id(given);
        Ok(ObjectOperation::AbortUpload { upload })
    };
    GET_TAGGING Op::GetTagging { .. } => Row::new(
        "GetObjectTagging",
        Request::new(Method::Get, &["tagging"], VERSION),
        Permission::of_version(
            READ,
            &[Action::GetObjectTagging],
            &[Action::GetObjectVersionTagging],
        ),
        Body::Skipped,
        Answerer::Replica,
    ), |given| {
        version_id(given).map(|version| ObjectOperation::GetTagging { version })
    };
    PUT_TAGGING Op::PutTagging { .. } => Row::new(
        "PutObjectTagging",
        Request::new(Method::Put, &["tagging"], VERSION),
        Permission::of_version(
            WRITE,
            &[Action::PutObjectTagging],
            &[Action::PutObjectVersionTagging],
        ),
        DOCUMENT,
        Answerer::Owner,
    ), |given| {
        version_id(given).map(|version| ObjectOperation::PutTagging { version })
    };
    DELETE_TAGGING Op::DeleteTagging { .. } => Row::new(
        "DeleteObjectTagging",
        Request::new(Method::Delete, &["tagging"], VERSION),
        Permission::of_version(
            WRITE,
            &[Action::DeleteObjectTagging],
            &[Action::DeleteObjectVersionTagging],
        ),
        Body::Skipped,
        Answerer::Owner,
    ), |given| {
        version_id(given).map(|version| ObjectOperation::DeleteTagging { version })
    };
    GET_ATTRIBUTES Op::GetAttributes(_) => Row::new(
        "GetObjectAttributes",
        Request::new(Method::Get, &["attributes"], VERSION),
        Permission::of_version(
            READ,
            &[Action::GetObject, Action::GetObjectAttributes],
            &[Action::GetObjectVersion, Action::GetObjectVersionAttributes],
        ),
        Body::Skipped,
        Answerer::Replica,
    ), |given| {
        Attributes::parse(given).map(ObjectOperation::GetAttributes)
    };
    GET_OBJECT Op::Get(_) => Row::new(
        "GetObject",
        Request::new(Method::Get, &[], &ReadObject::PARAMETERS),
        Permission::of_version(READ, &[Action::GetObject], &[Action::GetObjectVersion]),
        Body::Skipped,
        Answerer::Replica,
    ).moving(), |given| {
        ReadObject::parse(given).map(ObjectOperation::Get)
    };
    HEAD_OBJECT Op::Head(_) => Row::new(
        "HeadObject",
        Request::new(Method::Head, &[], &ReadObject::PARAMETERS),
        Permission::of_version(READ, &[Action::GetObject], &[Action::GetObjectVersion]),
        Body::Skipped,
        Answerer::Replica,
    ), |given| {
        ReadObject::parse(given).map(ObjectOperation::Head)
    };
    PUT_OBJECT Op::Put(_) => Row::new(
        "PutObject",
        Request::new(Method::Put, &[], &[]),
        Permission::one_of(WRITE, &[Action::PutObject]),
        Body::Data,
        Answerer::Owner,
    ).moving(), |given| {
        PutObject::parse(given).map(ObjectOperation::Put)
    };
    COPY_OBJECT Op::Copy(_) => Row::new(
        "CopyObject",
        Request::copy(&[]),
        Permission::one_of(WRITE, &[Action::PutObject]),
        Body::Skipped,
        Answerer::Owner,
    ), |given| {
        CopyObject::parse(given).map(|copy| ObjectOperation::Copy(Box::new(copy)))
    };
    DELETE_OBJECT Op::Delete { .. } => Row::new(
        "DeleteObject",
        Request::new(Method::Delete, &[], VERSION),
        Permission::of_version(WRITE, &[Action::DeleteObject], &[Action::DeleteObjectVersion]),
        Body::Skipped,
        Answerer::Owner,
    ), |given| {
        Ok(ObjectOperation::Delete {
            version: version_id(given)?,
            conditions: Conditions::from_headers(given.head.headers()),
        })
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ptr;

    use prism_http::Limits;

    use super::super::Operation;
    use super::*;

    /// The row of the operation that a request of this row is.
    fn row_of_request(row: &Row, target: &str) -> &'static Row {
        let request = &row.request;
        let query: Vec<String> = request
            .named_by
            .iter()
            .map(|name| format!("{name}=1"))
            .collect();
        let source = if request.copies {
            "x-amz-copy-source: /bkt/k\r\n"
        } else {
            ""
        };
        let text = format!(
            "{} {target}?{} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n{source}\
             x-amz-object-attributes: ETag\r\n\r\n",
            request.method,
            query.join("&"),
        );
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        let (head, _) = parsed.unwrap().unwrap();
        let operation = Operation::parse(&head).unwrap();
        operation.row()
    }

    #[test]
    fn a_request_of_each_row_is_an_operation_of_that_row() {
        let service = [&LIST_BUCKETS, &SERVICE_PREFLIGHT].map(|row| (row, "/"));
        let bucket = BUCKET.iter().map(|entry| (&entry.row, "/bkt"));
        let object = OBJECT.iter().map(|entry| (&entry.row, "/bkt/k"));
        for (row, target) in service.into_iter().chain(bucket).chain(object) {
            let found = row_of_request(row, target);
            assert!(ptr::eq(found, row), "{}: {}", row.name, found.name);
        }
    }

    #[test]
    fn operations_on_the_service_need_a_key_at_most_and_all_others_a_right() {
        for row in [&LIST_BUCKETS, &SERVICE_PREFLIGHT, &UNSUPPORTED] {
            let is_most = matches!(row.permission, Permission::Nothing | Permission::AnyKey);
            assert!(is_most, "{}", row.name);
        }
        let bucket = BUCKET.iter().map(|entry| &entry.row);
        for row in bucket.chain(OBJECT.iter().map(|entry| &entry.row)) {
            let is_open = matches!(row.permission, Permission::Nothing | Permission::AnyKey);
            assert_eq!(is_open, row.name == "Preflight", "{}", row.name);
        }
    }
}
