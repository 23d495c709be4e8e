//! A node's certificate and key, and the authorities that it trusts, from files that may be
//! replaced while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use prism_common::counter::Count;
use prism_common::followed::{FollowedFiles, ReloadRequests};

use crate::bundle::Trust;
use crate::certificate::{Certificate, now_s};
use crate::error::PkiError;
use crate::files::{certificates, key};
use crate::names::{bundle_path, node_paths};

/// Time between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A node's certificate and key, and the authorities that it trusts. Clones are one identity: a
/// reload counts for all of them. Each new connection uses the present files; those that exist are
/// not touched.
#[derive(Clone)]
pub struct Identity(Arc<SharedIdentity>);

struct SharedIdentity {
    paths: Paths,
    files: FollowedFiles,
    present: RwLock<Arc<LoadedIdentity>>,
}

/// The counters of [`Identity::keep_current`].
pub struct LoadCounts<'a> {
    /// Loads whose files are in use since.
    pub loaded: &'a Count,
    /// Loads whose files could not be used.
    pub failed: &'a Count,
}

struct Paths {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// An identity as one load has found it.
pub struct LoadedIdentity {
    /// For accepting. It names no protocol yet.
    pub server: Arc<ServerConfig>,
    /// For dialling. It names no protocol yet.
    pub client: Arc<ClientConfig>,
    authorities: Vec<Certificate>,
    certificate: Certificate,
}

impl Identity {
    /// Reads the authorities' certificates and a node's certificate and key. The certificate may
    /// have ended: other nodes then refuse this one.
    ///
    /// # Errors
    /// [`PkiError`]: a file is missing, no PEM, or does not fit the others.
    pub fn load(ca: &Path, certificate: &Path, key: &Path) -> Result<Self, PkiError> {
        let paths = Paths {
            ca: ca.into(),
            certificate: certificate.into(),
            key: key.into(),
        };
        let all = [&paths.ca, &paths.certificate, &paths.key];
        let files = FollowedFiles::new(all.into_iter().cloned());
        let present = RwLock::new(Arc::new(LoadedIdentity::load(&paths)?));
        Ok(Self(Arc::new(SharedIdentity {
            paths,
            files,
            present,
        })))
    }

    /// Reads what [`init`](crate::init) wrote to `dir` for the node `name`.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn of_node(dir: &Path, name: &str) -> Result<Self, PkiError> {
        let (certificate, key) = node_paths(dir, name);
        Self::load(&bundle_path(dir), &certificate, &key)
    }

    /// Reads the files again. New connections then use them.
    ///
    /// # Errors
    /// As for [`Self::load`], and if the certificate is not valid at this time. The former identity
    /// then stays.
    pub fn reload(&self) -> Result<(), PkiError> {
        let paths = &self.0.paths;
        let loaded = LoadedIdentity::load(paths)?;
        loaded.certificate.check_term(&paths.certificate, now_s())?;
        *self.0.present.write() = Arc::new(loaded);
        Ok(())
    }

    /// Reads the files again whenever they change, and at each of the `requests`. Logs the result
    /// of each load, and adds one to the counter of such results. Never returns.
    pub async fn keep_current(&self, counts: LoadCounts<'_>, requests: ReloadRequests) {
        let read = || match self.reload() {
            Ok(()) => {
                counts.loaded.add_one();
                let present = self.present();
                let authorities = present.authorities.iter();
                let authorities: Vec<_> = authorities.map(|found| &*found.serial).collect();
                tracing::info!(serial = %present.certificate.serial, ?authorities,
                    "the node's certificate and the authorities were loaded again");
            }
            Err(error) => {
                counts.failed.add_one();
                tracing::error!(%error, "cannot use the node's certificate, key and authorities; \
                    the former ones stay in use until the files fit");
            }
        };
        self.0.files.follow(LOOK_AGAIN, requests, read).await;
    }

    /// The certificates in use and their files: the node's own one, and the authorities.
    pub fn in_use(&self) -> Vec<(PathBuf, Certificate)> {
        let paths = &self.0.paths;
        let present = self.present();
        let own = (paths.certificate.clone(), present.certificate.clone());
        let authorities = present.authorities.iter();
        let authorities = authorities.map(|found| (paths.ca.clone(), found.clone()));
        std::iter::once(own).chain(authorities).collect()
    }

    /// The files in use, as they were loaded last.
    pub fn present(&self) -> Arc<LoadedIdentity> {
        self.0.present.read().clone()
    }
}

impl LoadedIdentity {
    fn load(paths: &Paths) -> Result<Self, PkiError> {
        let trust = Trust::read(&paths.ca)?;
        let chain = certificates(&paths.certificate)?;
        let key = key(&paths.key)?;
        trust.check(&paths.certificate, &chain)?;
        let own = chain
            .first()
            .map(|der| Certificate::parse(&paths.certificate, der));
        let own = own.ok_or_else(|| PkiError::content(&paths.certificate, "is empty"))??;
        let does_not_fit = |error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let fault = format!("is not the key of {}", paths.certificate.display());
                let remedy = "install both files of one `prism pki` run";
                PkiError::content(&paths.key, format!("{fault}; {remedy}"))
            }
            error => PkiError::Tls(error),
        };
        let server = server(&trust, chain.clone(), key.clone_key()).map_err(does_not_fit)?;
        let client = client(&trust, chain, key).map_err(does_not_fit)?;
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            authorities: trust.authorities,
            certificate: own,
        })
    }
}

fn server(
    trust: &Trust,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let mut server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(trust.verifier.clone())
        .with_single_cert(chain, key)?;
    // Channels are long-lived, so no session is resumed.
    server.send_tls13_tickets = 0;
    // A session leaves rustls at the end of its handshake.
    server.enable_secret_extraction = true;
    Ok(server)
}

fn client(
    trust: &Trust,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(trust.roots.clone())
        .with_client_auth_cert(chain, key)?;
    client.enable_secret_extraction = true;
    client.resumption = rustls::client::Resumption::disabled();
    Ok(client)
}
