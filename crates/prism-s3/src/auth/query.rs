//! SigV4 in the query: presigned URLs.
//!
//! Reference: "Authenticating Requests: Using Query Parameters" in the Amazon S3
//! API reference.

use ::time::Duration;
use prism_http::{Headers, Limits, Method, RequestHead};

use super::header::{
    Authorization, OfUrl, Signed, other_mechanism, parse_credential, parse_signature, parse_signed,
};
use crate::canonical::{ALGORITHM, UNSIGNED};
use crate::checksum::has_value;
use crate::query::{Query, is_amz};
use crate::time::parse_iso_basic;
use crate::{Code, S3Error};

/// The longest life of a URL, in seconds: a week.
const MAX_EXPIRES_S: u32 = 7 * 24 * 3600;

/// The parameter of a presigned URL that declares the body's hash.
const CONTENT: &str = "X-Amz-Content-Sha256";

/// The parameters of presigning, which are no parameters of the operation.
const OWN: [&str; 8] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
    "X-Amz-Security-Token",
    CONTENT,
];

/// Compares names without regard to case, as for headers.
fn is(name: &str, other: &str) -> bool {
    name.eq_ignore_ascii_case(other)
}

/// Moves the headers in a presigned query to its head. A client may put headers into the query,
/// where the signature covers them; they count like other headers. A header that the head
/// already has stays. The body's hash is moved too, so that its reader finds it in one place.
/// Checksums are not moved: S3 reads them from headers only, and SDKs presign that of an empty
/// body. Forwarding the request in this form or as it came has the same result. `None` if there
/// are no such headers, and for a preflight, whose query is that of the request that follows.
///
/// # Errors
/// `InvalidRequest` for a parameter that cannot be a header, `MetadataTooLarge` for more headers
/// than a request may have.
pub fn with_hoisted(head: &RequestHead, query: &Query) -> Result<Option<RequestHead>, S3Error> {
    if !query.is_presigned() || *head.method() == Method::OPTIONS {
        return Ok(None);
    }
    let own = |name: &str| {
        let mut own = OWN.iter().filter(|own| **own != CONTENT);
        own.any(|own| is(own, name))
    };
    let is_header = |name: &str| {
        let is_checksum = has_value(&name.to_ascii_lowercase());
        is_amz(name) && !own(name) && !is_checksum
    };
    let mut extra = Headers::new();
    for (name, value) in query.iter().filter(|(name, _)| is_header(name)) {
        if head.headers().get(name).is_none() {
            extra.append(name, value).map_err(|_| {
                Code::InvalidRequest
                    .with_message(format!("The parameter {name:.64} cannot be a header."))
            })?;
        }
    }
    if extra.is_empty() {
        return Ok(None);
    }
    // The limit of headers is the same wherever they stand.
    let mut whole = head.clone();
    let headers = whole.headers_mut();
    let added = (extra.iter()).try_for_each(|(name, value)| headers.append(name, value));
    if added.is_err() || headers.len() > Limits::DEFAULT.headers {
        return Err(Code::MetadataTooLarge.with_message("The query holds too many headers."));
    }
    Ok(Some(whole))
}

/// Reads the signature in a query. `None` if it holds none at all.
pub(super) fn signed<'r>(
    head: &'r RequestHead,
    query: &'r Query,
) -> Result<Option<Signed<'r>>, S3Error> {
    if query.has("Signature") && query.has("AWSAccessKeyId") {
        return Err(other_mechanism());
    }
    if !query.iter().any(|(name, _)| OWN.contains(&name)) {
        return Ok(None);
    }
    for name in OWN {
        if query.iter().filter(|(other, _)| is(name, other)).count() > 1 {
            return Err(malformed(&format!("{name} is there twice")));
        }
    }
    if query.has("X-Amz-Security-Token") {
        return Err(Code::InvalidToken.into());
    }
    let get = |name: &str| {
        let value = query.get(name);
        value.ok_or_else(|| malformed(&format!("{name} is missing")))
    };
    if get("X-Amz-Algorithm")? != ALGORITHM {
        return Err(malformed("X-Amz-Algorithm must be AWS4-HMAC-SHA256"));
    }
    let (access_key, scope) = parse_credential(get("X-Amz-Credential")?).map_err(as_parameter)?;
    let time = parse_iso_basic(get("X-Amz-Date")?);
    let life = get("X-Amz-Expires")?.parse::<u32>().ok();
    let life = life.filter(|seconds| (1..=MAX_EXPIRES_S).contains(seconds));
    let life = life
        .ok_or_else(|| malformed("X-Amz-Expires must be a number of seconds from 1 to 604800"))?;
    let authorization = Authorization {
        access_key,
        scope,
        signed: parse_signed(get("X-Amz-SignedHeaders")?).map_err(as_parameter)?,
        signature: parse_signature(get("X-Amz-Signature")?).map_err(as_parameter)?,
    };
    let time = time.ok_or_else(|| malformed("X-Amz-Date must be as in 20130524T000000Z"))?;
    authorization.require_signed(head.headers())?;
    let content = query.iter().find(|(name, _)| is(CONTENT, name));
    Ok(Some(Signed {
        authorization,
        time,
        of_url: Some(OfUrl {
            life: Duration::seconds(life.into()),
            content: content.map_or(UNSIGNED, |(_, value)| value),
        }),
    }))
}

fn malformed(why: &str) -> S3Error {
    Code::AuthorizationQueryParametersError.with_message(format!(
        "The query parameters of the signature are malformed: {why}."
    ))
}

/// Turns an error about a part that headers have too into one about the query.
fn as_parameter(error: S3Error) -> S3Error {
    Code::AuthorizationQueryParametersError.with_message(error.message().to_owned())
}
