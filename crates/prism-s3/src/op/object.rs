//! Requests to objects and uploads.

use prism_http::{Method, RequestHead};

use super::params::{upload_id, version_id};
use super::row::{Request, Row, other_method};
use super::{
    Attributes, BucketOperation, CompleteUpload, CopyObject, CopyPart, CopySource, CreateUpload,
    ListParts, ObjectOperation, ObjectRef, Operation, PutObject, ReadObject, Target, UploadPart,
    is_streaming, unsupported,
};
use crate::S3Error;
use crate::auth::single;
use crate::conditions::Conditions;
use crate::query::Query;
use crate::unsupported::{self as un, Level};

const VERSION: &[&str] = &["versionId"];

static ROWS: [Row<ObjectOperation>; 13] = {
    use Method::{Delete, Get, Head, Post, Put};
    use ObjectOperation as Op;
    [
        Row::new(Post, &["uploads"], &[], |r| {
            CreateUpload::parse(r.head.headers()).map(Op::CreateUpload)
        }),
        Row::data(&["uploadId", "partNumber"], part),
        Row::new(Get, &["uploadId"], &ListParts::PARAMETERS, |r| {
            ListParts::parse(r.query).map(Op::ListParts)
        }),
        Row::new(Post, &["uploadId"], &[], |r| {
            CompleteUpload::parse(r.head.headers(), r.query).map(Op::CompleteUpload)
        }),
        Row::new(Delete, &["uploadId"], &[], |r| {
            let upload = upload_id(r.query);
            Ok(Op::AbortUpload { upload })
        }),
        Row::new(Get, &["tagging"], VERSION, |r| {
            let version = version_id(r.query)?;
            Ok(Op::GetTagging { version })
        }),
        Row::new(Put, &["tagging"], VERSION, |r| {
            let version = version_id(r.query)?;
            Ok(Op::PutTagging { version })
        }),
        Row::new(Delete, &["tagging"], VERSION, |r| {
            let version = version_id(r.query)?;
            Ok(Op::DeleteTagging { version })
        }),
        Row::new(Get, &["attributes"], VERSION, |r| {
            Attributes::parse(r.head.headers(), r.query).map(Op::GetAttributes)
        }),
        Row::new(Get, &[], &ReadObject::PARAMETERS, |r| {
            ReadObject::parse(r.head, r.query).map(Op::Get)
        }),
        Row::new(Head, &[], &ReadObject::PARAMETERS, |r| {
            ReadObject::parse(r.head, r.query).map(Op::Head)
        }),
        Row::data(&[], put),
        Row::new(Delete, &[], VERSION, |r| {
            Ok(Op::Delete {
                version: version_id(r.query)?,
                conditions: Conditions::from_headers(r.head.headers()),
            })
        }),
    ]
};

pub(super) fn object(
    head: &RequestHead,
    query: &Query,
    object: ObjectRef,
) -> Result<Operation, S3Error> {
    let (method, headers) = (head.method(), head.headers());
    if *method == Method::Options {
        return Ok(Operation::Bucket(object.bucket, BucketOperation::Preflight));
    }
    un::storage_class(headers)?;
    let row = Row::find(&ROWS, method, query);
    let takes_data = row.is_some_and(Row::takes_data);
    let source = match takes_data {
        true => single(headers, "x-amz-copy-source")?,
        false => None,
    };
    let target = match source {
        Some(_) => Target::Copy,
        None => Target::Object,
    };
    let streams = takes_data && source.is_none() && is_streaming(head);
    let is_known = |name: &str| row.is_some_and(|row| row.knows(name));
    if let Some(what) = un::parameter(method, Level::Object, query, is_known)
        .or_else(|| un::header(headers, target))
        .or_else(|| match streams {
            true => None,
            false => un::streaming(headers),
        })
    {
        return Ok(unsupported(what));
    }
    match (row, method) {
        (Some(row), _) => {
            let operation = (row.read)(&Request {
                head,
                query,
                source,
            })?;
            Ok(Operation::Object(object, operation))
        }
        (None, Method::Post) => Ok(unsupported("POST of an object")),
        (None, _) => other_method(),
    }
}

fn put(request: &Request<'_>) -> Result<ObjectOperation, S3Error> {
    let Some(source) = request.source else {
        return PutObject::from_head(request.head).map(ObjectOperation::Put);
    };
    let source = CopySource::parse(source)?;
    let copy = CopyObject::parse(request.head.headers(), source)?;
    Ok(ObjectOperation::Copy(Box::new(copy)))
}

fn part(request: &Request<'_>) -> Result<ObjectOperation, S3Error> {
    let (head, query) = (request.head, request.query);
    let Some(source) = request.source else {
        return UploadPart::parse(head, query).map(ObjectOperation::UploadPart);
    };
    let source = CopySource::parse(source)?;
    CopyPart::parse(head.headers(), query, source).map(ObjectOperation::CopyPart)
}
