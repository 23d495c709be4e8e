//! Which operation a request is.
//!
//! Path style (`/bucket/key`) always works; virtual-host style
//! (`bucket.domain/key`) where a domain is configured. Names are decoded once.

use prism_http::{BodyFraming, Headers, Method, RequestHead};

use crate::conditions::Conditions;
use crate::list::ListObjects;
use crate::query::{Query, decode};
use crate::streaming::{Form, decoded_length};
use crate::unsupported::{self, Level};
use crate::{BucketName, Code, ObjectHeaders, ObjectKey, RangeSpec, S3Error};

/// The largest object that one PUT can make: 5 GiB, as in S3.
pub const MAX_PUT_BYTES: u64 = 5 << 30;

/// A request, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "bucket and key are the same everywhere")]
pub enum Operation {
    /// `GET /`.
    ListBuckets,
    /// `PUT /bucket`. The body may hold a location constraint:
    /// [`crate::xml::parse_location_constraint`].
    CreateBucket { bucket: BucketName },
    /// `DELETE /bucket`.
    DeleteBucket { bucket: BucketName },
    /// `HEAD /bucket`.
    HeadBucket { bucket: BucketName },
    /// `GET /bucket?location`.
    GetBucketLocation { bucket: BucketName },
    /// `GET /bucket`, with or without `list-type=2`.
    ListObjects {
        bucket: BucketName,
        list: ListObjects,
    },
    /// `PUT /bucket/key`.
    PutObject {
        bucket: BucketName,
        key: ObjectKey,
        put: PutObject,
    },
    /// `GET /bucket/key`.
    GetObject {
        bucket: BucketName,
        key: ObjectKey,
        read: ReadObject,
    },
    /// `HEAD /bucket/key`.
    HeadObject {
        bucket: BucketName,
        key: ObjectKey,
        read: ReadObject,
    },
    /// `DELETE /bucket/key`.
    DeleteObject { bucket: BucketName, key: ObjectKey },
    /// Known or unknown, but not served: [`Operation::not_implemented`].
    Unsupported { what: String },
}

/// What comes with a PUT besides its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutObject {
    /// To be kept with the object.
    pub headers: ObjectHeaders,
    /// `If-Match` and `If-None-Match`.
    pub conditions: Conditions,
    /// Bytes of data, without any framing; `None` if the transfer coding is
    /// chunked and nothing tells. The reader must hold that to
    /// [`MAX_PUT_BYTES`].
    pub length: Option<u64>,
}

/// What a GET or HEAD asks of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadObject {
    /// The range, if one counts.
    pub range: Option<RangeSpec>,
    /// Conditions to weigh first.
    pub conditions: Conditions,
}

impl Operation {
    /// Understands a request. With a `base_domain` (as `s3.example.org`, without
    /// port), a host below it names the bucket.
    ///
    /// # Errors
    /// If the request is malformed, in the terms of S3. What is merely not
    /// served comes back as [`Operation::Unsupported`].
    pub fn parse(head: &RequestHead, base_domain: Option<&str>) -> Result<Self, S3Error> {
        let query = Query::parse(head.query())?;
        let path = decode(head.path())?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = match virtual_bucket(head.host(), base_domain) {
            Some(bucket) => (bucket, path),
            None => path.split_once('/').unwrap_or((path, "")),
        };
        match (bucket, key) {
            ("", "") => Ok(service(head.method(), &query)),
            ("", _) => Err(Code::InvalidBucketName.into()),
            (bucket, "") => bucket_operation(head, &query, BucketName::parse(bucket)?),
            (bucket, key) => object_operation(
                head,
                &query,
                BucketName::parse(bucket)?,
                ObjectKey::parse(key)?,
            ),
        }
    }

    /// The name of the operation in S3's terms, for logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ListBuckets => "ListBuckets",
            Self::CreateBucket { .. } => "CreateBucket",
            Self::DeleteBucket { .. } => "DeleteBucket",
            Self::HeadBucket { .. } => "HeadBucket",
            Self::GetBucketLocation { .. } => "GetBucketLocation",
            Self::ListObjects { .. } => "ListObjects",
            Self::PutObject { .. } => "PutObject",
            Self::GetObject { .. } => "GetObject",
            Self::HeadObject { .. } => "HeadObject",
            Self::DeleteObject { .. } => "DeleteObject",
            Self::Unsupported { .. } => "Unsupported",
        }
    }

    /// The bucket and key, where there are: what placement needs.
    #[must_use]
    pub const fn object(&self) -> Option<(&BucketName, &ObjectKey)> {
        match self {
            Self::PutObject { bucket, key, .. }
            | Self::GetObject { bucket, key, .. }
            | Self::HeadObject { bucket, key, .. }
            | Self::DeleteObject { bucket, key } => Some((bucket, key)),
            _ => None,
        }
    }

    /// The error that answers an unsupported operation.
    #[must_use]
    pub fn not_implemented(what: &str) -> S3Error {
        S3Error::with_message(Code::NotImplemented, format!("{what} is not implemented."))
    }
}

