//! The client's side of SigV4, for load generators, node-to-node requests and
//! tests. The verifier is [`crate::auth`].

use ::time::OffsetDateTime;
use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use prism_http::{HeaderError, Headers};
use zeroize::Zeroizing;

use crate::S3Error;
use crate::auth::UNSIGNED;
use crate::canonical::{ALGORITHM, Canonical, Scope, signing_key};
use crate::query::Query;
use crate::time::iso_basic;

/// Signs requests with one access key.
pub struct Signer {
    access_key: String,
    secret: Zeroizing<String>,
    region: String,
}

/// Why a request could not be signed.
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

/// What to say about the body.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// Hash these bytes.
    Bytes(&'a [u8]),
    /// `UNSIGNED-PAYLOAD`.
    Unsigned,
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

    /// Adds `x-amz-date`, `x-amz-content-sha256` and `Authorization` to the
    /// headers of a request, which must hold `Host` already. `target` is the
    /// path and query as they will be sent. Every header present is signed, so
    /// `Connection`, `Expect` and the like are to be added afterwards.
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
        let payload = match body {
            Body::Unsigned => UNSIGNED.to_owned(),
            Body::Bytes(bytes) => HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref()),
        };
        let time = iso_basic(now);
        headers.set("x-amz-date", &time)?;
        headers.set("x-amz-content-sha256", &payload)?;
        headers.remove("authorization");
        let authorization = self.authorization(method, target, headers, &payload, &time)?;
        headers.append("Authorization", authorization)?;
        Ok(())
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
        let date = time.get(..8).unwrap_or_default();
        let scope = Scope {
            date,
            region: &self.region,
            service: "s3",
        };
        let query = Query::parse(Some(query))?;
        let canonical = Canonical {
            method,
            path,
            query: &query,
            headers,
            signed: &signed,
            payload,
        };
        let text = canonical.string_to_sign(time, scope)?;
        let signature = hmac::sign(&signing_key(&self.secret, scope), text.as_bytes());
        let (access_key, signed) = (&self.access_key, signed.join(";"));
        let signature = HEXLOWER.encode(signature.as_ref());
        Ok(format!(
            "{ALGORITHM} Credential={access_key}/{scope},SignedHeaders={signed},Signature={signature}"
        ))
    }
}
