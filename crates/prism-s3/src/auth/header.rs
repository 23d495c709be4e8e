//! Parses the `Authorization` header of SigV4, and the parts of it that a query may hold.

use ::time::{Duration, OffsetDateTime};
use prism_http::{BodyFraming, Headers, RequestHead};

use crate::canonical::{ALGORITHM, Scope, TERMINATOR};
use crate::fields::{
    CONTENT_SHA256, EMPTY_SHA256, parse_hex, pieces, single, split_at_first, split_at_last,
};
use crate::time::{parse_http_date, parse_iso_basic};
use crate::{Code, S3Error};

/// Most headers that one signature may cover, as each takes a lookup. It is above the number of
/// headers in a head.
const MAX_SIGNED: usize = 128;
/// Headers that a signature usually covers, at most.
const USUALLY_SIGNED: usize = 8;

/// Greatest difference between a request's time and this host's, either way.
const MAX_SKEW: Duration = Duration::minutes(15);

/// A request with a well-formed signature. Nothing is verified yet.
pub(super) struct Signed<'a> {
    pub(super) authorization: Authorization<'a>,
    pub(super) time: OffsetDateTime,
    /// The parameters of a presigned URL, if the signature is in the query.
    pub(super) of_url: Option<OfUrl<'a>>,
}

/// The parameters that only presigned URLs have.
pub(super) struct OfUrl<'a> {
    /// The time for which the URL is valid.
    pub(super) life: Duration,
    /// The declared hash of the body, in the form of `x-amz-content-sha256`.
    pub(super) content: &'a str,
}

impl<'a> Signed<'a> {
    /// Reads the signature in the `Authorization` header.
    pub(super) fn parse(value: &'a str, headers: &Headers) -> Result<Self, S3Error> {
        let authorization = Authorization::parse(value)?;
        authorization.require_signed(headers)?;
        Ok(Self {
            authorization,
            time: request_time(headers)?,
            of_url: None,
        })
    }

    /// Checks that the signature counts at the time `now`.
    pub(super) fn check_time(&self, now: OffsetDateTime) -> Result<(), S3Error> {
        let denied = |message| Err(Code::AccessDenied.with_message(message));
        match &self.of_url {
            None if (now - self.time).abs() > MAX_SKEW => Err(Code::RequestTimeTooSkewed.into()),
            Some(_) if self.time - now > MAX_SKEW => denied("Request is not valid yet."),
            Some(url) if now - self.time > url.life => denied("Request has expired."),
            _ => Ok(()),
        }
    }

    /// The value of `x-amz-content-sha256`. A presigned URL may have it as a parameter; usually
    /// its body is not signed.
    ///
    /// S3 asks for the header in every request. curl sends none before version 8, and signs the
    /// hash of no bytes: that is right for a request without a body.
    pub(super) fn content<'h>(&self, head: &'h RequestHead) -> Result<&'h str, S3Error>
    where
        'a: 'h,
    {
        let in_url = self.of_url.as_ref().map(|url| url.content);
        if let Some(content) = single(head.headers(), CONTENT_SHA256)?.or(in_url) {
            return Ok(content);
        }
        match head.framing() {
            BodyFraming::None | BodyFraming::Length(0) => Ok(EMPTY_SHA256),
            BodyFraming::Length(_) | BodyFraming::Chunked => Err(Code::MissingSecurityHeader
                .with_message(
                    "A request with a body needs the header x-amz-content-sha256. With curl, add \
                     -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD'.",
                )),
        }
    }
}

/// The parts of a signature.
pub(super) struct Authorization<'a> {
    pub(super) access_key: &'a str,
    pub(super) scope: Scope<'a>,
    /// Lower-case, strictly ascending.
    pub(super) signed: Vec<&'a str>,
    pub(super) signature: [u8; 32],
}

