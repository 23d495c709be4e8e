//! Makes authorities, and the certificates that they sign.

use std::fs;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use zeroize::Zeroizing;

use crate::bundle::{self, Trust};
use crate::certificate::{Certificate, hex, now_s};
use crate::error::PkiError;
use crate::files::{PRIVATE, PUBLIC, Staged, read_private, refuse_existing};
use crate::names::{bundle_path, node_name, node_paths};

/// The names of authorities begin so. A part of the key's digest follows, which tells them apart.
const AUTHORITY: &str = "Prism cluster authority";
/// Bytes of the digest in an authority's name.
const DIGEST_BYTES: usize = 4;
/// The usual validity of nodes' certificates and of authorities.
const NODE_DAYS: u32 = 825;
const AUTHORITY_DAYS: u32 = 3650;
/// Certificates are valid from a time back on, for nodes whose clocks are behind.
const BACK: time::Duration = time::Duration::hours(1);

/// How the first authority of a cluster is made.
#[derive(Clone, Debug)]
pub struct Founding {
    /// The file for the authority's key; `None` to forget the key.
    pub key_file: Option<PathBuf>,
    /// The validity of the authority. Default 3,650.
    pub authority_days: u32,
    /// The validity of the nodes' certificates. Default 825.
    pub node_days: u32,
}

impl Default for Founding {
    fn default() -> Self {
        Self {
            key_file: None,
            authority_days: AUTHORITY_DAYS,
            node_days: NODE_DAYS,
        }
    }
}

/// How certificates of single nodes are made.
#[derive(Clone, Debug)]
pub struct Issuing {
    /// The file with the authority's key.
    pub key_file: PathBuf,
    /// The validity. The certificate ends no later than its authority.
    pub days: u32,
    /// Whether present files of the nodes may be replaced.
    pub replace: bool,
}

/// [`found`] with the usual validity. The authority's key is not kept.
///
/// # Errors
/// As for [`found`].
pub fn init(dir: &Path, names: &[String]) -> Result<(), PkiError> {
    found(dir, names, &Founding::default())
}

/// Makes an authority and a certificate for each node in `dir`: `ca.crt`, and `<name>.crt` and
/// `<name>.key` (mode 0600).
///
/// # Errors
/// [`PkiError`]: a name is not a DNS label, a file exists, or the directory is not writable.
pub fn found(dir: &Path, names: &[String], how: &Founding) -> Result<(), PkiError> {
    fs::create_dir_all(dir).map_err(PkiError::file(dir))?;
    let ca = bundle_path(dir);
    let other = "name another directory, or use `prism pki issue` and `prism pki new-authority`";
    refuse_existing(&ca, other)?;
    refuse_files_of(dir, names, other)?;
    let authority = made(how.key_file.as_deref(), how.authority_days)?;
    let certificate = Certificate::parse(&ca, authority.der())?;
    Staged::write(&ca, &authority.pem(), PUBLIC)?.commit(false)?;
    for name in names {
        let signed = Signed::new(name, &authority, end(how.node_days, &certificate))?;
        signed.write(dir, name, false)?;
    }
    Ok(())
}

/// Makes a certificate and a key for each of `names`, signed by an authority in the `ca.crt` of
/// `dir`. Returns the certificates.
///
/// # Errors
/// [`PkiError`]: a name is not a DNS label, a file exists and is not to be replaced, the key is of
/// none of the authorities, or the authority has ended.
pub fn issue(dir: &Path, names: &[String], how: &Issuing) -> Result<Vec<Certificate>, PkiError> {
    if !how.replace {
        refuse_files_of(
            dir,
            names,
            "to renew the node's certificate, add `--replace`",
        )?;
    }
    let ca = bundle_path(dir);
    let trust = Trust::of(dir)?;
    let key = key_of(&how.key_file)?;
    let public_key = key.subject_public_key_info();
    let is_its = |authority: &&Certificate| authority.public_key == public_key;
    let authority = trust.authorities.iter().find(is_its).ok_or_else(|| {
        let key = how.key_file.display();
        let fault = format!("has no certificate of the authority whose key is {key}");
        PkiError::content(
            &ca,
            format!("{fault}; name the directory of that authority"),
        )
    })?;
    authority.check_term(&ca, now_s()).map_err(|_| {
        let fault = format!("has an authority ({}) that has ended", authority.subject);
        PkiError::content(&ca, format!("{fault}; run `prism pki new-authority`"))
    })?;
    let name = authority.subject.strip_prefix("CN=");
    let name = name
        .filter(|name| name.starts_with(AUTHORITY))
        .ok_or_else(|| {
            let fault = format!("has an authority ({}) that is foreign", authority.subject);
            PkiError::content(
                &ca,
                format!("{fault}; issue certificates with its own program"),
            )
        })?;
    let issuer = Issuer::new(authority_params(name, authority.end_s)?, key);
    let mut made = Vec::with_capacity(names.len());
    for name in names {
        let signed = Signed::new(name, &issuer, end(how.days, authority))?;
        trust.check(&ca, &[signed.certificate.der().clone()])?;
        signed.write(dir, name, how.replace)?;
        made.push(Certificate::parse(&ca, signed.certificate.der())?);
    }
    Ok(made)
}

