//! Requests to the service and to buckets.

use prism_http::{Method, RequestHead};

use super::row::{Request, Row, other_method};
use super::{BucketOperation, Document, Operation, Target, unsupported};
use crate::list::{ListObjects, ListUploads, ListVersions};
use crate::query::Query;
use crate::unsupported::{self as un, Level};
use crate::{BucketName, S3Error};

static ROWS: [Row<BucketOperation>; 16] = {
    use BucketOperation as Op;
    use Document::{Cors, Policy};
    use Method::{Delete, Get, Head, Post, Put};
    [
        Row::new(Get, &["location"], &[], |_| Ok(Op::GetLocation)),
        Row::new(Get, &["versioning"], &[], |_| Ok(Op::GetVersioning)),
        Row::new(Put, &["versioning"], &[], |_| Ok(Op::PutVersioning)),
        Row::new(Get, &["versions"], &ListVersions::PARAMETERS, |r| {
            ListVersions::parse(r.query).map(Op::ListVersions)
        }),
        Row::new(Get, &["uploads"], &ListUploads::PARAMETERS, |r| {
            ListUploads::parse(r.query).map(Op::ListUploads)
        }),
        Row::new(Post, &["delete"], &[], |_| Ok(Op::DeleteObjects)),
        Row::new(Get, &["cors"], &[], |_| Ok(Op::GetDocument(Cors))),
        Row::new(Put, &["cors"], &[], |_| Ok(Op::PutDocument(Cors))),
        Row::new(Delete, &["cors"], &[], |_| Ok(Op::DeleteDocument(Cors))),
        Row::new(Get, &["policy"], &[], |_| Ok(Op::GetDocument(Policy))),
        Row::new(Put, &["policy"], &[], |_| Ok(Op::PutDocument(Policy))),
        Row::new(Delete, &["policy"], &[], |_| Ok(Op::DeleteDocument(Policy))),
        Row::new(Get, &[], &ListObjects::PARAMETERS, |r| {
            ListObjects::parse(r.query).map(Op::ListObjects)
        }),
        Row::new(Put, &[], &[], |_| Ok(Op::Create)),
        Row::new(Delete, &[], &[], |_| Ok(Op::Delete)),
        Row::new(Head, &[], &[], |_| Ok(Op::Head)),
    ]
};

pub(super) fn service(method: &Method, query: &Query) -> Operation {
    if let Some(what) = un::parameter(method, Level::Service, query, |_| false) {
        return unsupported(what);
    }
    match method {
        Method::Get => Operation::ListBuckets,
        _ => unsupported(format!("{method} of the service")),
    }
}

pub(super) fn bucket(
    head: &RequestHead,
    query: &Query,
    bucket: BucketName,
) -> Result<Operation, S3Error> {
    let method = head.method();
    if *method == Method::Options {
        return Ok(Operation::Bucket(bucket, BucketOperation::Preflight));
    }
    let row = Row::find(&ROWS, method, query);
    let is_known = |name: &str| row.is_some_and(|row| row.knows(name));
    if let Some(what) = un::parameter(method, Level::Bucket, query, is_known)
        .or_else(|| un::header(head.headers(), Target::Bucket))
        .or_else(|| un::streaming(head.headers()))
    {
        return Ok(unsupported(what));
    }
    match (row, method) {
        (Some(row), _) => {
            let source = None;
            let operation = (row.read)(&Request {
                head,
                query,
                source,
            })?;
            Ok(Operation::Bucket(bucket, operation))
        }
        (None, Method::Post) => Ok(unsupported("PostObject")),
        (None, _) => other_method(),
    }
}
