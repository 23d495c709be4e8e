//! TLS towards etcd, by rustls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The files for TLS towards etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates (PEM) of the authorities that sign for etcd.
    pub ca: PathBuf,
    /// This host's certificate and its key (PEM), if etcd asks for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// The fault.
    pub what: String,
}

impl TlsFiles {
    /// Reads the files.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.ca)? {
            roots.add(root).map_err(|e| fault(&self.ca, e))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| fault(&self.ca, e))?
            .with_root_certificates(roots);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| fault(key, e))?;
                builder
                    .with_client_auth_cert(certificates(cert)?, secret)
                    .map_err(|e| fault(cert, e))?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|e| fault(path, e))?;
    match found.is_empty() {
        true => Err(fault(path, "has no certificate")),
        false => Ok(found),
    }
}

fn fault(path: &Path, what: impl std::fmt::Display) -> TlsError {
    TlsError {
        path: path.to_owned(),
        what: what.to_string(),
    }
}
