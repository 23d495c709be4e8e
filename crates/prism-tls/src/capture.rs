//! Takes the secrets of one session out of rustls, at either end.
//!
//! rustls gives derived keys, but a session of TLS 1.3 needs its traffic secrets for a later
//! KeyUpdate, and only the key log has those. So each connection gets a key log of its own,
//! which keeps the two application secrets in memory and writes nothing anywhere.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::{Connection, ConnectionTrafficSecrets, KeyLog, ProtocolVersion};

use crate::handshake::HandshakeError;
use crate::keys::{DirectionKeys, Secret, SessionKeys};
use prism_proto::tls::Suite;

const CLIENT_LABEL: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_LABEL: &str = "SERVER_TRAFFIC_SECRET_0";

/// Collects the secrets of one connection during its handshake.
#[derive(Clone, Debug, Default)]
pub struct Capture(Arc<Mutex<TrafficSecrets>>);

impl Capture {
    /// The `key_log` for the connection's configuration, which must allow
    /// `enable_secret_extraction`.
    #[must_use]
    pub fn key_log(&self) -> Arc<dyn KeyLog> {
        Arc::new(self.clone())
    }

    /// Whether the secrets of a TLS 1.3 session have been seen.
    pub(crate) fn is_tls13(&self) -> bool {
        self.0.lock().server.is_some()
    }

    /// Ends `connection`, whose handshake is over, and gives the keys of its session. rustls
    /// must not have seen a record after the handshake: its data would be lost, and a
    /// KeyUpdate would have made the secrets old.
    pub(crate) fn session_keys(
        self,
        connection: Connection,
    ) -> Result<SessionKeys, HandshakeError> {
        let version = connection.protocol_version();
        let is_client = matches!(connection, Connection::Client(_));
        let extracted = connection.dangerous_extract_secrets();
        let extracted = extracted.map_err(HandshakeError::Local)?;
        let (read_sequence, read) = extracted.rx;
        let (write_sequence, write) = extracted.tx;
        if version != Some(ProtocolVersion::TLSv1_3) {
            let keys = || {
                let (suite, write) = tls12(&write, write_sequence)?;
                let (_, read) = tls12(&read, read_sequence)?;
                Some(SessionKeys { suite, read, write })
            };
            return keys().ok_or(HandshakeError::NoSecrets);
        }
        let (suite, ..) = parts(&write).ok_or(HandshakeError::NoSecrets)?;
        let TrafficSecrets { client, server } = std::mem::take(&mut *self.0.lock());
        let (Some(client), Some(server)) = (client, server) else {
            return Err(HandshakeError::NoSecrets);
        };
        let (read, write) = if is_client {
            (server, client)
        } else {
            (client, server)
        };
        let direction = |secret, sequence| DirectionKeys::Tls13 { secret, sequence };
        Ok(SessionKeys {
            suite,
            read: direction(read, read_sequence),
            write: direction(write, write_sequence),
        })
    }
}

/// The first application traffic secrets of one TLS 1.3 session.
#[derive(Debug, Default)]
struct TrafficSecrets {
    client: Option<Secret>,
    server: Option<Secret>,
}

impl KeyLog for Capture {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock();
        match label {
            CLIENT_LABEL => secrets.client = Secret::new(secret).ok(),
            SERVER_LABEL => secrets.server = Secret::new(secret).ok(),
            _ => {}
        }
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_LABEL | SERVER_LABEL)
    }
}

/// Keys of TLS 1.2 with rustls's IV. For GCM explicit nonces count up from its last 8 bytes.
/// rustls used these for record 0, the Finished message; the next nonce is `sequence` higher.
fn tls12(secrets: &ConnectionTrafficSecrets, sequence: u64) -> Option<(Suite, DirectionKeys)> {
    let (suite, key, iv) = parts(secrets)?;
    let key = Secret::new(key).ok()?;
    let iv = iv.try_into().ok()?;
    Some((suite, DirectionKeys::Tls12 { key, iv, sequence }))
}

fn parts(secrets: &ConnectionTrafficSecrets) -> Option<(Suite, &[u8], &[u8])> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
            Some((Suite::Aes128Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            Some((Suite::Aes256Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            Some((Suite::ChaCha20Poly1305, key.as_ref(), iv.as_ref()))
        }
        _ => None,
    }
}
