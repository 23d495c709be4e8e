//! The configuration that all handshakes of a server share.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::certificates::Certificates;
use super::tickets::Tickets;
use crate::capture::Capture;
use prism_proto::tls::Version;

/// The one application protocol that is served.
const ALPN: &[u8] = b"http/1.1";
/// Tickets for a TLS 1.3 client after its handshake: one for each of two
/// connections that it may open next. Each costs about 250 bytes on the wire.
const TLS13_TICKETS: usize = 2;

/// Which versions and suites are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The lowest version; the highest is always TLS 1.3.
    pub minimum_version: Version,
    /// IANA's names of the cipher suites that are served, in the server's order of preference.
    /// rustls's spelling (`TLS13_`) is known too. If there are none, all of [`known_suites`]
    /// are served, and the client's preference decides.
    pub suites: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            minimum_version: Version::Tls12,
            suites: Vec::new(),
        }
    }
}

/// Settings that allow no handshake. The fault is the configuration's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// a suite that is not known
    #[error("{name:?} is not a known cipher suite; use some of {}", known_suites().join(", "))]
    UnknownSuite {
        /// As written.
        name: String,
    },
    /// a suite that is named twice
    #[error("the cipher suite {name:?} is named twice; remove one")]
    RepeatedSuite {
        /// As written.
        name: String,
    },
    /// only suites of TLS 1.2, which is not served
    #[error("no cipher suite of TLS 1.3 is named, but TLS 1.3 is the lowest version served")]
    NoSuiteOfVersion,
    /// rustls refused
    #[error("the TLS library refused the settings: {0}")]
    Library(rustls::Error),
}

/// IANA's names of the cipher suites that can be served.
#[must_use]
pub fn known_suites() -> Vec<&'static str> {
    default_provider()
        .cipher_suites
        .iter()
        .filter_map(iana_name)
        .collect()
}

/// The configuration of a server, shared by its connections. A clone is cheap.
#[derive(Clone, Debug)]
pub struct ServerConfig(Arc<rustls::ServerConfig>);

impl ServerConfig {
    /// A server with these certificates, whose later reloads count at once. `tickets` resume
    /// sessions of TLS 1.3; without them every handshake is a full one, as it always is for
    /// TLS 1.2. There is no 0-RTT.
    ///
    /// # Errors
    /// If the settings allow no handshake.
    pub fn new(
        settings: &Settings,
        certificates: Arc<Certificates>,
        tickets: Option<Arc<Tickets>>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, SettingsError> {
        let mut provider = default_provider();
        if !settings.suites.is_empty() {
            provider.cipher_suites = chosen(&settings.suites, &provider.cipher_suites)?;
        }
        let versions = versions(settings.minimum_version, &provider.cipher_suites)?;
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&versions)
            .map_err(SettingsError::Library)?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.time_provider = clock;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.ignore_client_order = !settings.suites.is_empty();
        config.enable_secret_extraction = true;
        // rustls skips early data for a foreign ticket. It gives up past 16 KiB, and the client
        // comes again without early data.
        config.max_early_data_size = 0;
        // A session in this frontend would be of no use at another one.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        if let Some(tickets) = tickets {
            config.ticketer = tickets;
            config.send_tls13_tickets = TLS13_TICKETS;
        }
        Ok(Self(Arc::new(config)))
    }

    /// The configuration of one connection, whose secrets go to `capture`.
    pub(super) fn with_capture(&self, capture: &Capture) -> Arc<rustls::ServerConfig> {
        let mut config = (*self.0).clone();
        config.key_log = capture.key_log();
        if config.ticketer.enabled() {
            config.ticketer = Arc::new(Tls13Tickets {
                tickets: config.ticketer,
                capture: capture.clone(),
            });
        }
        Arc::new(config)
    }
}

/// Tickets for one connection if it is of TLS 1.3. A ticket of TLS 1.2 holds the master secret:
/// somebody who learns the ticket secret later could read a recorded connection (RFC 5077,
/// 5.4). In TLS 1.3 each session has a key exchange of its own.
#[derive(Debug)]
struct Tls13Tickets {
    tickets: Arc<dyn ProducesTickets>,
    capture: Capture,
}

impl ProducesTickets for Tls13Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.tickets.lifetime()
    }

    /// `None` for TLS 1.2, so that rustls sends an empty ticket (RFC 5077, 3.3).
    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        match self.capture.is_tls13() {
            true => self.tickets.encrypt(plain),
            false => None,
        }
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.tickets.decrypt(ticket)
    }
}

fn iana_name(suite: &SupportedCipherSuite) -> Option<&'static str> {
    let name = suite.suite().as_str()?;
    // IANA's names have no version; rustls's are otherwise the same.
    Some(match name {
        "TLS13_AES_128_GCM_SHA256" => "TLS_AES_128_GCM_SHA256",
        "TLS13_AES_256_GCM_SHA384" => "TLS_AES_256_GCM_SHA384",
        "TLS13_CHACHA20_POLY1305_SHA256" => "TLS_CHACHA20_POLY1305_SHA256",
        name => name,
    })
}

fn chosen(
    names: &[String],
    known: &[SupportedCipherSuite],
) -> Result<Vec<SupportedCipherSuite>, SettingsError> {
    let mut suites = Vec::with_capacity(known.len());
    for name in names {
        let is_named = |suite: &&SupportedCipherSuite| {
            iana_name(suite) == Some(name) || suite.suite().as_str() == Some(name)
        };
        let Some(suite) = known.iter().find(is_named) else {
            return Err(SettingsError::UnknownSuite { name: name.clone() });
        };
        if suites.contains(suite) {
            return Err(SettingsError::RepeatedSuite { name: name.clone() });
        }
        suites.push(*suite);
    }
    Ok(suites)
}

/// The versions from `minimum` on that have a suite. A client of another version then gets the
/// alert for its version.
fn versions(
    minimum: Version,
    suites: &[SupportedCipherSuite],
) -> Result<Vec<&'static SupportedProtocolVersion>, SettingsError> {
    let candidates: &[&'static SupportedProtocolVersion] = match minimum {
        Version::Tls12 => &[&TLS13, &TLS12],
        Version::Tls13 => &[&TLS13],
    };
    let has_suite = |version: &&&'static SupportedProtocolVersion| {
        suites.iter().any(|suite| suite.version() == **version)
    };
    let served: Vec<_> = candidates.iter().filter(has_suite).copied().collect();
    if served.is_empty() {
        return Err(SettingsError::NoSuiteOfVersion);
    }
    Ok(served)
}
