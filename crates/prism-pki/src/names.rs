//! The names of nodes in certificates and of their files.

use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, ServerName};

use crate::error::PkiError;

/// A node's name as a certificate carries it.
///
/// # Errors
/// When the name is not a DNS label.
pub fn node_name(name: &str) -> Result<ServerName<'static>, PkiError> {
    match ServerName::try_from(name.to_owned()) {
        // A name with a point has several labels.
        Ok(parsed @ ServerName::DnsName(_)) if !name.contains(['.', '_']) => Ok(parsed),
        _ => Err(PkiError::Name(name.to_owned())),
    }
}

/// The one of `names` that a verified certificate is valid for; `None` if it is valid for several.
pub fn peer_name<'n>(
    certificate: &CertificateDer<'_>,
    names: impl Iterator<Item = &'n str>,
) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let is_valid_for = |name: &&str| {
        node_name(name).is_ok_and(|n| certificate.verify_is_valid_for_subject_name(&n).is_ok())
    };
    let mut valid = names.filter(is_valid_for);
    match (valid.next(), valid.next()) {
        (Some(name), None) => Some(name.to_owned()),
        _ => None,
    }
}

/// The authority's file in a directory of [`init`](crate::init).
pub(crate) fn bundle_path(dir: &Path) -> PathBuf {
    dir.join("ca.crt")
}

/// The certificate and the key of the node `name` in a directory of [`init`](crate::init).
pub(crate) fn node_paths(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let path = |suffix| dir.join(format!("{name}.{suffix}"));
    (path("crt"), path("key"))
}
