//! The operations on buckets.

use Body::Skipped;
use Method::{Delete, Get, Head, Options, Post, Put};
use prism_http::Method;

use super::{DOCUMENT, Entry, LONG_LIST, OWNER, READ, READ_OR_OWNER, WRITE, table};
use crate::list::{ListMarked, ListObjects};
use crate::op::row::{Answerer, Body, Permission, Request, Row};
use crate::op::{BucketOperation as Op, Document};
use crate::policy::actions::{Action, Actions};
use crate::rights::Rights;

table! { BUCKET of Op:
    GET_LOCATION "GetBucketLocation" Op::GetLocation =>
        Request::new(Get, &["location"]), OneOf(Rights::ALL, [GetBucketLocation]), Skipped, Backend,
        |_| Ok(Op::GetLocation);
    GET_VERSIONING "GetBucketVersioning" Op::GetVersioning =>
        Request::new(Get, &["versioning"]),
        OneOf(READ_OR_OWNER, [GetBucketVersioning]), Skipped, Backend,
        |_| Ok(Op::GetVersioning);
    PUT_VERSIONING "PutBucketVersioning" Op::PutVersioning =>
        Request::new(Put, &["versioning"]),
        OneOf(OWNER, [PutBucketVersioning]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::PutVersioning);
    LIST_VERSIONS "ListObjectVersions" Op::ListVersions(_) =>
        Request::new(Get, &["versions"]).with(&ListMarked::OF_VERSIONS),
        OneOf(READ, [ListBucketVersions]), DOCUMENT, ReaderWithAll,
        |given| ListMarked::versions(given.query).map(Op::ListVersions);
    LIST_UPLOADS "ListMultipartUploads" Op::ListUploads(_) =>
        Request::new(Get, &["uploads"]).with(&ListMarked::OF_UPLOADS),
        OneOf(WRITE, [ListBucketMultipartUploads]), DOCUMENT, ReaderWithAll,
        |given| ListMarked::uploads(given.query).map(Op::ListUploads);
    DELETE_OBJECTS "DeleteObjects" Op::DeleteObjects =>
        Request::new(Post, &["delete"]),
        ForSomeKey(WRITE, [DeleteObject, DeleteObjectVersion]), LONG_LIST, ReaderWithAll,
        |_| Ok(Op::DeleteObjects);
    GET_CORS "GetBucketCors" Op::GetDocument(Document::Cors) =>
        Request::new(Get, &["cors"]), OneOf(OWNER, [GetBucketCors]), Skipped, Backend,
        |_| Ok(Op::GetDocument(Document::Cors));
    PUT_CORS "PutBucketCors" Op::PutDocument(Document::Cors) =>
        Request::new(Put, &["cors"]), OneOf(OWNER, [PutBucketCors]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::PutDocument(Document::Cors));
    // As in S3, which has no action of its own for the deletion.
    DELETE_CORS "DeleteBucketCors" Op::DeleteDocument(Document::Cors) =>
        Request::new(Delete, &["cors"]), OneOf(OWNER, [PutBucketCors]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::DeleteDocument(Document::Cors));
    GET_POLICY "GetBucketPolicy" Op::GetDocument(Document::Policy) =>
        Request::new(Get, &["policy"]), OfPolicy(OWNER, [GetBucketPolicy]), Skipped, Backend,
        |_| Ok(Op::GetDocument(Document::Policy));
    PUT_POLICY "PutBucketPolicy" Op::PutDocument(Document::Policy) =>
        Request::new(Put, &["policy"]), OfPolicy(OWNER, [PutBucketPolicy]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::PutDocument(Document::Policy));
    DELETE_POLICY "DeleteBucketPolicy" Op::DeleteDocument(Document::Policy) =>
        Request::new(Delete, &["policy"]),
        OfPolicy(OWNER, [DeleteBucketPolicy]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::DeleteDocument(Document::Policy));
    LIST_OBJECTS "ListObjects" Op::ListObjects(_) =>
        Request::new(Get, &[]).with(&ListObjects::PARAMETERS),
        OneOf(READ, [ListBucket]), DOCUMENT, ReaderWithAll,
        |given| ListObjects::parse(given.query).map(Op::ListObjects);
    CREATE "CreateBucket" Op::Create =>
        Request::new(Put, &[]), OneOf(OWNER, [CreateBucket]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::Create);
    DELETE_BUCKET "DeleteBucket" Op::Delete =>
        Request::new(Delete, &[]), OneOf(OWNER, [DeleteBucket]), DOCUMENT, ReaderWithAll,
        |_| Ok(Op::Delete);
    // Clients look for a bucket, and its region, before they write to it.
    HEAD_BUCKET "HeadBucket" Op::Head =>
        Request::new(Head, &[]), OneOf(Rights::ALL, [ListBucket]), Skipped, Backend,
        |_| Ok(Op::Head);
    PREFLIGHT "Preflight" Op::Preflight =>
        Request::new(Options, &[]), Nothing, Skipped, Backend,
        |_| Ok(Op::Preflight);
}
