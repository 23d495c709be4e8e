//! TLS towards servers of HTTP outside the cluster: etcd, and an authority that speaks ACME.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};

use crate::error::PkiError;
use crate::files::{certificates, key};

/// TLS for HTTP/1.1 towards servers that an authority in `ca` has signed for. `own` has the
/// certificate and the key by which they know this client, if they ask.
///
/// # Errors
/// A file cannot be used.
pub fn https_client(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Arc<ClientConfig>, PkiError> {
    let mut roots = RootCertStore::empty();
    // A system's file may have some that rustls does not take.
    roots.add_parsable_certificates(certificates(ca)?);
    if roots.is_empty() {
        return Err(PkiError::content(
            ca,
            "holds no certificate that can be used",
        ));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, private)) => builder
            .with_client_auth_cert(certificates(certificate)?, key(private)?)
            .map_err(|e| PkiError::content(certificate, format!("cannot be used: {e}")))?,
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
