//! The canonical request and the string to sign of SigV4 for S3, where the path is encoded once
//! and not normalized. [`crate::auth`] verifies with it, clients can sign with it.
//!
//! Reference: "Authenticating Requests: Using the Authorization Header" in the
//! Amazon S3 API reference.

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use prism_http::Headers;
use zeroize::Zeroizing;

use crate::query::{Query, decode, encode_path};
use crate::{Code, S3Error};

/// The only algorithm.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The only service.
pub const SERVICE: &str = "s3";
/// The value of `x-amz-content-sha256` for a body that is not hashed.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// The last part of every scope.
pub(crate) const TERMINATOR: &str = "aws4_request";

/// `date/region/service/aws4_request`; the date is `YYYYMMDD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the parts of the text")]
pub struct Scope<'a> {
    pub date: &'a str,
    pub region: &'a str,
    pub service: &'a str,
}

impl Scope<'_> {
    fn parts(&self) -> [&str; 4] {
        [self.date, self.region, self.service, TERMINATOR]
    }
}

impl std::fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parts().join("/"))
    }
}

/// The signed parts of a request.
pub struct Canonical<'a> {
    /// The method of the request line.
    pub method: &'a str,
    /// The path of the request line.
    pub path: &'a str,
    /// The query, whose signature is left out.
    pub query: &'a Query,
    /// All headers of the request.
    pub headers: &'a Headers,
    /// The names of the signed headers, in lower case and sorted.
    pub signed: &'a [&'a str],
    /// The value of `x-amz-content-sha256`.
    pub payload: &'a str,
}

impl Canonical<'_> {
    fn text(&self) -> Result<Vec<u8>, S3Error> {
        let mut out = Vec::with_capacity(1000);
        let path = decode(self.path)?;
        let query = self.query.canonical();
        for part in [self.method, "\n", &encode_path(&path), "\n", &query, "\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        for name in self.signed {
            self.header(name, &mut out)?;
        }
        let mut separator = b'\n';
        for name in self.signed {
            out.push(separator);
            out.extend_from_slice(name.as_bytes());
            separator = b';';
        }
        if self.signed.is_empty() {
            out.push(separator);
        }
        out.push(b'\n');
        out.extend_from_slice(self.payload.as_bytes());
        Ok(out)
    }

    fn header(&self, name: &str, out: &mut Vec<u8>) -> Result<(), S3Error> {
        out.extend_from_slice(name.as_bytes());
        let mut separator = b':';
        for value in self.headers.get_all(name) {
            out.push(separator);
            collapse_spaces(value, out);
            separator = b',';
        }
        if separator == b':' {
            return Err(Code::AccessDenied
                .with_message("A header that was signed is not present in the request."));
        }
        out.push(b'\n');
        Ok(())
    }

    /// The text for the signing key. `time` is the request's time in ISO 8601.
    ///
    /// # Errors
    /// `InvalidURI` for a malformed path, `AccessDenied` for a signed header that is missing.
    pub fn string_to_sign(&self, time: &str, scope: Scope<'_>) -> Result<String, S3Error> {
        let hash = digest::digest(&digest::SHA256, &self.text()?);
        let mut text = String::with_capacity(192);
        for part in [ALGORITHM, "\n", time] {
            text.push_str(part);
        }
        let mut separator = '\n';
        for part in scope.parts() {
            text.push(separator);
            text.push_str(part);
            separator = '/';
        }
        text.push('\n');
        HEXLOWER.encode_append(hash.as_ref(), &mut text);
        Ok(text)
    }
}

/// Appends a value with runs of spaces as one. Its ends are trimmed already.
fn collapse_spaces(value: &[u8], out: &mut Vec<u8>) {
    let pairs = value.iter().zip(value.iter().skip(1));
    // A check of all pairs is faster than one that stops at the first match.
    if !pairs.fold(false, |runs, pair| runs | (pair == (&b' ', &b' '))) {
        return out.extend_from_slice(value);
    }
    let mut previous = 0;
    for &byte in value {
        if byte != b' ' || previous != b' ' {
            out.push(byte);
        }
        previous = byte;
    }
}

/// The key that signs within a scope.
pub fn signing_key(secret: &str, scope: Scope<'_>) -> hmac::Key {
    let first = Zeroizing::new([b"AWS4", secret.as_bytes()].concat());
    let key = |secret: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, secret);
    let next = |last, part: &str| key(hmac::sign(&last, part.as_bytes()).as_ref());
    scope.parts().into_iter().fold(key(&first), next)
}
