//! The errors of keys and certificates.

use std::path::{Path, PathBuf};

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
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |reason| Self::File { path, reason }
    }

    /// Adds the remedy to a file that cannot be read.
    pub(crate) fn or(self, remedy: &str) -> Self {
        match self {
            Self::File { path, reason } => {
                let what = format!("cannot be read: {reason}; {remedy}");
                Self::Content { path, what }
            }
            other => other,
        }
    }

    pub(crate) fn content(path: &Path, what: impl ToString) -> Self {
        Self::Content {
            path: path.into(),
            what: what.to_string(),
        }
    }
}
