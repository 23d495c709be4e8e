//! Authenticates callers: SigV4 in the `Authorization` header, or in the query of a presigned
//! URL.
//!
//! Verification covers the head only. If the client signed a hash of the body,
//! [`Payload::Sha256`] has it, and the reader of the body must verify it ([`crate::Expected`]).
//! If it signed chunk by chunk, [`Payload::Streaming`] has the verifier of the chunks
//! ([`crate::StreamDecoder`]). Signatures of version 2 are refused.

mod credentials;
mod header;
mod keys;
mod query;

use std::sync::Arc;

use ::time::{Duration, OffsetDateTime};
use aws_lc_rs::{constant_time, hmac};
use prism_http::{Headers, Method, RequestHead};

pub use self::credentials::Credentials;
use self::header::{Authorization, malformed, parse_hex};
use self::keys::SigningKeys;
use self::query::Presigned;
pub use self::query::{MAX_EXPIRES_S, with_hoisted};
pub(crate) use self::query::{is_amz, is_presigned};
use crate::canonical::{Canonical, Scope};
use crate::query::Query;
use crate::streaming::{Chain, Form, Seed, Streaming};
use crate::time::{iso_basic, parse_http_date, parse_iso_basic};
use crate::{Code, ObjectOperation, Operation, S3Error};

/// Greatest difference between a request's time and this host's, either way.
pub const MAX_SKEW: Duration = Duration::minutes(15);

const SERVICE: &str = "s3";
const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// The value of `x-amz-content-sha256` for a body that is not hashed.
pub(crate) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The permissions of a caller without a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anonymous {
    /// Nothing.
    #[default]
    Deny,
    /// Read objects and list the keys of a bucket, but not list buckets.
    Read,
    /// The same if the bucket's policy allows it to everybody. The caller of this crate asks
    /// the policy ([`crate::Policy`]).
    ByPolicy,
}

/// The caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// A caller without a signature, whom [`Anonymous`] allows.
    Anonymous,
    /// The holder of the secret of this access key.
    AccessKey(String),
}

impl Principal {
    /// Checks that this caller may do this operation.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn authorize(&self, operation: &Operation) -> Result<(), S3Error> {
        use ObjectOperation::{Get, Head};
        match (self, operation) {
            (Self::AccessKey(_), _) => Ok(()),
            (_, Operation::Object(_, Get(read) | Head(read))) if !read.overrides.is_empty() => {
                Err(Code::InvalidRequest
                    .with_message("Headers of the answer can be set by signed requests only."))
            }
            _ if operation.may_be_anonymous() => Ok(()),
            _ => Err(Code::AccessDenied.into()),
        }
    }
}

/// The client's declaration about the bytes of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    Unsigned,
    /// They have this SHA-256, which the reader of the body must verify.
    Sha256([u8; 32]),
    /// They come in chunks. [`crate::StreamDecoder`] removes the framing, and verifies the
    /// signatures if there are any.
    Streaming(Streaming),
}

/// A value of `x-amz-content-sha256`, alone.
enum Announced {
    Unsigned,
    Sha256([u8; 32]),
    Streaming(Form),
}

/// The outcome of a successful authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// The caller.
    pub principal: Principal,
    /// The declaration about the body.
    pub payload: Payload,
}

/// Verifies requests for one region. It caches derived keys: for other credentials, make a new
/// one.
pub struct Authenticator {
    credentials: Credentials,
    region: String,
    anonymous: Anonymous,
    keys: SigningKeys,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator")
            .field("credentials", &self.credentials)
            .field("region", &self.region)
            .field("anonymous", &self.anonymous)
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    /// A verifier that accepts signatures for this region.
    #[must_use]
    pub fn new(credentials: Credentials, region: impl Into<String>, anonymous: Anonymous) -> Self {
        Self {
            credentials,
            region: region.into(),
            anonymous,
            keys: SigningKeys::default(),
        }
    }

    /// Verifies a request at the time `now`.
    ///
    /// # Errors
    /// The S3 error to answer with. About a secret an error says only that the signature does
    /// not match.
    pub fn authenticate(
        &self,
        head: &RequestHead,
        now: OffsetDateTime,
    ) -> Result<Authenticated, S3Error> {
        let query = Query::parse(head.query())?;
        let authorization = single(head.headers(), "authorization")?;
        if let Some(value) = authorization {
            if is_presigned(&query) || query.has("Signature") {
                return Err(Code::InvalidArgument.with_message(
                    "Only one authorization mechanism is allowed: header or query.",
                ));
            }
            return self.verify(head, &query, value, now);
        }
        match Presigned::parse(&query)? {
            Some(presigned) => self.verify_presigned(head, &query, &presigned, now),
            None => self.anonymous(head),
        }
    }

