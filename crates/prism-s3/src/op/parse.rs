//! Tells which operation a request is.

use prism_http::{Method, RequestHead};

use super::row::Body;
use super::rows::{BUCKET, Entry, Given, OBJECT, UNSET};
use super::{BucketOperation, ObjectRef, Operation};
use crate::fields::single;
use crate::list::ListBuckets;
use crate::query::{Query, decode};
use crate::unsupported::{self as un, Target};
use crate::{BucketName, Code, ObjectKey, S3Error};

impl Operation {
    /// Reads the operation of a request.
    ///
    /// # Errors
    /// If the request is malformed, in the terms of S3. A request that is not served gives
    /// [`Operation::Unsupported`].
    pub fn parse(head: &RequestHead) -> Result<Self, S3Error> {
        Self::of(head, &Query::parse(head.query())?)
    }

    /// The same of a head with this query.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of(head: &RequestHead, query: &Query) -> Result<Self, S3Error> {
        let path = decode(head.path())?;
        let (bucket, key) = match names(&path) {
            ("", "") => return of_service(head.method(), query),
            (bucket, "") => (BucketName::parse(bucket)?, None),
            (bucket, key) => (BucketName::parse(bucket)?, Some(ObjectKey::parse(key)?)),
        };
        if *head.method() == Method::OPTIONS {
            return Ok(Self::Bucket(bucket, BucketOperation::Preflight));
        }
        un::canned_acl(head.headers())?;
        let Some(key) = key else {
            let mut unset = UNSET.iter().map(|entry| &entry.row.request);
            if unset.any(|request| request.fits(head.method(), query)) {
                let wrap = |configuration| Self::Unset(bucket, configuration);
                return find(UNSET, Target::Bucket, head, query, wrap);
            }
            let wrap = |operation| Self::Bucket(bucket, operation);
            return find(BUCKET, Target::Bucket, head, query, wrap);
        };
        un::storage_class(head.headers())?;
        let wrap = |operation| Self::Object(ObjectRef { bucket, key }, operation);
        find(OBJECT, Target::Object, head, query, wrap)
    }

    /// The bucket that a request names, even if the rest of the request is invalid.
    pub fn bucket_named(head: &RequestHead) -> Option<BucketName> {
        let path = decode(head.path()).ok()?;
        BucketName::parse(names(&path).0).ok()
    }
}

/// The bucket and the key that a path names. Both may be empty.
fn names(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').unwrap_or((path, ""))
}

fn unsupported(what: impl Into<String>) -> Operation {
    Operation::Unsupported { what: what.into() }
}

fn of_service(method: &Method, query: &Query) -> Result<Operation, S3Error> {
    if *method == Method::OPTIONS {
        return Ok(Operation::Preflight);
    }
    let is_known = |name: &str| *method == Method::GET && ListBuckets::PARAMETERS.contains(&name);
    if let Some(what) = un::parameter(method, Target::Service, query, is_known) {
        return Ok(unsupported(what));
    }
    match *method {
        Method::GET => ListBuckets::parse(query).map(Operation::ListBuckets),
        _ => Ok(unsupported(format!("{method} of the service"))),
    }
}

/// Reads the operation of a request to a bucket or object.
fn find<T>(
    table: &[&Entry<T>],
    target: Target,
    head: &RequestHead,
    query: &Query,
    wrap: impl FnOnce(T) -> Operation,
) -> Result<Operation, S3Error> {
    let method = head.method();
    let headers = head.headers();
    let mut fitting = table
        .iter()
        .filter(|entry| entry.row.request.fits(method, query));
    let mut entry = fitting.clone().find(|entry| !entry.row.request.copies);
    let mut source = None;
    if takes_data(entry) {
        source = single(headers, "x-amz-copy-source")?;
    }
    if source.is_some() {
        entry = fitting.find(|entry| entry.row.request.copies);
    }
    let is_known = |name: &str| entry.is_some_and(|entry| entry.row.request.knows(name));
    let copies = if source.is_some() {
        &un::COPY[..]
    } else {
        entry.map_or(&[][..], |entry| entry.row.request.ignored)
    };
    let unknown = un::parameter(method, target, query, is_known)
        .or_else(|| un::header(headers, target, copies, takes_data(entry)));
    if let Some(what) = unknown {
        return Ok(unsupported(what));
    }
    match (entry, method) {
        (Some(entry), _) => (entry.read)(&Given {
            head,
            query,
            source,
        })
        .map(wrap),
        (None, &Method::POST) if target == Target::Bucket => Ok(unsupported("PostObject")),
        (None, &Method::POST) => Ok(unsupported("POST of an object")),
        (None, _) => Err(Code::MethodNotAllowed.into()),
    }
}

/// Whether the body of a request is an object's data.
fn takes_data<T>(entry: Option<&&Entry<T>>) -> bool {
    entry.is_some_and(|entry| entry.row.body == Body::Data)
}
