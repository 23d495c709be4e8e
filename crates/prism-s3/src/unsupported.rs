//! Recognizes requests that are not served.
//!
//! Parameters and headers that change the meaning of a request are understood or refused, never
//! ignored: a `PUT` with `?tagging` must not become an object. [`MEANINGFUL`] has the parameters
//! of S3 that do, besides those that begin with `x-amz-`. S3 ignores all other parameters, such as
//! `?ver=6.5` of a web page, and so does Prism for objects and for reads of buckets. A change of a
//! bucket with a parameter that Prism does not know is refused, because S3 may have given it a
//! meaning since.

use prism_http::{Headers, Method};

use crate::fields::CONTENT_SHA256;
use crate::query::{Query, is_amz};
use crate::streaming::{DECODED_LENGTH, TRAILER, is_announced, is_streaming};
use crate::{Code, S3Error};

/// The kind of target that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Service,
    Bucket,
    Object,
}

/// The first unsupported parameter, as an operation's name or a description. Parameters of a
/// signature in the query are passed over.
pub(crate) fn parameter(
    method: &Method,
    target: Target,
    query: &Query,
    is_known: impl Fn(&str) -> bool,
) -> Option<String> {
    let is_signed = query.is_presigned();
    query
        .iter()
        .map(|(name, _)| name)
        .filter(|name| !(is_signed && is_amz(name)))
        .find(|name| !is_known(name) && !is_ignored(method, target, name))
        .map(|name| describe(method, target, name))
}

/// The parameters of S3 that name another operation, or change what one does.
const MEANINGFUL: [&str; 41] = [
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "partNumber",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// Whether a parameter has no effect, although the operation does not have it. Letter case does
/// not save a parameter that S3 would understand.
fn is_ignored(method: &Method, target: Target, name: &str) -> bool {
    // `x-id` repeats the operation's name.
    if name == "x-id" {
        return true;
    }
    let may_ignore = match target {
        Target::Service => false,
        Target::Bucket => matches!(*method, Method::GET | Method::HEAD),
        Target::Object => true,
    };
    let mut meaningful = MEANINGFUL.iter();
    may_ignore && !is_amz(name) && !meaningful.any(|other| other.eq_ignore_ascii_case(name))
}

fn describe(method: &Method, target: Target, name: &str) -> String {
    let target = match (target, method, name) {
        (Target::Object, &Method::POST, "select") => return "SelectObjectContent".to_owned(),
        (Target::Object, &Method::POST, "restore") => return "RestoreObject".to_owned(),
        (Target::Service, ..) => "the service",
        (Target::Bucket, ..) => "a bucket",
        (Target::Object, ..) => "an object",
    };
    format!("{method} of {target} with ?{name:.64}")
}

/// The first header that asks for an unsupported function. `copies` are the headers about copies
/// that the request may have, without `x-amz-`. Only an object's data may come in chunks: all other
/// operations would read the framing as input.
pub(crate) fn header(
    headers: &Headers,
    target: Target,
    copies: &[&str],
    takes_data: bool,
) -> Option<String> {
    let mut ours = headers.with_prefix("x-amz-");
    ours.find_map(|(name, value)| {
        // Most signed requests have no other headers of Amazon.
        if is_one_of(name, &USUAL) {
            return None;
        }
        if is_one_of(name, &[CONTENT_SHA256]) {
            let is_unsupported = !takes_data && is_announced(value);
            return is_unsupported.then(|| "a body in chunks for this operation".to_owned());
        }
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        if [DECODED_LENGTH, TRAILER].contains(&name.as_str()) {
            let is_unsupported = !is_streaming(headers);
            return is_unsupported.then(|| format!("the header {name} without a body in chunks"));
        }
        let short = name.strip_prefix("x-amz-")?;
        let is_unsupported = if COPY.contains(&short) {
            !copies.contains(&short)
        } else {
            is_unsupported(short, value, target)
        };
        is_unsupported.then(|| format!("the header {name:.64}"))
    })
}

/// S3's storage classes. Only `STANDARD` is served.
const STORAGE_CLASSES: [&str; 12] = [
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "GLACIER_IR",
    "DEEP_ARCHIVE",
    "OUTPOSTS",
    "SNOW",
    "EXPRESS_ONEZONE",
    "FSX_OPENZFS",
];

/// S3's canned ACLs. Prism serves the two that change nothing.
const CANNED_ACLS: [&str; 8] = [
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "aws-exec-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
    "log-delivery-write",
];

/// Checks that the storage class is one, if any is named.
pub(crate) fn storage_class(headers: &Headers) -> Result<(), S3Error> {
    match headers.get("x-amz-storage-class") {
        Some(named) if !names(&STORAGE_CLASSES, named) => Err(Code::InvalidStorageClass.into()),
        _ => Ok(()),
    }
}

/// Checks that the canned ACL is one, if any is named.
pub(crate) fn canned_acl(headers: &Headers) -> Result<(), S3Error> {
    match headers.get("x-amz-acl") {
        Some(named) if !names(&CANNED_ACLS, named) => {
            Err(Code::InvalidArgument.with_message("x-amz-acl is no canned ACL of S3."))
        }
        _ => Ok(()),
    }
}

fn names(known: &[&str], value: &[u8]) -> bool {
    known.iter().any(|one| one.as_bytes() == value)
}

/// Headers that are understood or have no effect.
const USUAL: [&str; 2] = ["x-amz-date", "x-amz-checksum-mode"];

fn is_one_of(name: &[u8], names: &[&str]) -> bool {
    let mut names = names.iter().filter(|other| other.len() == name.len());
    names.any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// Headers of a copy, without `x-amz-`.
pub(crate) const COPY: [&str; 8] = [
    "copy-source",
    "copy-source-if-match",
    "copy-source-if-none-match",
    "copy-source-if-modified-since",
    "copy-source-if-unmodified-since",
    "copy-source-range",
    "metadata-directive",
    "tagging-directive",
];

/// Whether a header is unsupported, by its name behind `x-amz-`.
fn is_unsupported(name: &str, value: &[u8], target: Target) -> bool {
    match name {
        "acl" => !matches!(value, b"private" | b"bucket-owner-full-control"),
        "storage-class" => value != b"STANDARD",
        "object-ownership" => value != b"BucketOwnerEnforced",
        "bucket-object-lock-enabled" => !value.eq_ignore_ascii_case(b"false"),
        "tagging" => target == Target::Bucket,
        "website-redirect-location" | "expected-bucket-owner" => true,
        "source-expected-bucket-owner" => true,
        "mfa" | "write-offset-bytes" => true,
        _ => [
            "copy-source",
            "server-side-encryption",
            "object-lock-",
            "grant-",
            "if-match-",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix)),
    }
}
