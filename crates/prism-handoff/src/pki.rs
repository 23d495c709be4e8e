//! The cluster's private certificate authorities, which say who is a node.
//!
//! Nodes speak mutual TLS 1.3 only. A node is known by the one configured name that its certificate
//! is valid for. [`init`], [`issue`], [`new_authority`] and [`drop_authority`] make the files;
//! an [`Identity`] is what a node uses of them. Not here: TLS with clients.

mod authority;
mod bundle;
mod certificate;
mod files;
mod identity;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, ServerName};

pub use authority::{Founding, Issuing, found, init, issue, new_authority};
pub use bundle::drop_authority;
pub use certificate::{Certificate, date};
pub use identity::Identity;

/// The reason why keys or certificates cannot be made or used; the configuration is at fault.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// A file exists that would be overwritten.
    #[error("{} exists already, and is not overwritten; {remedy}", path.display())]
    Exists {
        /// Which.
        path: PathBuf,
        /// The remedy.
        remedy: &'static str,
    },
    /// A file's content cannot be used.
    #[error("{} {what}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// The fault, and the remedy.
        what: String,
    },
    /// A node name that cannot stand in a certificate.
    #[error("node name {0:?} is no DNS label; use letters, digits and hyphens, at most 63")]
    Name(String),
    /// Making a certificate failed.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// TLS does not accept the material.
    #[error("TLS refuses the certificates: {0}")]
    Tls(#[from] rustls::Error),
}

impl PkiError {
    fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |reason| Self::File { path, reason }
    }

    /// Adds the remedy to a file that cannot be read.
    fn or(self, remedy: &str) -> Self {
        match self {
            Self::File { path, reason } => {
                let what = format!("cannot be read: {reason}; {remedy}");
                Self::Content { path, what }
            }
            other => other,
        }
    }

    fn content(path: &Path, what: impl ToString) -> Self {
        Self::Content {
            path: path.into(),
            what: what.to_string(),
        }
    }
}

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
pub(crate) fn peer_name<'n>(
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

/// The authority's file in a directory of [`init`].
fn bundle_path(dir: &Path) -> PathBuf {
    dir.join("ca.crt")
}

/// The certificate and the key of the node `name` in a directory of [`init`].
fn node_paths(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let path = |suffix| dir.join(format!("{name}.{suffix}"));
    (path("crt"), path("key"))
}
