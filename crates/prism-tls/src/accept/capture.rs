//! Taking the secrets of one session out of rustls.
//!
//! rustls offers derived keys, but a TLS 1.3 session needs its traffic secrets
//! to follow a later KeyUpdate; only the key log has those. So each connection
//! gets a key log of its own, which keeps the two application secrets in
//! memory and writes nothing anywhere.

use std::sync::{Mutex, PoisonError};

use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, KeyLog, ProtocolVersion};

use crate::keys::{DirectionKeys, Secret, SessionKeys, Suite};

const CLIENT_LABEL: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_LABEL: &str = "SERVER_TRAFFIC_SECRET_0";

/// The first application traffic secrets of one TLS 1.3 session.
#[derive(Debug, Default)]
pub(super) struct Captured(Mutex<TrafficSecrets>);

#[derive(Debug, Default)]
struct TrafficSecrets {
    client: Option<Secret>,
    server: Option<Secret>,
}

impl KeyLog for Captured {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

impl Captured {
    fn take(&self) -> TrafficSecrets {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The keys of a session that just ended its handshake, with the sequence
/// numbers that rustls has reached; `None` when one is missing.
///
/// Generation 0 of the secrets is the current one because rustls has seen
/// nothing after the handshake, so no KeyUpdate either.
pub(super) fn session_keys(
    version: ProtocolVersion,
    extracted: ExtractedSecrets,
    captured: &Captured,
) -> Option<SessionKeys> {
    let (read_sequence, read) = extracted.rx;
    let (write_sequence, write) = extracted.tx;
    let secrets = captured.take();
    if version == ProtocolVersion::TLSv1_3 {
        let (suite, ..) = parts(&write)?;
        return Some(SessionKeys {
            suite,
            read: DirectionKeys::Tls13 {
                secret: secrets.client?,
                sequence: read_sequence,
            },
            write: DirectionKeys::Tls13 {
                secret: secrets.server?,
                sequence: write_sequence,
            },
        });
    }
    let (suite, write) = tls12(&write, write_sequence)?;
    let (_, read) = tls12(&read, read_sequence)?;
    Some(SessionKeys { suite, read, write })
}

/// The IV stays as rustls has it. For GCM its last 8 bytes are the base that
/// explicit nonces count up from: rustls used the base itself for the Finished
/// message, its record 0, and the next is `sequence` above it.
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
