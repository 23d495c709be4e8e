//! The operations on buckets.

use Body::Skipped;

use super::{
    DELETE, DOCUMENT, Entry, GET, HEAD, LONG_LIST, OPTIONS, OWNER, POST, PUT, READ, READ_OR_OWNER,
    WRITE, table,
};
use crate::list::{ListMarked, ListObjects};
use crate::op::row::{Answerer, Body, Permission, Request, Row};
use crate::op::{BucketOperation as Op, Document};
use crate::policy::actions::Actions;
use crate::rights::Rights;

table! { BUCKET of Op:
    GET_LOCATION "GetBucketLocation" Op::GetLocation =>
        Request::new(GET, &["location"]), OneOf(Rights::all(), [GetBucketLocation]), Skipped, Backend,
        |_| Ok(Op::GetLocation);
    GET_VERSIONING "GetBucketVersioning" Op::GetVersioning =>
        Request::new(GET, &["versioning"]),
        OneOf(READ_OR_OWNER, [GetBucketVersioning]), Skipped, Backend,
        |_| Ok(Op::GetVersioning);
    PUT_VERSIONING "PutBucketVersioning" Op::PutVersioning =>
        Request::new(PUT, &["versioning"]),
        OneOf(OWNER, [PutBucketVersioning]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::PutVersioning);
    LIST_VERSIONS "ListObjectVersions" Op::ListVersions(_) =>
        Request::new(GET, &["versions"]).with(&ListMarked::OF_VERSIONS),
        OneOf(READ, [ListBucketVersions]), DOCUMENT, ReaderWithAll,
        |given| ListMarked::versions(given.query).map(Op::ListVersions);
    LIST_UPLOADS "ListMultipartUploads" Op::ListUploads(_) =>
        Request::new(GET, &["uploads"]).with(&ListMarked::OF_UPLOADS),
        OneOf(WRITE, [ListBucketMultipartUploads]), DOCUMENT, ReaderWithAll,
        |given| ListMarked::uploads(given.query).map(Op::ListUploads);
    DELETE_OBJECTS "DeleteObjects" Op::DeleteObjects =>
        Request::new(POST, &["delete"]),
        ForSomeKey(WRITE, [DeleteObject, DeleteObjectVersion]), LONG_LIST, ReaderWithAll,
        |_| Ok(Op::DeleteObjects);
    GET_CORS "GetBucketCors" Op::GetDocument(Document::Cors) =>
        Request::new(GET, &["cors"]), OneOf(OWNER, [GetBucketCors]), Skipped, Backend,
        |_| Ok(Op::GetDocument(Document::Cors));
    PUT_CORS "PutBucketCors" Op::PutDocument(Document::Cors) =>
        Request::new(PUT, &["cors"]), OneOf(OWNER, [PutBucketCors]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::PutDocument(Document::Cors));
    // As in S3, which has no action of its own for the deletion.
    DELETE_CORS "DeleteBucketCors" Op::DeleteDocument(Document::Cors) =>
        Request::new(DELETE, &["cors"]), OneOf(OWNER, [PutBucketCors]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::DeleteDocument(Document::Cors));
    GET_POLICY "GetBucketPolicy" Op::GetDocument(Document::Policy) =>
        Request::new(GET, &["policy"]), OfPolicy(OWNER, [GetBucketPolicy]), Skipped, Backend,
        |_| Ok(Op::GetDocument(Document::Policy));
    PUT_POLICY "PutBucketPolicy" Op::PutDocument(Document::Policy) =>
        Request::new(PUT, &["policy"]), OfPolicy(OWNER, [PutBucketPolicy]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::PutDocument(Document::Policy));
    DELETE_POLICY "DeleteBucketPolicy" Op::DeleteDocument(Document::Policy) =>
        Request::new(DELETE, &["policy"]),
        OfPolicy(OWNER, [DeleteBucketPolicy]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::DeleteDocument(Document::Policy));
    GET_POLICY_STATUS "GetBucketPolicyStatus" Op::GetPolicyStatus =>
        Request::new(GET, &["policyStatus"]),
        OneOf(READ_OR_OWNER, [GetBucketPolicyStatus]), Skipped, Backend,
        |_| Ok(Op::GetPolicyStatus);
    LIST_OBJECTS "ListObjects" Op::ListObjects(_) =>
        Request::new(GET, &[]).with(&ListObjects::PARAMETERS),
        OneOf(READ, [ListBucket]), DOCUMENT, ReaderWithAll,
        |given| ListObjects::parse(given.query).map(Op::ListObjects);
    CREATE "CreateBucket" Op::Create =>
        Request::new(PUT, &[]), OneOf(OWNER, [CreateBucket]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::Create);
    DELETE_BUCKET "DeleteBucket" Op::Delete =>
        Request::new(DELETE, &[]), OneOf(OWNER, [DeleteBucket]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::Delete);
    // Clients look for a bucket, and its region, before they write to it.
    HEAD_BUCKET "HeadBucket" Op::Head =>
        Request::new(HEAD, &[]), OneOf(Rights::all(), [ListBucket]), Skipped, Backend,
        |_| Ok(Op::Head);
    PREFLIGHT "Preflight" Op::Preflight =>
        Request::new(OPTIONS, &[]), Nothing, Skipped, Backend,
        |_| Ok(Op::Preflight);
}
