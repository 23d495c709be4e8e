//! Operations on the service and on buckets.

use prism_http::{Method, RequestHead};

use super::{Document, Operation, Target, other_method, unsupported};
use crate::list::{ListObjects, ListUploads, ListVersions};
use crate::query::Query;
use crate::unsupported::{self as un, Level};
use crate::{BucketName, S3Error};

pub(super) fn service(method: &Method, query: &Query) -> Operation {
    if let Some(what) = un::parameter(method, Level::Service, query, &[]) {
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
        return Ok(Operation::Preflight { bucket });
    }
    let kind = Kind::of(method, query);
    if let Some(what) = un::parameter(method, Level::Bucket, query, kind.parameters(method))
        .or_else(|| un::header(head.headers(), Target::Bucket))
        .or_else(|| un::streaming(head.headers()))
    {
        return Ok(unsupported(what));
    }
    Ok(match (kind, method) {
        (Kind::Location, _) => Operation::GetBucketLocation { bucket },
        (Kind::Versioning, Method::Put) => Operation::PutBucketVersioning { bucket },
        (Kind::Versions, _) => {
            let list = ListVersions::parse(query)?;
            Operation::ListObjectVersions { bucket, list }
        }
        (Kind::Versioning, _) => Operation::GetBucketVersioning { bucket },
        (Kind::Uploads, _) => {
            let list = ListUploads::parse(query)?;
            Operation::ListMultipartUploads { bucket, list }
        }
        (Kind::Delete, _) => Operation::DeleteObjects { bucket },
        (Kind::Document(document), Method::Get) => {
            Operation::GetBucketDocument { bucket, document }
        }
        (Kind::Document(document), Method::Put) => {
            Operation::PutBucketDocument { bucket, document }
        }
        (Kind::Document(document), _) => Operation::DeleteBucketDocument { bucket, document },
        (Kind::Plain, Method::Get) => {
            let list = ListObjects::parse(query)?;
            Operation::ListObjects { bucket, list }
        }
        (Kind::Plain, Method::Put) => Operation::CreateBucket { bucket },
        (Kind::Plain, Method::Delete) => Operation::DeleteBucket { bucket },
        (Kind::Plain, Method::Head) => Operation::HeadBucket { bucket },
        (Kind::Plain, Method::Post) => unsupported("PostObject"),
        (Kind::Plain, _) => return other_method(),
    })
}

/// What of a bucket a request is about.
#[derive(Clone, Copy)]
enum Kind {
    Location,
    Versioning,
    Versions,
    Uploads,
    Delete,
    Document(Document),
    Plain,
}

impl Kind {
    fn of(method: &Method, query: &Query) -> Self {
        match method {
            Method::Get if query.has("location") => Self::Location,
            Method::Get | Method::Put if query.has("versioning") => Self::Versioning,
            Method::Get if query.has("versions") => Self::Versions,
            Method::Get if query.has("uploads") => Self::Uploads,
            Method::Post if query.has("delete") => Self::Delete,
            Method::Get | Method::Put | Method::Delete => Document::ALL
                .into_iter()
                .find(|document| query.has(document.as_str()))
                .map_or(Self::Plain, Self::Document),
            _ => Self::Plain,
        }
    }

    const fn parameters(self, method: &Method) -> &'static [&'static str] {
        match self {
            Self::Location => &["location"],
            Self::Versioning => &["versioning"],
            Self::Versions => &ListVersions::PARAMETERS,
            Self::Uploads => &ListUploads::PARAMETERS,
            Self::Delete => &["delete"],
            Self::Document(Document::Cors) => &["cors"],
            Self::Document(Document::Policy) => &["policy"],
            Self::Plain if matches!(method, Method::Get) => &ListObjects::PARAMETERS,
            Self::Plain => &[],
        }
    }
}
