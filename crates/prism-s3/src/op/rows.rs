//! The tables of requests to buckets, and to objects and uploads.

use prism_http::{Method, RequestHead};

use super::params::{upload_id, version_id};
use super::{
    Attributes, BucketOperation, CompleteUpload, CopyObject, CopyPart, CreateUpload, Document,
    ListParts, ObjectOperation, PutObject, ReadObject, UploadPart,
};
use crate::S3Error;
use crate::conditions::Conditions;
use crate::list::{ListMarked, ListObjects};
use crate::query::Query;

/// The parts of a request that decide its operation.
pub(super) struct Request<'r> {
    pub(super) head: &'r RequestHead,
    pub(super) query: &'r Query,
    /// The source, if the request copies an object.
    pub(super) source: Option<&'r str>,
}

type Read<T> = fn(&Request<'_>) -> Result<T, S3Error>;

/// One kind of request. The first row that fits a request counts.
pub(super) struct Row<T> {
    method: Method,
    /// Parameters that a request of this kind has.
    named_by: &'static [&'static str],
    /// Parameters that it may have besides.
    optional: &'static [&'static str],
    /// Whether the body is an object's data, or the request copies it from another object.
    pub(super) takes_data: bool,
    /// Reads the operation.
    pub(super) read: Read<T>,
}

impl<T> Row<T> {
    const fn new(
        method: Method,
        named_by: &'static [&'static str],
        optional: &'static [&'static str],
        read: Read<T>,
    ) -> Self {
        Self {
            method,
            named_by,
            optional,
            takes_data: false,
            read,
        }
    }

    const fn data(named_by: &'static [&'static str], read: Read<T>) -> Self {
        let mut row = Self::new(Method::Put, named_by, &[], read);
        row.takes_data = true;
        row
    }

    pub(super) fn fits(&self, method: &Method, query: &Query) -> bool {
        self.method == *method && self.named_by.iter().all(|name| query.has(name))
    }

    pub(super) fn knows(&self, parameter: &str) -> bool {
        self.named_by.contains(&parameter) || self.optional.contains(&parameter)
    }
}

pub(super) static BUCKET: [Row<BucketOperation>; 16] = {
    use BucketOperation as Op;
    use Document::{Cors, Policy};
    use Method::{Delete, Get, Head, Post, Put};
    [
        Row::new(Get, &["location"], &[], |_| Ok(Op::GetLocation)),
        Row::new(Get, &["versioning"], &[], |_| Ok(Op::GetVersioning)),
        Row::new(Put, &["versioning"], &[], |_| Ok(Op::PutVersioning)),
        Row::new(Get, &["versions"], &ListMarked::OF_VERSIONS, |r| {
            ListMarked::versions(r.query).map(Op::ListVersions)
        }),
        Row::new(Get, &["uploads"], &ListMarked::OF_UPLOADS, |r| {
            ListMarked::uploads(r.query).map(Op::ListUploads)
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

const VERSION: &[&str] = &["versionId"];

pub(super) static OBJECT: [Row<ObjectOperation>; 13] = {
    use Method::{Delete, Get, Head, Post, Put};
    use ObjectOperation as Op;
    [
        Row::new(Post, &["uploads"], &[], |r| {
            CreateUpload::parse(r).map(Op::CreateUpload)
        }),
        Row::data(&["uploadId", "partNumber"], |r| match r.source {
            None => UploadPart::parse(r).map(Op::UploadPart),
            Some(source) => CopyPart::parse(r, source).map(Op::CopyPart),
        }),
        Row::new(Get, &["uploadId"], &ListParts::PARAMETERS, |r| {
            ListParts::parse(r).map(Op::ListParts)
        }),
        Row::new(Post, &["uploadId"], &[], |r| {
            CompleteUpload::parse(r).map(Op::CompleteUpload)
        }),
        Row::new(Delete, &["uploadId"], &[], |r| {
            let upload = upload_id(r);
            Ok(Op::AbortUpload { upload })
        }),
        Row::new(Get, &["tagging"], VERSION, |r| {
            version_id(r).map(|version| Op::GetTagging { version })
        }),
        Row::new(Put, &["tagging"], VERSION, |r| {
            version_id(r).map(|version| Op::PutTagging { version })
        }),
        Row::new(Delete, &["tagging"], VERSION, |r| {
            version_id(r).map(|version| Op::DeleteTagging { version })
        }),
        Row::new(Get, &["attributes"], VERSION, |r| {
            Attributes::parse(r).map(Op::GetAttributes)
        }),
        Row::new(Get, &[], &ReadObject::PARAMETERS, |r| {
            ReadObject::parse(r).map(Op::Get)
        }),
        Row::new(Head, &[], &ReadObject::PARAMETERS, |r| {
            ReadObject::parse(r).map(Op::Head)
        }),
        Row::data(&[], |r| match r.source {
            None => PutObject::parse(r).map(Op::Put),
            Some(source) => CopyObject::parse(r, source).map(|copy| Op::Copy(Box::new(copy))),
        }),
        Row::new(Delete, &[], VERSION, |r| {
            Ok(Op::Delete {
                version: version_id(r)?,
                conditions: Conditions::from_headers(r.head.headers()),
            })
        }),
    ]
};
