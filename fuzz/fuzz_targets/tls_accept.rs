//! Any bytes of a client in the server's handshake: raw, as the content of handshake records, or
//! behind a valid ClientHello. There is no panic, no session, the same outcome whole and in pieces,
//! and no error with a local fault.
#![no_main]

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use prism_tls::accept::{
    CertificateFiles, Certificates, ServerConfig, Settings, Tickets, TimeProvider,
};
use prism_tls::{HandshakeError, Secret};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::UnixTime;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

static SERVER: LazyLock<ServerConfig> = LazyLock::new(server);
static HELLO: LazyLock<Vec<u8>> = LazyLock::new(hello);

fn server() -> ServerConfig {
    let made = rcgen::generate_simple_self_signed(["s3.test".into()]).unwrap();
    let directory = std::env::temp_dir().join(format!("prism-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let files = CertificateFiles {
        certificate: directory.join("crt"),
        key: directory.join("key"),
        names: Vec::new(),
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&files.key, PermissionsExt::from_mode(0o600)).unwrap();
    let certificates = Certificates::load(vec![files]).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    let clock: Arc<dyn TimeProvider> = Arc::new(Fixed);
    let secret = Secret::new(&[7; 32]).unwrap();
    let tickets = Tickets::new(&[secret], 3_600, clock.clone()).unwrap();
    let (certificates, tickets) = (Arc::new(certificates), Some(Arc::new(tickets)));
    ServerConfig::new(&Settings::default(), certificates, tickets, clock).unwrap()
}

/// A clock that stands still.
#[derive(Debug)]
struct Fixed;

impl TimeProvider for Fixed {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            1_800_000_000,
        )))
    }
}

fn hello() -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = "s3.test".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut wire = Vec::new();
    client.write_tls(&mut wire).unwrap();
    wire
}

/// The bytes of a client, made of the fuzzer's input.
fn input(form: u8, data: &[u8]) -> Vec<u8> {
    match form % 3 {
        0 => data.to_vec(),
        1 => data.chunks(700).flat_map(record).collect(),
        _ => [&HELLO, data].concat(),
    }
}

fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [&[22, 3, 1], &length[..], content].concat()
}

/// The outcome of the input, without the parts that depend on its cuts.
/// The first part tells whether this program is at fault.
fn outcome(input: &[u8], piece: usize) -> Option<(bool, String)> {
    let mut handshake = SERVER.handshake().unwrap();
    for piece in input.chunks(piece) {
        match handshake.receive(piece, &mut Vec::new()) {
            Ok(is_over) => assert!(!is_over, "established"),
            Err(error) => {
                let is_local =
                    matches!(error, HandshakeError::Local(_) | HandshakeError::NoSecrets);
                return Some((is_local, format!("{error} {}", handshake.is_http())));
            }
        }
    }
    None
}

fuzz_target!(|parts: (u8, u8, &[u8])| {
    let (form, piece, data) = parts;
    let input = input(form, data);
    let whole = outcome(&input, input.len().max(1));
    assert!(!matches!(whole, Some((true, _))), "{whole:?}");
    assert_eq!(whole, outcome(&input, usize::from(piece).max(1)));
});
