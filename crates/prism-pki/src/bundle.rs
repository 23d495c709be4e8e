//! A `ca.crt` with one authority or several, all of which are trusted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore};
use x509_cert::der::{Decode, EncodePem};

use crate::certificate::{Certificate, now_s};
use crate::error::PkiError;
use crate::files::{PUBLIC, Staged, certificates};
use crate::names::bundle_path;

/// Most authorities at a time. A renewal takes two.
const MAX_AUTHORITIES: usize = 16;
/// The fewest digits that name a serial number.
const MIN_DIGITS: usize = 4;

/// The authorities of a `ca.crt`.
pub(crate) struct Trust {
    /// As in the file.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    pub(crate) authorities: Vec<Certificate>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
}

impl Trust {
    pub(crate) fn read(ca: &Path) -> Result<Self, PkiError> {
        Self::new(ca, certificates(ca)?)
    }

    /// The authorities in a directory of [`init`](crate::init).
    pub(crate) fn of(dir: &Path) -> Result<Self, PkiError> {
        let remedy = "name the directory that `prism pki init` has made";
        Self::read(&bundle_path(dir)).map_err(|error| error.or(remedy))
    }

    /// `ca` is for errors.
    fn new(ca: &Path, certificates: Vec<CertificateDer<'static>>) -> Result<Self, PkiError> {
        let parsed = certificates.iter().map(|der| Certificate::parse(ca, der));
        let authorities: Vec<_> = parsed.collect::<Result<_, _>>()?;
        if authorities.len() > MAX_AUTHORITIES {
            let most = format!("has more than {MAX_AUTHORITIES} authorities");
            let remedy = "remove old ones with `prism pki drop-authority`";
            return Err(PkiError::content(ca, format!("{most}; {remedy}")));
        }
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| {
                PkiError::content(
                    ca,
                    format!("has a certificate that cannot be trusted: {error}"),
                )
            })?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider);
        let verifier = verifier.build();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Self {
            certificates,
            authorities,
            roots,
            verifier,
        })
    }

    /// Refuses a bundle that has no room for another authority.
    pub(crate) fn check_room(&self, ca: &Path) -> Result<(), PkiError> {
        if self.authorities.len() < MAX_AUTHORITIES {
            return Ok(());
        }
        let fault = format!("has {MAX_AUTHORITIES} authorities already");
        let remedy = "remove old ones with `prism pki drop-authority`";
        Err(PkiError::content(ca, format!("{fault}; {remedy}")))
    }

    /// Refuses a node's chain that none of the authorities has signed. Its term does not count.
    /// `path` is for the error.
    pub(crate) fn check(&self, path: &Path, chain: &[CertificateDer<'_>]) -> Result<(), PkiError> {
        let Some((own, others)) = chain.split_first() else {
            return Err(PkiError::content(path, "holds no certificate in PEM"));
        };
        let facts = Certificate::parse(path, own)?;
        let within = now_s().clamp(facts.begin_s, facts.end_s.max(facts.begin_s));
        let within = UnixTime::since_unix_epoch(Duration::from_secs(within));
        let checked = self.verifier.verify_client_cert(own, others, within);
        let fault = match checked {
            Ok(_) => return Ok(()),
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => {
                let issuer = &facts.issuer;
                format!("is signed by {issuer}, which is no trusted authority; renew it")
            }
            Err(error) => format!("cannot be used by a node: {error}"),
        };
        Err(PkiError::content(path, fault))
    }
}

/// Writes a bundle at once.
pub(crate) fn write(ca: &Path, authorities: &[CertificateDer<'_>]) -> Result<(), PkiError> {
    let pem = authorities.iter().map(|der| {
        let parsed = x509_cert::Certificate::from_der(der);
        parsed.and_then(|parsed| parsed.to_pem(x509_cert::der::pem::LineEnding::LF))
    });
    let pem: Result<String, _> = pem.collect();
    let pem = pem.map_err(|error| PkiError::content(ca, format!("cannot be made: {error}")))?;
    Staged::write(ca, &pem, PUBLIC)?.commit(true)
}

/// Removes the authority whose serial number begins with `serial` from the `ca.crt` of `dir`, and
/// returns its certificate. A serial number is given by its first digits; colons do not count.
///
/// # Errors
/// [`PkiError`]: `ca.crt` has no such authority or no other one, or a certificate in `dir` is
/// signed by it.
pub fn drop_authority(dir: &Path, serial: &str) -> Result<Certificate, PkiError> {
    let ca = bundle_path(dir);
    let trust = Trust::of(dir)?;
    let digits = serial.replace(':', "").to_ascii_lowercase();
    let is_named = |authority: &Certificate| {
        digits.len() >= MIN_DIGITS && authority.serial.starts_with(&digits)
    };
    let named = trust.authorities.iter().filter(|found| is_named(found));
    let [dropped] = named.collect::<Vec<_>>()[..] else {
        let fault = format!("has no authority, or several, with a serial number {serial}...");
        let remedy = format!("give at least {MIN_DIGITS} digits that `prism pki show` prints");
        return Err(PkiError::content(&ca, format!("{fault}; {remedy}")));
    };
    let kept = trust.certificates.iter().zip(&trust.authorities);
    let kept = kept.filter(|(_, authority)| *authority != dropped);
    let kept: Vec<_> = kept.map(|(der, _)| der.clone()).collect();
    if kept.is_empty() {
        let fault = "has no other authority";
        let remedy = "run `prism pki new-authority` and renew all nodes first";
        return Err(PkiError::content(&ca, format!("{fault}; {remedy}")));
    }
    let rest = Trust::new(&ca, kept)?;
    for path in certificates_beside(dir, &ca)? {
        let chain = certificates(&path)?;
        let remedy = "renew it with `prism pki issue --replace`, or remove the file";
        rest.check(&path, &chain).map_err(|_| {
            PkiError::content(&path, format!("is signed by the authority; {remedy}"))
        })?;
    }
    write(&ca, &rest.certificates)?;
    Ok(dropped.clone())
}

/// All other files in `dir` that are named as certificates are.
fn certificates_beside(dir: &Path, ca: &Path) -> Result<Vec<PathBuf>, PkiError> {
    let entries = std::fs::read_dir(dir).map_err(PkiError::file(dir))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<_> = paths
        .collect::<Result<_, _>>()
        .map_err(PkiError::file(dir))?;
    paths.retain(|path| path.extension().is_some_and(|found| found == "crt") && path != ca);
    paths.sort_unstable();
    Ok(paths)
}
