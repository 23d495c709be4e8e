//! The cluster's private certificate authority, which says who is a node.
//!
//! Nodes speak mutual TLS 1.3 only. A node is known by the one configured name that its certificate
//! is valid for. Not here: TLS with clients.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use prism_proto::node::{ALPN_HAND_OFF, ALPN_RELAY};

/// The validity of certificates from `prism pki init`, which also renews them.
const VALID_DAYS: i64 = 825;

/// The reason why keys or certificates cannot be made or used; the configuration is at fault.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file exists that would be overwritten.
    #[error(
        "{0} exists already; remove it to make a new authority (all nodes need new files then)"
    )]
    Exists(PathBuf),
    /// A file holds no usable PEM.
    #[error("{path}: {what}")]
    Pem {
        /// Which.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A node name that cannot stand in a certificate.
    #[error("node name {0:?} is no DNS label (letters, digits and hyphens, at most 63)")]
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
        move |source| Self::File { path, source }
    }

    fn pem(path: &Path, what: impl ToString) -> Self {
        Self::Pem {
            path: path.into(),
            what: what.to_string(),
        }
    }
}

/// Makes a certificate authority and a certificate for each node in `dir`: `ca.crt`, and
/// `<name>.crt` and `<name>.key` (mode 0600). The authority's own key is not kept, so a new node
/// needs new files for all.
///
/// # Errors
/// [`PkiError`]: a name is not a DNS label, a file exists, or the directory is not writable.
pub fn init(dir: &Path, names: &[String]) -> Result<(), PkiError> {
    fs::create_dir_all(dir).map_err(PkiError::file(dir))?;
    for name in names {
        node_name(name)?;
    }
    let ca_path = dir.join("ca.crt");
    if ca_path.exists() {
        return Err(PkiError::Exists(ca_path));
    }
    let issuer = CertifiedIssuer::self_signed(ca_params(), KeyPair::generate()?)?;
    for name in names {
        let key = KeyPair::generate()?;
        let cert = node_params(name)?.signed_by(&key, &issuer)?;
        write_new(
            &dir.join(format!("{name}.key")),
            &key.serialize_pem(),
            0o600,
        )?;
        write_new(&dir.join(format!("{name}.crt")), &cert.pem(), 0o644)?;
    }
    write_new(&ca_path, &issuer.pem(), 0o644)
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "Prism cluster authority");
    set_validity(&mut params);
    params
}

fn node_params(name: &str) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    set_validity(&mut params);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams) {
    let now = time::OffsetDateTime::now_utc();
    // Some time back, for nodes whose clocks are behind.
    params.not_before = now - time::Duration::hours(1);
    params.not_after = now + time::Duration::days(VALID_DAYS);
}

fn write_new(path: &Path, pem: &str, mode: u32) -> Result<(), PkiError> {
    let mut options = fs::OpenOptions::new();
    let open = options.write(true).create_new(true).mode(mode).open(path);
    let mut file = open.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => PkiError::Exists(path.into()),
        _ => PkiError::file(path)(error),
    })?;
    let written = file
        .write_all(pem.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(PkiError::file(path))
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

/// A node's certificate and key, and the authority that it trusts.
#[derive(Clone)]
pub struct Identity {
    pub(crate) server: Arc<ServerConfig>,
    /// For dialling; it names no protocol yet.
    pub(crate) client: Arc<ClientConfig>,
}

impl Identity {
    /// Reads the authority's certificate and a node's certificate and key.
    ///
    /// # Errors
    /// [`PkiError`]: a file is missing, no PEM, or does not fit the others.
    pub fn load(ca: &Path, cert: &Path, key: &Path) -> Result<Self, PkiError> {
        let mut roots = RootCertStore::empty();
        for root in certificates(ca)? {
            roots.add(root)?;
        }
        let (roots, chain) = (Arc::new(roots), certificates(cert)?);
        let key = PrivateKeyDer::from_pem_file(key).map_err(|e| PkiError::pem(key, e))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.alpn_protocols = vec![ALPN_HAND_OFF.to_vec(), ALPN_RELAY.to_vec()];
        // Channels are long-lived, so no session is resumed.
        server.send_tls13_tickets = 0;
        // A session leaves rustls at the end of its handshake.
        server.enable_secret_extraction = true;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        client.enable_secret_extraction = true;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }

    /// Reads what [`init`] wrote to `dir` for the node `name`.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn of_node(dir: &Path, name: &str) -> Result<Self, PkiError> {
        let file = |suffix: &str| dir.join(format!("{name}.{suffix}"));
        Self::load(&dir.join("ca.crt"), &file("crt"), &file("key"))
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|error| PkiError::pem(path, error))?;
    match found.is_empty() {
        true => Err(PkiError::pem(path, "holds no certificate")),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The one of be0, be1 and be2 that a certificate for these names identifies.
    fn peer_of(names: &[&str]) -> Option<String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        peer_name(certificate.der(), ["be0", "be1", "be2"].into_iter())
    }

    #[test]
    fn a_certificate_shows_the_one_node_that_it_is_valid_for_or_none() {
        assert_eq!(peer_of(&["be1"]).as_deref(), Some("be1"));
        assert_eq!(peer_of(&["other", "be1"]).as_deref(), Some("be1"));
        assert_eq!(peer_of(&["other"]), None);
        assert_eq!(peer_of(&["be1", "be2"]), None);
        assert_eq!(peer_of(&["be2", "be0", "be1"]), None);
    }
}
