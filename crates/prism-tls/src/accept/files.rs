//! Certificates and keys in PEM files, read and checked.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use webpki::EndEntityCert;
use zeroize::Zeroizing;

/// Longest file: a chain has a few certificates of 2 KiB.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// Permission bits of others than the owner and the group. The group may read: Debian shares
/// keys between services so.
const OTHERS: u32 = 0o007;

/// One certificate with its key, as the operator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM: the server's certificate, then the chain to the authority.
    pub certificate: PathBuf,
    /// PEM: its private key (ECDSA, RSA or Ed25519).
    pub key: PathBuf,
    /// Host names that it is served for, also with `*.` for one label. If there are none, the
    /// names in the certificate count.
    pub names: Vec<String>,
}

/// A certificate cannot be served. The configuration is at fault. The message names the file, and
/// never quotes a key.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A file's mode or content, or the configuration, has this fault.
    #[error("{0}")]
    Unusable(String),
}

impl CertificateFiles {
    /// A certificate that can be served, with its names in lower case.
    pub(super) fn load(&self) -> Result<(CertifiedKey, Vec<String>), CertificateError> {
        let chain = read(&self.certificate)?;
        let key = self.read_key()?;
        self.served(&chain, &key)
    }

    /// The same from the contents of the files, whose paths are for the error.
    pub(super) fn served(
        &self,
        chain: &[u8],
        key: &[u8],
    ) -> Result<(CertifiedKey, Vec<String>), CertificateError> {
        let chain = self.parse_chain(chain)?;
        // The library's message is left out: it may quote the file.
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| form(&self.key, "holds no unencrypted private key in PEM"))?;
        let signer = default_provider().key_provider.load_private_key(key);
        let unusable = "is no ECDSA, RSA or Ed25519 key that can be used";
        let signer = signer.map_err(|_| form(&self.key, unusable))?;
        let key = CertifiedKey::new(chain, signer);
        let names = self.names(&key)?;
        match key.keys_match() {
            // Some keys cannot tell their public half.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok((key, names)),
            Err(_) => {
                let key = self.key.display();
                let certificate = self.certificate.display();
                let fault = format!("{key} is not the key of {certificate}");
                Err(CertificateError::Unusable(fault))
            }
        }
    }

    fn parse_chain(&self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let chain = chain.map_err(|_| form(&self.certificate, "is not valid PEM"))?;
        if chain.is_empty() {
            return Err(form(&self.certificate, "holds no certificate in PEM"));
        }
        Ok(chain)
    }

    fn read_key(&self) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
        let metadata = std::fs::metadata(&self.key).map_err(|e| unreadable(&self.key, e))?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & OTHERS != 0 {
            let path = self.key.display();
            let fault =
                format!("the key is open to others (mode {mode:03o}); run `chmod o= {path}`");
            return Err(form(&self.key, &fault));
        }
        read(&self.key)
    }

    /// The names to serve: those of the configuration, if the certificate is for them, or
    /// else those in the certificate.
    fn names(&self, key: &CertifiedKey) -> Result<Vec<String>, CertificateError> {
        let path = &self.certificate;
        let unusable = "is no X.509 certificate that can be used";
        let der = key.end_entity_cert().map_err(|_| form(path, unusable))?;
        let certificate = EndEntityCert::try_from(der).map_err(|_| form(path, unusable))?;
        let inside: Vec<String> = certificate
            .valid_dns_names()
            .map(str::to_ascii_lowercase)
            .collect();
        if self.names.is_empty() {
            return Ok(inside);
        }
        let names: Result<Vec<_>, _> = self.names.iter().map(|name| host_name(name)).collect();
        let names = names?;
        let Some(name) = names.iter().find(|n| !covers(&certificate, &inside, n)) else {
            return Ok(names);
        };
        let covered = if inside.is_empty() {
            "none".into()
        } else {
            inside.join(", ")
        };
        let path = path.display();
        let fault = format!("{path} is not for the name {name:?}; it is for {covered}");
        Err(CertificateError::Unusable(fault))
    }
}

/// Whether a certificate is for a name: by X.509's rules, or by the same wildcard if the name
/// is one.
fn covers(certificate: &EndEntityCert<'_>, inside: &[String], name: &str) -> bool {
    if name.starts_with("*.") {
        return inside.iter().any(|covered| covered == name);
    }
    ServerName::try_from(name)
        .is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
}

/// `name` in lower case, if a host can have it.
fn host_name(name: &str) -> Result<String, CertificateError> {
    let lower = name.to_ascii_lowercase();
    let host = lower.strip_prefix("*.").unwrap_or(&lower);
    match DnsName::try_from(host) {
        Ok(_) => Ok(lower),
        Err(_) => Err(CertificateError::Unusable(format!(
            "{name:?} is not a host name; use letters, digits, '-' and '.', or '*.' and such a name"
        ))),
    }
}

fn form(path: &Path, fault: &str) -> CertificateError {
    CertificateError::Unusable(format!("{}: {fault}", path.display()))
}

fn unreadable(path: &Path, source: std::io::Error) -> CertificateError {
    CertificateError::Read {
        path: path.to_owned(),
        source,
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
    let metadata = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(form(path, "is longer than 256 KiB"));
    }
    std::fs::read(path)
        .map(Zeroizing::new)
        .map_err(|e| unreadable(path, e))
}
