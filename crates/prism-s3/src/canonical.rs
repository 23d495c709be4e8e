//! The canonical request and the string to sign of SigV4 for S3, where the path is encoded once
//! and not normalized. Verifier and signer share it.
//!
//! Reference: "Authenticating Requests: Using the Authorization Header" in the
//! Amazon S3 API reference.

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use prism_http::Headers;
use zeroize::Zeroizing;

use crate::query::{Query, decode, encoded_path};
use crate::{Code, S3Error};

/// The only algorithm.
pub(crate) const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The last part of every scope.
pub(crate) const TERMINATOR: &str = "aws4_request";

/// `date/region/service/aws4_request`; the date is `YYYYMMDD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scope<'a> {
    pub(crate) date: &'a str,
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
}

impl Scope<'_> {
    /// The parts of the signed text.
    fn parts(&self) -> [&str; 7] {
        [
            self.date,
            "/",
            self.region,
            "/",
            self.service,
            "/",
            TERMINATOR,
        ]
    }
}

impl std::fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts()
            .into_iter()
            .try_for_each(|part| f.write_str(part))
    }
}

/// The signed parts of a request.
pub(crate) struct Canonical<'a> {
    pub(crate) method: &'a str,
    /// The path of the request line.
    pub(crate) path: &'a str,
    pub(crate) query: &'a Query,
    pub(crate) headers: &'a Headers,
    /// The names of the signed headers, in lower case and sorted.
    pub(crate) signed: &'a [&'a str],
    /// The value of `x-amz-content-sha256`.
    pub(crate) payload: &'a str,
}

impl Canonical<'_> {
    fn text(&self) -> Result<Vec<u8>, S3Error> {
        let mut out = Vec::with_capacity(1000);
        let path = decode(self.path)?;
        let path = encoded_path(&path);
        for part in [
            self.method,
            "\n",
            &path,
            "\n",
            &self.query.canonical(),
            "\n",
        ] {
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
    pub(crate) fn string_to_sign(&self, time: &str, scope: Scope<'_>) -> Result<String, S3Error> {
        let hash = digest::digest(&digest::SHA256, &self.text()?);
        let mut text = String::with_capacity(192);
        for part in [ALGORITHM, "\n", time, "\n"] {
            text.push_str(part);
        }
        for part in scope.parts() {
            text.push_str(part);
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
pub(crate) fn signing_key(secret: &str, scope: Scope<'_>) -> hmac::Key {
    let first = Zeroizing::new([b"AWS4", secret.as_bytes()].concat());
    [scope.date, scope.region, scope.service, TERMINATOR]
        .iter()
        .fold(hmac::Key::new(hmac::HMAC_SHA256, &first), |key, part| {
            hmac::Key::new(
                hmac::HMAC_SHA256,
                hmac::sign(&key, part.as_bytes()).as_ref(),
            )
        })
}