/// The bucket that the host names, if it lies below the domain.
fn virtual_bucket<'a>(host: Option<&'a str>, base_domain: Option<&str>) -> Option<&'a str> {
    let host = host?;
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let split = name.len().checked_sub(base_domain?.len())?;
    let (bucket, domain) = name.split_at_checked(split)?;
    let below = domain.eq_ignore_ascii_case(base_domain?);
    bucket
        .strip_suffix('.')
        .filter(|bucket| below && !bucket.is_empty())
}

fn unsupported(what: impl Into<String>) -> Operation {
    Operation::Unsupported { what: what.into() }
}

fn service(method: &Method, query: &Query) -> Operation {
    if let Some(what) = unsupported::parameter(method, Level::Service, query, false) {
        return unsupported(what);
    }
    match method {
        Method::Get => Operation::ListBuckets,
        _ => unsupported(format!("{method} of the service")),
    }
}

fn bucket_operation(
    head: &RequestHead,
    query: &Query,
    bucket: BucketName,
) -> Result<Operation, S3Error> {
    let method = head.method();
    let only_location = query
        .iter()
        .all(|(name, _)| matches!(name, "location" | "x-id"));
    if *method == Method::Get && query.has("location") && only_location {
        return Ok(Operation::GetBucketLocation { bucket });
    }
    let listing = *method == Method::Get;
    if let Some(what) = unsupported::parameter(method, Level::Bucket, query, listing)
        .or_else(|| unsupported::header(head.headers()))
        .or_else(|| unsupported::streaming(head.headers()))
    {
        return Ok(unsupported(what));
    }
    match method {
        Method::Get => Ok(Operation::ListObjects {
            bucket,
            list: ListObjects::parse(query)?,
        }),
        Method::Put => Ok(Operation::CreateBucket { bucket }),
        Method::Delete => Ok(Operation::DeleteBucket { bucket }),
        Method::Head => Ok(Operation::HeadBucket { bucket }),
        Method::Post => Ok(unsupported("PostObject")),
        other => other_method(other),
    }
}

fn object_operation(
    head: &RequestHead,
    query: &Query,
    bucket: BucketName,
    key: ObjectKey,
) -> Result<Operation, S3Error> {
    let method = head.method();
    if let Some(what) = unsupported::parameter(method, Level::Object, query, false)
        .or_else(|| unsupported::header(head.headers()))
        .or_else(|| match is_streaming_put(head) {
            true => None,
            false => unsupported::streaming(head.headers()),
        })
    {
        return Ok(unsupported(what));
    }
    match method {
        Method::Get => Ok(Operation::GetObject {
            bucket,
            key,
            read: ReadObject::from_headers(head.headers()),
        }),
        Method::Head => Ok(Operation::HeadObject {
            bucket,
            key,
            read: ReadObject::from_headers(head.headers()),
        }),
        Method::Put => Ok(Operation::PutObject {
            bucket,
            key,
            put: PutObject::from_head(head)?,
        }),
        Method::Delete if !Conditions::from_headers(head.headers()).is_empty() => {
            Ok(unsupported("a conditional DeleteObject"))
        }
        Method::Delete => Ok(Operation::DeleteObject { bucket, key }),
        Method::Post => Ok(unsupported("POST of an object")),
        other => other_method(other),
    }
}

/// A PUT whose body comes in chunks of [`crate::streaming`].
fn is_streaming_put(head: &RequestHead) -> bool {
    let announced = head.headers().get("x-amz-content-sha256");
    *head.method() == Method::Put && announced.is_some_and(Form::is_announced)
}

fn other_method(method: &Method) -> Result<Operation, S3Error> {
    match method {
        Method::Options => Ok(unsupported("CORS preflight")),
        _ => Err(Code::MethodNotAllowed.into()),
    }
}

impl ReadObject {
    fn from_headers(headers: &Headers) -> Self {
        Self {
            range: RangeSpec::from_headers(headers),
            conditions: Conditions::from_headers(headers),
        }
    }
}

impl PutObject {
    fn from_head(head: &RequestHead) -> Result<Self, S3Error> {
        let length = match head.framing() {
            BodyFraming::None => return Err(Code::MissingContentLength.into()),
            BodyFraming::Length(n) => Some(n),
            BodyFraming::Chunked => None,
        };
        let length = match is_streaming_put(head) {
            true => Some(decoded_length(head.headers())?),
            false => length,
        };
        if length.is_some_and(|n| n > MAX_PUT_BYTES) {
            return Err(Code::EntityTooLarge.into());
        }
        Ok(Self {
            headers: ObjectHeaders::from_request(head.headers())?,
            conditions: Conditions::from_headers(head.headers()),
            length,
        })
    }
}
