//! Parses the `Authorization` header of SigV4, and the parts of it that a query may hold.

use data_encoding::HEXLOWER;

use crate::canonical::{ALGORITHM, Scope, TERMINATOR};
use crate::{Code, S3Error};

/// Most headers that one signature may cover, as each takes a lookup. It is above the number of
/// headers in a head.
const MAX_SIGNED: usize = 128;

/// A well-formed header. Nothing is verified yet.
#[derive(Debug)]
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
        let (mut credential, mut signed, mut signature) = (None, None, None);
        for part in rest.split(',') {
            let (name, value) = part
                .trim()
                .split_once('=')
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
}

fn after_algorithm(value: &str) -> Result<&str, S3Error> {
    let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
    match scheme {
        ALGORITHM => Ok(rest),
        _ if scheme.starts_with("AWS4-") => Err(Code::NotImplemented
            .with_message("Of the version 4 signatures only AWS4-HMAC-SHA256 is implemented.")),
        _ => Err(Code::InvalidRequest.with_message(
            "The authorization mechanism is not supported. Please use AWS4-HMAC-SHA256.",
        )),
    }
}

/// `access-key/date/region/service/aws4_request`. An access key may hold `/`.
pub(super) fn parse_credential(credential: &str) -> Result<(&str, Scope<'_>), S3Error> {
    let mut access_key = credential;
    let mut last = || {
        let slash = access_key.bytes().rposition(|b| b == b'/');
        let split = slash.and_then(|at| access_key.split_at_checked(at));
        let (before, from) = split.ok_or_else(|| malformed("the credential has too few parts"))?;
        access_key = before;
        Ok::<_, S3Error>(from.get(1..).unwrap_or_default())
    };
    let (terminator, service, region, date) = (last()?, last()?, last()?, last()?);
    if terminator != TERMINATOR {
        return Err(malformed("the credential does not end with aws4_request"));
    }
    if access_key.is_empty() {
        return Err(malformed("the access key is empty"));
    }
    Ok((
        access_key,
        Scope {
            date,
            region,
            service,
        },
    ))
}

pub(super) fn parse_signed(list: &str) -> Result<Vec<&str>, S3Error> {
    let count = 1 + list.bytes().filter(|b| *b == b';').count();
    if count > MAX_SIGNED {
        return Err(malformed("too many headers are signed"));
    }
    let mut names = Vec::with_capacity(count);
    names.extend(list.split(';'));
    let lower = !list.bytes().any(|b| b.is_ascii_uppercase());
    let complete = !names.iter().any(|name| name.is_empty());
    if !lower || !complete || !names.is_sorted_by(|a, b| a < b) {
        return Err(malformed(
            "the signed headers must be lower-case, sorted and unique",
        ));
    }
    Ok(names)
}

pub(super) fn parse_signature(hex: &str) -> Result<[u8; 32], S3Error> {
    parse_hex(hex).ok_or_else(|| malformed("the signature is not 64 lower-case hex digits"))
}

/// Reads 64 lower-case hex digits.
pub(super) fn parse_hex(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    // Text of another length would not fit the array.
    if HEXLOWER.decode_len(hex.len()) != Ok(bytes.len()) {
        return None;
    }
    HEXLOWER.decode_mut(hex.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

pub(super) fn malformed(why: &str) -> S3Error {
    Code::AuthorizationHeaderMalformed
        .with_message(format!("The authorization header is malformed: {why}."))
}