impl<'a> Authorization<'a> {
    pub(super) fn parse(value: &'a str) -> Result<Self, S3Error> {
        let rest = after_algorithm(value)?;
        let mut credential = None;
        let mut signed = None;
        let mut signature = None;
        for part in pieces(rest, b',') {
            let (name, value) = split_at_first(part.trim_ascii(), b'=')
                .ok_or_else(|| malformed("a part has no value"))?;
            let slot = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed,
                "Signature" => &mut signature,
                _ => return Err(malformed("it has an unknown part")),
            };
            if slot.replace(value).is_some() {
                return Err(malformed("it has a part twice"));
            }
        }
        let (access_key, scope) =
            parse_credential(credential.ok_or_else(|| malformed("Credential is missing"))?)?;
        Ok(Self {
            access_key,
            scope,
            signed: parse_signed(signed.ok_or_else(|| malformed("SignedHeaders is missing"))?)?,
            signature: parse_signature(
                signature.ok_or_else(|| malformed("Signature is missing"))?,
            )?,
        })
    }

    /// Checks that `Host` and all present `x-amz-*` headers are signed.
    pub(super) fn require_signed(&self, headers: &Headers) -> Result<(), S3Error> {
        if headers.get("x-amz-security-token").is_some() {
            return Err(Code::InvalidToken.into());
        }
        let is_signed = |name: &[u8]| {
            let mut alike = self.signed.iter().filter(|s| s.len() == name.len());
            alike.any(|s| name.eq_ignore_ascii_case(s.as_bytes()))
        };
        let mut must = headers.with_prefix("x-amz-");
        if must.any(|(name, _)| !is_signed(name)) || !is_signed(b"host") {
            return Err(Code::AccessDenied
                .with_message("There were headers present in the request which were not signed."));
        }
        Ok(())
    }
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

fn after_algorithm(value: &str) -> Result<&str, S3Error> {
    let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
    match scheme {
        ALGORITHM => Ok(rest),
        _ if scheme.starts_with("AWS4-") => Err(Code::NotImplemented
            .with_message("Of the version 4 signatures only AWS4-HMAC-SHA256 is implemented.")),
        _ => Err(other_mechanism()),
    }
}

pub(super) fn other_mechanism() -> S3Error {
    Code::InvalidRequest
        .with_message("The authorization mechanism is not supported. Please use AWS4-HMAC-SHA256.")
}

/// `access-key/date/region/service/aws4_request`. An access key may hold `/`.
pub(super) fn parse_credential(credential: &str) -> Result<(&str, Scope<'_>), S3Error> {
    let mut access_key = credential;
    let mut last = || -> Result<&str, S3Error> {
        let (before, part) = split_at_last(access_key, b'/')
            .ok_or_else(|| malformed("the credential has too few parts"))?;
        access_key = before;
        Ok(part)
    };
    let (terminator, service, region, date) = (last()?, last()?, last()?, last()?);
    if terminator != TERMINATOR {
        return Err(malformed("the credential does not end with aws4_request"));
    }
    if access_key.is_empty() {
        return Err(malformed("the access key is empty"));
    }
    let scope = Scope {
        date,
        region,
        service,
    };
    Ok((access_key, scope))
}

pub(super) fn parse_signed(list: &str) -> Result<Vec<&str>, S3Error> {
    let mut names = Vec::with_capacity(USUALLY_SIGNED);
    names.extend(pieces(list, b';').take(MAX_SIGNED + 1));
    if names.len() > MAX_SIGNED {
        return Err(malformed("too many headers are signed"));
    }
    let has_upper = list
        .bytes()
        .fold(false, |has, byte| has | byte.is_ascii_uppercase());
    let complete = !names.iter().any(|name| name.is_empty());
    if has_upper || !complete || !names.is_sorted_by(|a, b| a < b) {
        return Err(malformed(
            "the signed headers must be lower-case, sorted and unique",
        ));
    }
    Ok(names)
}

pub(super) fn parse_signature(hex: &str) -> Result<[u8; 32], S3Error> {
    parse_hex(hex).ok_or_else(|| malformed("the signature is not 64 lower-case hex digits"))
}

pub(super) fn malformed(why: &str) -> S3Error {
    Code::AuthorizationHeaderMalformed
        .with_message(format!("The authorization header is malformed: {why}."))
}
