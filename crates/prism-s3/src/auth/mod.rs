//! Authenticates callers: SigV4 in the `Authorization` header, or in the query of a presigned
//! URL.
//!
//! Verification covers the head only. If the client signed a hash of the body,
//! [`Payload::Sha256`] has it, and the reader of the body must verify it ([`crate::Expected`]).
//! If it signed chunk by chunk, [`Payload::Streaming`] has the verifier of the chunks
//! ([`crate::StreamDecoder`]). Signatures of version 2 are refused.

mod header;
mod keys;
mod query;

use std::collections::HashMap;
use std::sync::Arc;

use ::time::OffsetDateTime;
use aws_lc_rs::{constant_time, hmac};
use prism_http::{Method, RequestHead};
pub use prism_proto::facts::Caller as Principal;

use self::header::{Authorization, Signed, malformed};
use self::keys::Secret;
pub use self::query::with_hoisted;
use crate::canonical::{Canonical, SERVICE, Scope, UNSIGNED};
use crate::fields::{parse_hex, single};
use crate::query::Query;
use crate::streaming::{Chain, Form, Seed, Streaming, is_announced};
use crate::time::iso_basic;
use crate::{Code, S3Error};

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

/// The outcome of a successful authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// The caller.
    pub principal: Principal,
    /// The declaration about the body.
    pub payload: Payload,
}

impl Authenticated {
    /// Whether the caller has not signed the request.
    pub fn is_anonymous(&self) -> bool {
        self.principal == Principal::Anonymous
    }
}

/// Verifies requests for one region. It caches derived keys: for other credentials, make a new
/// one. It cannot be printed, and wipes secrets on drop.
pub struct Authenticator {
    /// By access key.
    secrets: HashMap<String, Secret>,
    region: String,
}

impl Authenticator {
    /// A verifier that accepts signatures for this region, by these access keys and secrets.
    pub fn new<'s>(
        credentials: impl IntoIterator<Item = (&'s str, &'s str)>,
        region: impl Into<String>,
    ) -> Self {
        let credentials = credentials.into_iter();
        let secrets = credentials.map(|(key, secret)| (key.to_owned(), Secret::new(secret)));
        Self {
            secrets: secrets.collect(),
            region: region.into(),
        }
    }

    /// Verifies a request with this query at the time `now`. A preflight has no caller: browsers
    /// send it to a presigned URL, whose signature is that of the request that follows.
    ///
    /// # Errors
    /// The S3 error to answer with. About a secret an error says only that the signature does
    /// not match.
    pub fn authenticate(
        &self,
        head: &RequestHead,
        query: &Query,
        now: OffsetDateTime,
    ) -> Result<Authenticated, S3Error> {
        if *head.method() == Method::OPTIONS {
            return Ok(Authenticated {
                principal: Principal::Anonymous,
                payload: Payload::Unsigned,
            });
        }
        let signed = match single(head.headers(), "authorization")? {
            Some(_) if query.is_presigned() || query.has("Signature") => {
                return Err(Code::InvalidArgument.with_message(
                    "Only one authorization mechanism is allowed: header or query.",
                ));
            }
            Some(value) => Some(Signed::parse(value, head.headers())?),
            None => query::signed(head, query)?,
        };
        match signed {
            Some(signed) => self.verify(head, query, &signed, now),
            None => anonymous(head),
        }
    }

    fn verify(
        &self,
        head: &RequestHead,
        query: &Query,
        signed: &Signed<'_>,
        now: OffsetDateTime,
    ) -> Result<Authenticated, S3Error> {
        signed.check_time(now)?;
        let authorization = &signed.authorization;
        let time = self.check_scope(signed.time, authorization)?;
        let content = signed.content(head)?;
        let (mut payload, signs_chunks) = announced(content)?;
        if signs_chunks && signed.of_url.is_some() {
            return Err(Code::InvalidRequest
                .with_message("The chunks of a presigned upload cannot be signed."));
        }
        let canonical = Canonical {
            method: head.method().as_str(),
            path: head.path(),
            query,
            headers: head.headers(),
            signed: &authorization.signed,
            payload: content,
        };
        let string_to_sign = canonical.string_to_sign(&time, authorization.scope)?;
        self.check_signature(authorization, &string_to_sign)?;
        if let Payload::Streaming(streaming) = &mut payload
            && signs_chunks
        {
            let seed = Seed {
                signature: authorization.signature,
                // A valid signature is never older than 1970.
                time_s: signed.time.unix_timestamp().try_into().unwrap_or_default(),
            };
            let chain = self.chain(authorization.access_key, seed)?;
            streaming.chain = Some(Box::new(chain));
        }
        let principal = Principal::AccessKey(authorization.access_key.to_owned());
        Ok(Authenticated { principal, payload })
    }

    /// The verifier of a body's chunks, from the seed of the node that verified the request.
    ///
    /// # Errors
    /// `InvalidAccessKeyId` if the caller is not known here; `AccessDenied` if the seed has no
    /// possible time.
    pub fn chain(&self, access_key: &str, seed: Seed) -> Result<Chain, S3Error> {
        let time = i64::try_from(seed.time_s).ok();
        let time = time.and_then(|time| OffsetDateTime::from_unix_timestamp(time).ok());
        let time = iso_basic(time.ok_or(Code::AccessDenied)?);
        let scope = Scope {
            date: time.get(..8).unwrap_or_default(),
            region: &self.region,
            service: SERVICE,
        };
        let key = self.signing_key(access_key, scope)?;
        Ok(Chain::new((*key).clone(), time.clone(), scope, seed))
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
            let got = scope.region;
            let want = &self.region;
            let why = format!("the region '{got}' is wrong; expecting '{want}'");
            return Err(malformed(&why).with_detail("Region", want));
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
        let secret = self.secrets.get(access_key);
        let secret = secret.ok_or(Code::InvalidAccessKeyId)?;
        Ok(secret.signing_key(scope))
    }
}

/// The outcome for a request without a signature.
fn anonymous(head: &RequestHead) -> Result<Authenticated, S3Error> {
    let payload = match single(head.headers(), "x-amz-content-sha256")? {
        None => Payload::Unsigned,
        Some(content) => match announced(content)? {
            (payload, false) => payload,
            // Chunks are signed by somebody.
            (_, true) => return Err(Code::AccessDenied.into()),
        },
    };
    Ok(Authenticated {
        principal: Principal::Anonymous,
        payload,
    })
}

/// The payload of a value of `x-amz-content-sha256`, and whether its chunks are signed.
fn announced(text: &str) -> Result<(Payload, bool), S3Error> {
    if let Some(hash) = parse_hex(text) {
        return Ok((Payload::Sha256(hash), false));
    }
    if text == UNSIGNED {
        return Ok((Payload::Unsigned, false));
    }
    if let Some(Form { signed, trailer }) = Form::parse(text) {
        let chain = None;
        return Ok((Payload::Streaming(Streaming { trailer, chain }), signed));
    }
    if is_announced(text.as_bytes()) {
        return Err(Code::NotImplemented.with_message(format!(
            "A body in chunks of the form {text:.64} is not implemented."
        )));
    }
    Err(Code::InvalidArgument.with_message(
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a SHA-256 in lower-case hex, \
         or name a form of chunks.",
    ))
}