    fn verify_presigned(
        &self,
        head: &RequestHead,
        query: &Query,
        presigned: &Presigned<'_>,
        now: OffsetDateTime,
    ) -> Result<Authenticated, S3Error> {
        let authorization = &presigned.authorization;
        require_signed(head.headers(), &authorization.signed)?;
        presigned.check_time(now)?;
        let time = self.check_scope(presigned.time, authorization)?;
        let payload = presigned.payload(head.headers())?;
        let announced = Announced::parse(payload)?;
        if let Announced::Streaming(Form { signed: true, .. }) = announced {
            return Err(Code::InvalidRequest
                .with_message("The chunks of a presigned upload cannot be signed."));
        }
        let signed_query = query.without("X-Amz-Signature");
        let canonical = Canonical {
            method: head.method().as_str(),
            path: head.path(),
            query: &signed_query,
            headers: head.headers(),
            signed: &authorization.signed,
            payload,
        };
        let string_to_sign = canonical.string_to_sign(&time, authorization.scope)?;
        self.check_signature(authorization, &string_to_sign)?;
        Ok(Authenticated {
            principal: Principal::AccessKey(authorization.access_key.to_owned()),
            payload: announced.without_signatures(),
        })
    }

    fn anonymous(&self, head: &RequestHead) -> Result<Authenticated, S3Error> {
        // Browsers do not sign preflights.
        let allowed = match head.method() {
            Method::Options => true,
            Method::Get | Method::Head => self.anonymous != Anonymous::Deny,
            _ => false,
        };
        if allowed {
            return Ok(Authenticated {
                principal: Principal::Anonymous,
                payload: Payload::Unsigned,
            });
        }
        Err(Code::AccessDenied.into())
    }

    fn verify(
        &self,
        head: &RequestHead,
        query: &Query,
        value: &str,
        now: OffsetDateTime,
    ) -> Result<Authenticated, S3Error> {
        let authorization = Authorization::parse(value)?;
        let headers = head.headers();
        require_signed(headers, &authorization.signed)?;
        let time = request_time(headers)?;
        if (now - time).abs() > MAX_SKEW {
            return Err(Code::RequestTimeTooSkewed.into());
        }
        let time_text = self.check_scope(time, &authorization)?;
        let payload_text = single(headers, CONTENT_SHA256)?.ok_or_else(|| {
            Code::MissingSecurityHeader.with_message("x-amz-content-sha256 is missing.")
        })?;
        let announced = Announced::parse(payload_text)?;
        let canonical = Canonical {
            method: head.method().as_str(),
            path: head.path(),
            query,
            headers,
            signed: &authorization.signed,
            payload: payload_text,
        };
        let string_to_sign = canonical.string_to_sign(&time_text, authorization.scope)?;
        self.check_signature(&authorization, &string_to_sign)?;
        let payload = self.payload(announced, &authorization, time)?;
        let principal = Principal::AccessKey(authorization.access_key.to_owned());
        Ok(Authenticated { principal, payload })
    }

    /// The verifier of a body's chunks, from the seed of the node that verified the request.
    ///
    /// # Errors
    /// `InvalidAccessKeyId` if the caller is not known here.
    pub fn chain(&self, access_key: &str, seed: Seed) -> Result<Chain, S3Error> {
        let time = iso_basic(seed.time);
        let scope = Scope {
            date: time.get(..8).unwrap_or_default(),
            region: &self.region,
            service: SERVICE,
        };
        let key = self.signing_key(access_key, scope)?;
        Ok(Chain::new((*key).clone(), time.clone(), scope, seed))
    }

    /// The payload, with the verifier of signed chunks. The scope is checked already.
    fn payload(
        &self,
        announced: Announced,
        authorization: &Authorization<'_>,
        time: OffsetDateTime,
    ) -> Result<Payload, S3Error> {
        let Announced::Streaming(Form {
            signed: true,
            trailer,
        }) = announced
        else {
            return Ok(announced.without_signatures());
        };
        let seed = Seed {
            signature: authorization.signature,
            time,
        };
        let chain = self.chain(authorization.access_key, seed)?;
        let chain = Some(Box::new(chain));
        Ok(Payload::Streaming(Streaming { trailer, chain }))
    }

