//! A server with a certificate of its own, and the handshake with any peer.

use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use prism_tls::accept::{
    CertificateFiles, Certificates, DefaultTimeProvider, ServerConfig, Settings, Tickets,
    TimeProvider,
};
use prism_tls::{Secret, SessionKeys};
use rustls::pki_types::CertificateDer;

use crate::peer::{Act, Peer};

pub(crate) const HOST: &str = "s3.example.test";

/// IANA's names of all suites whose sessions can move.
pub(crate) const SUITES: [&str; 6] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
];

pub(crate) struct Server {
    config: ServerConfig,
    pub(crate) certificate: CertificateDer<'static>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("server.crt");
        let key = directory.path().join("server.key");
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        let mut private = std::fs::OpenOptions::new();
        let mut private = private
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&key)
            .unwrap();
        std::io::Write::write_all(&mut private, made.signing_key.serialize_pem().as_bytes())
            .unwrap();
        let files = CertificateFiles {
            certificate,
            key,
            names: Vec::new(),
        };
        let certificates = Arc::new(Certificates::load(vec![files]).unwrap());
        let tickets = Tickets::new(&[Secret::new(&[1; 32]).unwrap()], 3_600, clock()).unwrap();
        let tickets = Some(Arc::new(tickets));
        let config =
            ServerConfig::new(&Settings::default(), certificates, tickets, clock()).unwrap();
        Self {
            config,
            certificate: made.cert.der().clone(),
        }
    }

    /// Brings `peer` to an established session. The peer has then got all bytes of the handshake.
    /// Also returns the records that it has sent since.
    pub(crate) fn handshake(&self, peer: &mut dyn Peer) -> (SessionKeys, Vec<u8>) {
        let mut handshake = self.config.handshake().unwrap();
        let mut wire = peer.act(Act::Receive(&[])).wire;
        for _ in 0..8 {
            let mut output = Vec::new();
            let is_over = handshake.receive(&wire, &mut output).unwrap();
            wire = peer.act(Act::Receive(&output)).wire;
            if is_over {
                let (keys, mut unread) = handshake.finish().unwrap();
                unread.extend(wire);
                return (keys, unread);
            }
        }
        panic!("no end of the handshake");
    }
}

fn clock() -> Arc<dyn TimeProvider> {
    Arc::new(DefaultTimeProvider)
}
