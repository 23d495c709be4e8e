//! The content of a certificate.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate as X509;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};

use crate::error::PkiError;
use crate::files;

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its name, as in RFC 4514.
    pub subject: String,
    /// The name of the authority that has signed it.
    pub issuer: String,
    /// Its number at its authority, in hexadecimal digits.
    pub serial: String,
    /// It is valid from this time on, in seconds since 1970.
    pub begin_s: u64,
    /// It is valid until this time, in seconds since 1970.
    pub end_s: u64,
    /// The names of hosts or nodes that it is for.
    pub names: Vec<String>,
    /// Whether it may sign other certificates.
    pub is_authority: bool,
    /// Its public key (SubjectPublicKeyInfo in DER).
    pub(crate) public_key: Vec<u8>,
}

impl Certificate {
    /// Reads all certificates of a PEM file, in their order; at least one.
    ///
    /// # Errors
    /// [`PkiError`]: the file cannot be read, or holds something else.
    pub fn read_all(path: &Path) -> Result<Vec<Self>, PkiError> {
        let found = files::certificates(path)?;
        found.iter().map(|der| Self::parse(path, der)).collect()
    }

    /// Reads all certificates in PEM, in their order; at least one. `name` is for the error.
    ///
    /// # Errors
    /// [`PkiError`]: the text holds something else.
    pub fn parse_all(name: &Path, pem: &[u8]) -> Result<Vec<Self>, PkiError> {
        let found = files::certificates_in(name, pem)?;
        found.iter().map(|der| Self::parse(name, der)).collect()
    }

    /// `path` is for the error.
    pub(crate) fn parse(path: &Path, der: &CertificateDer<'_>) -> Result<Self, PkiError> {
        let fault = |error| {
            let what = format!("holds something that is no X.509 certificate: {error}");
            PkiError::content(path, what)
        };
        let parsed = X509::from_der(der).map_err(fault)?;
        let fields = parsed.tbs_certificate();
        // An extension in a wrong form counts as absent: TLS judges certificates, not this.
        let constraints = fields.get_extension::<BasicConstraints>().ok().flatten();
        let names = fields.get_extension::<SubjectAltName>().ok().flatten();
        let names = names.map(|(_, names)| names.0).unwrap_or_default();
        let names = names.into_iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
            _ => None,
        });
        let public_key = fields.subject_public_key_info().to_der();
        let validity = fields.validity();
        Ok(Self {
            subject: fields.subject().to_string(),
            issuer: fields.issuer().to_string(),
            serial: hex(fields.serial_number().as_bytes()),
            begin_s: validity.not_before.to_unix_duration().as_secs(),
            end_s: validity.not_after.to_unix_duration().as_secs(),
            names: names.collect(),
            is_authority: constraints.is_some_and(|(_, constraints)| constraints.ca),
            public_key: public_key.map_err(fault)?,
        })
    }

    /// Whether it is for the host `name`.
    pub fn covers(&self, name: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|covered| covered.eq_ignore_ascii_case(name))
    }

    /// Refuses a certificate that is not valid at the time `now_s`, in seconds since 1970. `path`
    /// is for the error.
    pub(crate) fn check_term(&self, path: &Path, now_s: u64) -> Result<(), PkiError> {
        if now_s > self.end_s {
            let end = date(self.end_s);
            return Err(PkiError::content(path, format!("ended on {end}; renew it")));
        }
        if now_s < self.begin_s {
            let begin = date(self.begin_s);
            let fault = format!("is valid from {begin} on only; look at this host's clock");
            return Err(PkiError::content(path, fault));
        }
        Ok(())
    }
}

/// The present time in seconds since 1970.
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The day of a time in seconds since 1970, by UTC, as in `2026-11-24`.
pub fn date(at_s: u64) -> String {
    let at = i64::try_from(at_s)
        .ok()
        .and_then(|at_s| time::OffsetDateTime::from_unix_timestamp(at_s).ok());
    at.map_or_else(|| format!("second {at_s}"), |at| at.date().to_string())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
