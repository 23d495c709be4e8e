//! Loads the certificates and ticket secrets of HTTPS, again whenever the files change.
//!
//! Not here: the handshake (`prism-tls`) and its sockets (`prism-handoff`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prism_config::{Config, KernelTls, Node, Tls, TlsVersion};
use prism_handoff::TlsService;
use prism_handoff::followed::{FollowedFiles, ReloadRequests};
use prism_sys::tcp::ktls::Offered;
use prism_tls::accept::{
    CertificateFiles, Certificates, DefaultTimeProvider, ServerConfig, Settings, Tickets,
};
use prism_tls::{Secret, Version};

/// Time between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// HTTPS on this node.
pub struct Https {
    /// The HTTPS part of an endpoint.
    pub service: TlsService,
    /// `None` at a node that accepts no clients.
    certificates: Option<Arc<Certificates>>,
    /// The files of the certificates and their keys.
    files: FollowedFiles,
    /// The ticket secrets, if the configuration names a file of them.
    tickets: Option<Arc<Tickets>>,
    config: Tls,
}

impl Https {
    /// Loads the files of `[service.tls]`; `None` without that section. A node that accepts no
    /// clients needs no certificates.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn load(config: &Config, node: &Node) -> anyhow::Result<Option<Self>> {
        let (Some(tls), Some(addresses)) = (&config.service.tls, config.tls_address()) else {
            return Ok(None);
        };
        let mut https = Self {
            service: TlsService {
                addresses: addresses.iter().collect(),
                server: None,
                kernel: None,
            },
            certificates: None,
            files: FollowedFiles::new(
                certificate_files(tls)
                    .into_iter()
                    .flat_map(|files| [files.certificate, files.key]),
            ),
            tickets: None,
            config: tls.clone(),
        };
        if node.is_frontend() {
            let certificates = Arc::new(Certificates::load(certificate_files(tls))?);
            let clock = Arc::new(DefaultTimeProvider);
            if tls.ticket_secret_file.is_some() {
                let secrets = ticket_secrets(tls)?;
                let made = Tickets::new(&secrets, tls.ticket_rotation_s, clock.clone());
                https.tickets = Some(Arc::new(made.context("[service.tls] ticket_secret_file")?));
            }
            let chosen = certificates.clone();
            let used = https.tickets.clone();
            let made = ServerConfig::new(&settings(tls), chosen, used, clock);
            https.service.server = Some(made.context("[service.tls]")?);
            https.certificates = Some(certificates);
        }
        https.service.kernel = kernel_tls(node);
        Ok(Some(https))
    }

    /// Loads certificates and ticket secrets again whenever the files of certificates have changed,
    /// and at each of the `requests`. Files that cannot be loaded leave the old ones in use. Never
    /// returns.
    pub async fn keep_current(&self, requests: ReloadRequests) {
        if self.certificates.is_none() {
            return std::future::pending().await;
        }
        let reload = || self.reload();
        self.files.follow(LOOK_AGAIN, requests, reload).await;
    }

    /// Serves a certificate that is no file, in the place of the one that was given before. `name`
    /// is for the error.
    ///
    /// # Errors
    /// It cannot be served. The one before stays in use.
    pub fn give(&self, name: &str, chain: &[u8], key: &[u8]) -> anyhow::Result<()> {
        match &self.certificates {
            Some(certificates) => Ok(certificates.give(name, chain, key)?),
            None => Ok(()),
        }
    }

    /// Loads certificates and ticket secrets now. Open connections keep theirs.
    fn reload(&self) {
        let Some(certificates) = &self.certificates else {
            return;
        };
        match certificates.reload() {
            Ok(()) => tracing::info!(names = ?certificates.names(), "certificates loaded again"),
            Err(error) => {
                tracing::error!(%error, "cannot load the certificates; the old ones stay in use")
            }
        }
        let Some(tickets) = &self.tickets else {
            return;
        };
        let secrets = ticket_secrets(&self.config);
        let replaced = secrets.and_then(|secrets| Ok(tickets.replace_secrets(&secrets)?));
        if let Err(error) = replaced {
            tracing::error!(
                error = format!("{error:#}"),
                "cannot load the ticket secrets; the old ones stay in use"
            );
        }
    }
}

/// The cipher suites of the host's kernel, if the configuration allows kernel TLS.
fn kernel_tls(node: &Node) -> Option<Offered> {
    if node.kernel_tls == KernelTls::Off {
        return None;
    }
    match Offered::probe() {
        Ok(offered) => {
            tracing::info!(suites = %offered, "the kernel makes TLS records of large bodies");
            Some(offered)
        }
        Err(error) => {
            tracing::info!(%error, "all TLS records are made in user space");
            None
        }
    }
}

fn certificate_files(tls: &Tls) -> Vec<CertificateFiles> {
    let files = tls.certificates.iter().map(|files| CertificateFiles {
        certificate: files.file.clone(),
        key: files.key_file.clone(),
        names: files.names.clone(),
    });
    files.collect()
}

fn settings(tls: &Tls) -> Settings {
    Settings {
        minimum_version: match tls.min_version {
            TlsVersion::Tls12 => Version::Tls12,
            TlsVersion::Tls13 => Version::Tls13,
        },
        suites: tls.suites.iter().map(|suite| suite.name()).collect(),
    }
}

fn ticket_secrets(tls: &Tls) -> anyhow::Result<Vec<Secret>> {
    let secrets = tls.load_ticket_secrets()?;
    let secrets = secrets.iter().map(|secret| Secret::new(secret.bytes()));
    secrets.collect::<Result<_, _>>().context("a ticket secret")
}
