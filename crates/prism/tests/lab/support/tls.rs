//! Shared parts of the tests of HTTPS: a cluster that serves it, and a client of rustls that
//! trusts the cluster's authority.

pub mod programs;
pub mod s_client;

use std::sync::Arc;

use prism_config::{Anonymous, ConfigFile};
use prism_lab::LabSpec;
use rustls::client::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, RootCertStore, SupportedProtocolVersion};

use crate::support::Cluster;
use crate::support::client::Client;

/// The AEADs of TLS that Prism has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aead {
    Aes128,
    Aes256,
    ChaCha20,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Tls12,
    Tls13,
}

impl Aead {
    pub const ALL: [Self; 3] = [Self::Aes128, Self::Aes256, Self::ChaCha20];
}

impl Version {
    pub const ALL: [Self; 2] = [Self::Tls13, Self::Tls12];

    /// As rustls has it.
    pub fn rustls(self) -> &'static SupportedProtocolVersion {
        match self {
            Self::Tls12 => &rustls::version::TLS12,
            Self::Tls13 => &rustls::version::TLS13,
        }
    }
}

/// A cluster that serves HTTPS, and whose objects everybody may read.
pub fn up(backends: usize, change: impl FnOnce(&mut LabSpec)) -> Cluster {
    up_configured(backends, change, |_| {})
}

/// The same with a changed configuration.
pub fn up_configured(
    backends: usize,
    change: impl FnOnce(&mut LabSpec),
    configure: impl FnOnce(&mut ConfigFile) + Send + 'static,
) -> Cluster {
    Cluster::up_with(backends, |spec| {
        spec.tls = true;
        spec.configure = Some(Box::new(|config| {
            config.s3.anonymous = Anonymous::Read;
            configure(config);
        }));
        change(spec);
    })
}

/// A client's configuration that trusts the cluster's authority.
pub fn config(cluster: &Cluster, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    config_with(cluster, versions, provider)
}

/// The same with another choice of suites.
pub fn config_with(
    cluster: &Cluster,
    versions: &[&'static SupportedProtocolVersion],
    provider: CryptoProvider,
) -> ClientConfig {
    let file = cluster.lab.ca_file().unwrap();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(file).unwrap())
        .unwrap();
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// A connection of the client's host to the service's port of HTTPS.
pub fn connect(cluster: &Cluster, config: &Arc<ClientConfig>) -> Client {
    let service = cluster.next_https_service();
    let name = ServerName::from(service.ip());
    let tls = ClientConnection::new(Arc::clone(config), name).unwrap();
    let plain = cluster.connect_to(service, |_| {});
    plain.with_tls(tls)
}