/// Makes another authority beside those in the `ca.crt` of `dir`, and returns its certificate.
/// Nodes with the longer `ca.crt` trust all of them.
///
/// # Errors
/// [`PkiError`]: the file of the key exists, or `ca.crt` cannot be read or written.
pub fn new_authority(dir: &Path, key_file: &Path, days: u32) -> Result<Certificate, PkiError> {
    let ca = bundle_path(dir);
    let trust = Trust::of(dir)?;
    trust.check_room(&ca)?;
    let authority = made(Some(key_file), days)?;
    let mut certificates = trust.certificates;
    certificates.push(authority.der().clone());
    bundle::write(&ca, &certificates)?;
    Certificate::parse(&ca, authority.der())
}

/// A new authority, whose key is kept in a new file if one is named.
fn made(key_file: Option<&Path>, days: u32) -> Result<CertifiedIssuer<'static, KeyPair>, PkiError> {
    let key = KeyPair::generate()?;
    if let Some(path) = key_file {
        refuse_existing(path, "name another file for the authority's key")?;
        let pem = Zeroizing::new(key.serialize_pem());
        Staged::write(path, &pem, PRIVATE)?.commit(false)?;
    }
    let digest = digest(&SHA256, &key.subject_public_key_info());
    let digest = digest.as_ref().get(..DIGEST_BYTES).unwrap_or_default();
    let name = format!("{AUTHORITY} {}", hex(digest));
    let params = authority_params(&name, after(days))?;
    Ok(CertifiedIssuer::self_signed(params, key)?)
}

/// The key in the file of an authority.
fn key_of(path: &Path) -> Result<KeyPair, PkiError> {
    let unusable = || PkiError::content(path, "holds no private key in PEM");
    let remedy = "name the file that `--keep-key` of `prism pki` has made";
    let pem = read_private(path).map_err(|error| error.or(remedy))?;
    // The library's message is left out: it may quote the file.
    let text = std::str::from_utf8(&pem).map_err(|_| unusable())?;
    KeyPair::from_pem(text).map_err(|_| unusable())
}

fn refuse_files_of(dir: &Path, names: &[String], remedy: &'static str) -> Result<(), PkiError> {
    for name in names {
        node_name(name)?;
        let (certificate, key) = node_paths(dir, name);
        refuse_existing(&certificate, remedy)?;
        refuse_existing(&key, remedy)?;
    }
    Ok(())
}

/// A node's certificate, signed, and its key.
struct Signed {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Signed {
    fn new(name: &str, issuer: &Issuer<'_, KeyPair>, end_s: u64) -> Result<Self, PkiError> {
        node_name(name)?;
        let key = KeyPair::generate()?;
        let certificate = node_params(name, end_s)?.signed_by(&key, issuer)?;
        Ok(Self { certificate, key })
    }

    /// Writes both files before it puts them at their places, so that an error leaves a pair.
    fn write(&self, dir: &Path, name: &str, replace: bool) -> Result<(), PkiError> {
        let (certificate, key) = node_paths(dir, name);
        let pem = Zeroizing::new(self.key.serialize_pem());
        let key = Staged::write(&key, &pem, PRIVATE)?;
        let certificate = Staged::write(&certificate, &self.certificate.pem(), PUBLIC)?;
        key.commit(replace)?;
        certificate.commit(replace)
    }
}

fn authority_params(name: &str, end_s: u64) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    set_validity(&mut params, end_s)?;
    Ok(params)
}

fn node_params(name: &str, end_s: u64) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, end_s)?;
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, end_s: u64) -> Result<(), PkiError> {
    let end = i64::try_from(end_s).ok();
    let end = end.and_then(|end_s| time::OffsetDateTime::from_unix_timestamp(end_s).ok());
    params.not_before = time::OffsetDateTime::now_utc() - BACK;
    params.not_after = end.ok_or(rcgen::Error::Time)?;
    Ok(())
}

/// The time after `days`, in seconds since 1970.
fn after(days: u32) -> u64 {
    now_s() + u64::from(days) * 86_400
}

/// The end of a certificate: after `days`, but no later than its authority.
fn end(days: u32, authority: &Certificate) -> u64 {
    after(days).min(authority.end_s)
}
