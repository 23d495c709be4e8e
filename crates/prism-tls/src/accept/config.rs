//! The configuration that all handshakes of a server share.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{Error, ServerConnection, SupportedCipherSuite, SupportedProtocolVersion};

use super::certificates::Certificates;
use super::tickets::Tickets;
use crate::capture::Capture;
use crate::handshake::Handshake;
use prism_proto::tls::Version;

/// Most bytes that a client may send before the handshake ends, headers included. A
/// ClientHello with post-quantum key shares and a ticket has less than 4 KiB, and comes twice
/// after a HelloRetryRequest. 32 KiB are four times that.
pub const MAX_HANDSHAKE_BYTES: usize = 32 << 10;
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
    /// IANA's names of the cipher suites that are served, in the server's order of preference. If
    /// there are none, all that rustls knows are served, and the client's preference decides.
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
    ) -> Result<Self, Error> {
        let mut provider = default_provider();
        if !settings.suites.is_empty() {
            provider.cipher_suites = chosen(&settings.suites, &provider.cipher_suites)?;
        }
        let versions = versions(settings.minimum_version, &provider.cipher_suites);
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&versions)?
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

    /// The handshake of a new connection, under the present certificates and settings.
    ///
    /// # Errors
    /// If rustls refuses its configuration, which [`Self::new`] rules out.
    pub fn handshake(&self) -> Result<Handshake, Error> {
        let capture = Capture::default();
        let mut config = (*self.0).clone();
        config.key_log = capture.key_log();
        if config.ticketer.enabled() {
            config.ticketer = Arc::new(Tls13Tickets {
                tickets: config.ticketer,
                capture: capture.clone(),
            });
        }
        let connection = ServerConnection::new(Arc::new(config))?;
        Ok(Handshake::new(
            connection.into(),
            capture,
            MAX_HANDSHAKE_BYTES,
        ))
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
        if self.capture.is_tls13() {
            self.tickets.encrypt(plain)
        } else {
            None
        }
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.tickets.decrypt(ticket)
    }
}

/// The suites with these names, in this order.
fn chosen(
    names: &[String],
    known: &[SupportedCipherSuite],
) -> Result<Vec<SupportedCipherSuite>, Error> {
    let find = |name: &String| {
        let is_named = |suite: &&SupportedCipherSuite| {
            // rustls's names of TLS 1.3 have a version; IANA's are otherwise the same.
            let known = suite.suite().as_str();
            known.is_some_and(|known| known.replacen("TLS13_", "TLS_", 1) == *name)
        };
        let found = known.iter().find(is_named).copied();
        found.ok_or_else(|| Error::General(format!("{name:?} is not a known cipher suite")))
    };
    names.iter().map(find).collect()
}

/// The versions from `minimum` on that have a suite. A client of another version then gets the
/// alert for its version.
fn versions(
    minimum: Version,
    suites: &[SupportedCipherSuite],
) -> Vec<&'static SupportedProtocolVersion> {
    let candidates: &[&'static SupportedProtocolVersion] = match minimum {
        Version::Tls12 => &[&TLS13, &TLS12],
        Version::Tls13 => &[&TLS13],
    };
    let has_suite = |version: &&&'static SupportedProtocolVersion| {
        suites.iter().any(|suite| suite.version() == **version)
    };
    candidates.iter().filter(has_suite).copied().collect()
}
