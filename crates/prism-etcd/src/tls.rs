//! TLS towards etcd, by rustls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::settings::Settings;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// The fault.
    pub what: String,
}

/// Reads the files of the configuration, if it has any.
pub(crate) fn client_config(settings: &Settings) -> Result<Option<Arc<ClientConfig>>, TlsError> {
    let Some(ca) = &settings.ca_file else {
        return Ok(None);
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(ca)? {
        roots.add(root).map_err(|e| fault(ca, e))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| fault(ca, e))?
        .with_root_certificates(roots);
    let mut config = match (&settings.cert_file, &settings.key_file) {
        (Some(cert), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| fault(key, e))?;
            let own = builder.with_client_auth_cert(certificates(cert)?, secret);
            own.map_err(|e| fault(cert, e))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|e| fault(path, e))?;
    if found.is_empty() {
        return Err(fault(path, "has no certificate"));
    }
    Ok(found)
}

fn fault(path: &Path, what: impl std::fmt::Display) -> TlsError {
    TlsError {
        path: path.to_owned(),
        what: what.to_string(),
    }
}
