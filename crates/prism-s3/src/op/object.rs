//! Operations on objects and uploads.

use prism_http::{Method, RequestHead};

use super::params::{upload_id, version_id};
use super::{
    Attributes, CompleteUpload, CopyObject, CopyPart, CopySource, CreateUpload, ListParts,
    Operation, PutObject, ReadObject, Target, UploadPart, is_streaming, other_method, unsupported,
};
use crate::auth::single;
use crate::conditions::Conditions;
use crate::query::Query;
use crate::unsupported::{self as un, Level};
use crate::{BucketName, ObjectKey, S3Error};

/// What of an object a request is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `?uploads`: a new upload.
    Uploads,
    /// `?uploadId`: an upload.
    Upload,
    /// `?uploadId&partNumber`: a part of one.
    Part,
    Tagging,
    Attributes,
    Plain,
}

impl Kind {
    fn of(method: &Method, query: &Query) -> Self {
        match method {
            Method::Post if query.has("uploads") => Self::Uploads,
            Method::Put if query.has("uploadId") && query.has("partNumber") => Self::Part,
            Method::Get | Method::Post | Method::Delete if query.has("uploadId") => Self::Upload,
            Method::Get | Method::Put | Method::Delete if query.has("tagging") => Self::Tagging,
            Method::Get if query.has("attributes") => Self::Attributes,
            _ => Self::Plain,
        }
    }

    fn parameters(self, method: &Method) -> &'static [&'static str] {
        match (self, method) {
            (Self::Uploads, _) => &["uploads"],
            (Self::Upload, Method::Get) => &ListParts::PARAMETERS,
            (Self::Upload, _) => &["uploadId"],
            (Self::Part, _) => &["uploadId", "partNumber"],
            (Self::Tagging, _) => &["tagging", "versionId"],
            (Self::Attributes, _) => &["attributes", "versionId"],
            (Self::Plain, Method::Get | Method::Head) => &ReadObject::PARAMETERS,
            (Self::Plain, Method::Delete) => &["versionId"],
            (Self::Plain, _) => &[],
        }
    }

    /// Whether the body may come in chunks.
    fn takes_data(self, method: &Method) -> bool {
        *method == Method::Put && matches!(self, Self::Plain | Self::Part)
    }
}

pub(super) fn object(
    head: &RequestHead,
    query: &Query,
    bucket: BucketName,
    key: ObjectKey,
) -> Result<Operation, S3Error> {
    let (method, headers) = (head.method(), head.headers());
    if *method == Method::Options {
        return Ok(Operation::Preflight { bucket });
    }
    un::storage_class(headers)?;
    let kind = Kind::of(method, query);
    let source = match kind.takes_data(method) {
        true => single(headers, "x-amz-copy-source")?,
        false => None,
    };
    let target = match source {
        Some(_) => Target::Copy,
        None => Target::Object,
    };
    let streams = kind.takes_data(method) && source.is_none() && is_streaming(head);
    if let Some(what) = un::parameter(method, Level::Object, query, kind.parameters(method))
        .or_else(|| un::header(headers, target))
        .or_else(|| match streams {
            true => None,
            false => un::streaming(headers),
        })
    {
        return Ok(unsupported(what));
    }
    if let Some(source) = source {
        return copy(head, query, (bucket, key), (kind, source));
    }
    Ok(match (kind, method) {
        (Kind::Uploads, _) => Operation::CreateMultipartUpload {
            bucket,
            key,
            create: CreateUpload::parse(headers)?,
        },
        (Kind::Part, _) => Operation::UploadPart {
            bucket,
            key,
            part: UploadPart::parse(head, query)?,
        },
        (Kind::Upload, Method::Get) => Operation::ListParts {
            bucket,
            key,
            list: ListParts::parse(query)?,
        },
        (Kind::Upload, Method::Post) => Operation::CompleteMultipartUpload {
            bucket,
            key,
            complete: CompleteUpload::parse(headers, query)?,
        },
        (Kind::Upload, _) => Operation::AbortMultipartUpload {
            bucket,
            key,
            upload: upload_id(query),
        },
        (Kind::Tagging, _) => {
            let version = version_id(query)?;
            match method {
                Method::Get => Operation::GetObjectTagging {
                    bucket,
                    key,
                    version,
                },
                Method::Put => Operation::PutObjectTagging {
                    bucket,
                    key,
                    version,
                },
                _ => Operation::DeleteObjectTagging {
                    bucket,
                    key,
                    version,
                },
            }
        }
        (Kind::Attributes, _) => Operation::GetObjectAttributes {
            bucket,
            key,
            attributes: Attributes::parse(headers, query)?,
        },
        (Kind::Plain, _) => return plain(head, query, bucket, key),
    })
}

fn plain(
    head: &RequestHead,
    query: &Query,
    bucket: BucketName,
    key: ObjectKey,
) -> Result<Operation, S3Error> {
    Ok(match head.method() {
        Method::Get => Operation::GetObject {
            bucket,
            key,
            read: ReadObject::parse(head, query)?,
        },
        Method::Head => Operation::HeadObject {
            bucket,
            key,
            read: ReadObject::parse(head, query)?,
        },
        Method::Put => Operation::PutObject {
            bucket,
            key,
            put: PutObject::from_head(head)?,
        },
        Method::Delete => Operation::DeleteObject {
            bucket,
            key,
            version: version_id(query)?,
            conditions: Conditions::from_headers(head.headers()),
        },
        Method::Post => unsupported("POST of an object"),
        _ => return other_method(),
    })
}

fn copy(
    head: &RequestHead,
    query: &Query,
    (bucket, key): (BucketName, ObjectKey),
    (kind, source): (Kind, &str),
) -> Result<Operation, S3Error> {
    let source = CopySource::parse(source)?;
    Ok(match kind {
        Kind::Part => Operation::UploadPartCopy {
            bucket,
            key,
            part: CopyPart::parse(head.headers(), query, source)?,
        },
        _ => Operation::CopyObject {
            bucket,
            key,
            copy: CopyObject::parse(head.headers(), source)?,
        },
    })
}
