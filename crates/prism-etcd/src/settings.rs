//! The settings of a client.

use std::path::PathBuf;
use std::time::Duration;

use crate::endpoint::Endpoint;

/// The members of one etcd, and how a client reaches them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The members; all `http` or all `https`.
    pub endpoints: Vec<Endpoint>,
    /// Certificates (PEM) of the authorities that sign for etcd; `None` without TLS.
    pub ca_file: Option<PathBuf>,
    /// The certificate (PEM) by which etcd knows this client, if it asks for one.
    pub cert_file: Option<PathBuf>,
    /// The private key (PEM) of that certificate.
    pub key_file: Option<PathBuf>,
    /// The life of the leases that the caller obtains. A call waits for a quarter of it.
    pub lease_ttl: Duration,
}
