//! The client's side of SigV4, for load generators, tests and fuzzing. The verifier is
//! `prism_s3::auth`.

#![forbid(unsafe_code)]

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use prism_http::{HeaderError, Headers};
use prism_s3::S3Error;
use prism_s3::canonical::{ALGORITHM, Canonical, SERVICE, Scope, UNSIGNED, signing_key};
use prism_s3::query::{Query, encode};
use prism_s3::time::iso_basic;
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// Signs requests with one access key.
pub struct Signer {
    access_key: String,
    secret: Zeroizing<String>,
    region: String,
}

/// A request could not be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The path or query cannot be decoded.
    #[error(transparent)]
    Target(#[from] S3Error),
    /// A header cannot be written.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer")
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// The declaration about the body.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// The SHA-256 of these bytes.
    Bytes(&'a [u8]),
    /// `UNSIGNED-PAYLOAD`.
    Unsigned,
    /// Another value of `x-amz-content-sha256`, such as one for signed chunks.
    Declared(&'a str),
}

impl Body<'_> {
    /// The value of `x-amz-content-sha256`.
    fn announced(self) -> String {
        match self {
            Self::Unsigned => UNSIGNED.to_owned(),
            Self::Declared(value) => value.to_owned(),
            Self::Bytes(bytes) => HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref()),
        }
    }
}

impl Signer {
    /// A signer for this region.
    #[must_use]
    pub fn new(
        access_key: impl Into<String>,
        secret: impl Into<String>,
        region: impl Into<String>,
    ) -> Self {
        Self {
            access_key: access_key.into(),
            secret: Zeroizing::new(secret.into()),
            region: region.into(),
        }
    }

    /// Adds `x-amz-date`, `x-amz-content-sha256` and `Authorization` to the headers of a
    /// request, which must have `Host` already. `target` is the path and query as they will be
    /// sent. All present headers are signed, so add `Connection`, `Expect` and the like
    /// afterwards.
    ///
    /// # Errors
    /// If the target or a header is malformed.
    pub fn sign(
        &self,
        method: &str,
        target: &str,
        headers: &mut Headers,
        body: Body<'_>,
        now: OffsetDateTime,
    ) -> Result<(), SignError> {
        let payload = body.announced();
        let time = iso_basic(now);
        headers.set("x-amz-date", &time)?;
        headers.set("x-amz-content-sha256", &payload)?;
        headers.remove("authorization");
        let authorization = self.authorization(method, target, headers, &payload, &time)?;
        headers.append("Authorization", authorization)?;
        Ok(())
    }

    /// The target of a presigned URL, which anybody may use for `expires_s` seconds from `now`
    /// on, with this `Host` and without other headers that must be signed. If the body is
    /// signed, the URL is valid for that body only.
    ///
    /// # Errors
    /// If the target is malformed.
    pub fn presign(
        &self,
        method: &str,
        target: &str,
        host: &str,
        body: Body<'_>,
        expires_s: u32,
        now: OffsetDateTime,
    ) -> Result<String, SignError> {
        let time = iso_basic(now);
        let scope = self.scope(&time);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let credential = format!("{}/{scope}", self.access_key);
        let credential = encode(&credential);
        let mut query = query.to_owned();
        if !query.is_empty() {
            query.push('&');
        }
        query.push_str(&format!(
            "X-Amz-Algorithm={ALGORITHM}&X-Amz-Credential={credential}&X-Amz-Date={time}\
             &X-Amz-Expires={expires_s}&X-Amz-SignedHeaders=host"
        ));
        let payload = body.announced();
        if let Body::Bytes(_) = body {
            query.push_str(&format!("&X-Amz-Content-Sha256={payload}"));
        }
        let mut headers = Headers::new();
        headers.append("Host", host)?;
        let parsed = Query::parse(Some(&query))?;
        let canonical = Canonical {
            method,
            path,
            query: &parsed,
            headers: &headers,
            signed: &["host"],
            payload: &payload,
        };
        let signature = self.signature(&canonical, &time)?;
        Ok(format!("{path}?{query}&X-Amz-Signature={signature}"))
    }

    fn signature(&self, canonical: &Canonical<'_>, time: &str) -> Result<String, S3Error> {
        let scope = self.scope(time);
        let text = canonical.string_to_sign(time, scope)?;
        let signature = hmac::sign(&signing_key(&self.secret, scope), text.as_bytes());
        Ok(HEXLOWER.encode(signature.as_ref()))
    }

    fn scope<'a>(&'a self, time: &'a str) -> Scope<'a> {
        Scope {
            date: time.get(..8).unwrap_or_default(),
            region: &self.region,
            service: SERVICE,
        }
    }

    fn authorization(
        &self,
        method: &str,
        target: &str,
        headers: &Headers,
        payload: &str,
        time: &str,
    ) -> Result<String, S3Error> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut names: Vec<_> = headers
            .iter()
            .map(|(n, _)| n.to_ascii_lowercase())
            .collect();
        names.sort_unstable();
        names.dedup();
        let signed: Vec<_> = names.iter().map(String::as_str).collect();
        let query = Query::parse(Some(query))?;
        let canonical = Canonical {
            method,
            path,
            query: &query,
            headers,
            signed: &signed,
            payload,
        };
        let signature = self.signature(&canonical, time)?;
        let access_key = &self.access_key;
        let scope = self.scope(time);
        let signed = signed.join(";");
        Ok(format!(
            "{ALGORITHM} Credential={access_key}/{scope},SignedHeaders={signed},Signature={signature}"
        ))
    }
}