    /// Checks the scope, and returns the request's time in the form that is signed.
    fn check_scope(
        &self,
        time: OffsetDateTime,
        authorization: &Authorization<'_>,
    ) -> Result<String, S3Error> {
        let text = iso_basic(time);
        let scope = &authorization.scope;
        if scope.region != self.region {
            let (got, want) = (scope.region, &self.region);
            let why = format!("the region '{got}' is wrong; expecting '{want}'");
            return Err(malformed(&why).in_region(want));
        }
        if scope.service != SERVICE {
            return Err(malformed("the service must be s3"));
        }
        if !text.starts_with(scope.date) || scope.date.len() != 8 {
            return Err(malformed(
                "the date of the credential is not that of the request",
            ));
        }
        Ok(text)
    }

    fn check_signature(
        &self,
        authorization: &Authorization<'_>,
        string_to_sign: &str,
    ) -> Result<(), S3Error> {
        let key = self.signing_key(authorization.access_key, authorization.scope)?;
        let expected = hmac::sign(&key, string_to_sign.as_bytes());
        constant_time::verify_slices_are_equal(expected.as_ref(), &authorization.signature)
            .map_err(|_| Code::SignatureDoesNotMatch.into())
    }

    fn signing_key(&self, access_key: &str, scope: Scope<'_>) -> Result<Arc<hmac::Key>, S3Error> {
        let secret = self.credentials.secret(access_key);
        let secret = secret.ok_or(Code::InvalidAccessKeyId)?;
        Ok(self.keys.key(access_key, secret, scope))
    }
}

/// Checks that `Host` and all present `x-amz-*` headers are signed.
fn require_signed(headers: &Headers, signed: &[&str]) -> Result<(), S3Error> {
    if headers.get("x-amz-security-token").is_some() {
        return Err(Code::InvalidToken.into());
    }
    let is_signed = |name: &[u8]| {
        let mut alike = signed.iter().filter(|s| s.len() == name.len());
        alike.any(|s| name.eq_ignore_ascii_case(s.as_bytes()))
    };
    let mut must = headers.with_prefix("x-amz-");
    if must.any(|(name, _)| !is_signed(name)) || !is_signed(b"host") {
        return Err(Code::AccessDenied
            .with_message("There were headers present in the request which were not signed."));
    }
    Ok(())
}

fn request_time(headers: &Headers) -> Result<OffsetDateTime, S3Error> {
    let time = match single(headers, "x-amz-date")? {
        Some(text) => parse_iso_basic(text),
        None => {
            single(headers, "date")?.and_then(|t| parse_http_date(t).or_else(|| parse_iso_basic(t)))
        }
    };
    time.ok_or_else(|| {
        Code::AccessDenied.with_message("A valid x-amz-date or Date header is needed.")
    })
}

impl Announced {
    fn parse(text: &str) -> Result<Self, S3Error> {
        if text == UNSIGNED {
            return Ok(Self::Unsigned);
        }
        if let Some(form) = Form::parse(text) {
            return Ok(Self::Streaming(form));
        }
        if Form::is_announced(text.as_bytes()) {
            return Err(Code::NotImplemented.with_message(format!(
                "A body in chunks of the form {text:.64} is not implemented."
            )));
        }
        parse_hex(text).map(Self::Sha256).ok_or_else(|| {
            Code::InvalidArgument.with_message(
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a SHA-256 in lower-case hex, \
                 or name a form of chunks.",
            )
        })
    }

    /// The payload without a verifier of chunks.
    fn without_signatures(self) -> Payload {
        match self {
            Self::Unsigned => Payload::Unsigned,
            Self::Sha256(hash) => Payload::Sha256(hash),
            Self::Streaming(Form { trailer, .. }) => Payload::Streaming(Streaming {
                trailer,
                chain: None,
            }),
        }
    }
}

/// The value, as text, of a header that may be present once.
pub(crate) fn single<'a>(headers: &'a Headers, name: &str) -> Result<Option<&'a str>, S3Error> {
    let mut values = headers.get_all(name);
    let (first, second) = (values.next(), values.next());
    let invalid =
        |what: &str| Code::InvalidRequest.with_message(format!("The header {name} {what}."));
    if second.is_some() {
        return Err(invalid("is present more than once"));
    }
    first
        .map(|v| std::str::from_utf8(v).map_err(|_| invalid("is not UTF-8")))
        .transpose()
}
