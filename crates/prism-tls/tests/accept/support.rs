//! An authority with certificates in files, servers with these certificates, and connections in
//! memory.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use prism_tls::accept::{
    CertificateFiles, Certificates, DefaultTimeProvider, ServerConfig, Settings, Tickets,
    TimeProvider,
};
use prism_tls::{Event, Handshake, HandshakeError, Secret, Session, SessionKeys, Version};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SignatureAlgorithm};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore};

/// The host that every certificate of [`FIXTURE`] is for.
pub const HOST: &str = "s3.example.test";
pub const ROTATION_S: u32 = 3_600;

/// The authority of most tests, made once because RSA keys take long.
pub static FIXTURE: LazyLock<Fixture> = LazyLock::new(Fixture::new);

pub struct Fixture {
    pub authority: Authority,
    pub ecdsa: CertificateFiles,
    pub rsa: CertificateFiles,
}

impl Fixture {
    fn new() -> Self {
        let authority = Authority::new();
        let ecdsa = authority.issue("ecdsa", &[HOST], &rcgen::PKCS_ECDSA_P256_SHA256);
        let rsa = authority.issue("rsa", &[HOST], &rcgen::PKCS_RSA_SHA256);
        Self {
            authority,
            ecdsa,
            rsa,
        }
    }

    pub fn certificates(&self) -> Arc<Certificates> {
        let files = vec![self.ecdsa.clone(), self.rsa.clone()];
        Arc::new(Certificates::load(files).unwrap())
    }
}

pub struct Authority {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
}

impl Authority {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.path().join("ca.crt"), certificate.pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        Self {
            directory,
            issuer: Issuer::new(params, key),
            roots: Arc::new(roots),
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn ca_file(&self) -> PathBuf {
        self.directory().join("ca.crt")
    }

    /// A new certificate for `names` in `<file>.crt` and `<file>.key`.
    pub fn issue(
        &self,
        file: &str,
        names: &[&str],
        algorithm: &'static SignatureAlgorithm,
    ) -> CertificateFiles {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, file);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = CertificateFiles {
            certificate: self.directory().join(format!("{file}.crt")),
            key: self.directory().join(format!("{file}.key")),
            names: Vec::new(),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        write_private(&files.key, &key.serialize_pem());
        files
    }

    /// A client that trusts this authority and offers the suites of `provider`.
    pub fn client(&self, provider: CryptoProvider) -> ClientConfig {
        ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth()
    }
}

pub fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

pub fn certificate_in(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

/// A client of [`FIXTURE`] that offers one suite only.
pub fn client_of_suite(suite: &str) -> ClientConfig {
    let mut provider = default_provider();
    let name = suite.replacen("TLS_AES", "TLS13_AES", 1);
    let name = name.replacen("TLS_CHACHA20", "TLS13_CHACHA20", 1);
    provider
        .cipher_suites
        .retain(|known| format!("{:?}", known.suite()) == name);
    assert_eq!(provider.cipher_suites.len(), 1, "{suite}");
    FIXTURE.authority.client(provider)
}

pub fn connect(config: ClientConfig) -> ClientConnection {
    connect_to(&Arc::new(config), HOST)
}

pub fn connect_to(config: &Arc<ClientConfig>, host: &str) -> ClientConnection {
    ClientConnection::new(config.clone(), host.to_owned().try_into().unwrap()).unwrap()
}

/// The machine's clock, for tests against real clients.
pub fn system_clock() -> Arc<dyn TimeProvider> {
    Arc::new(DefaultTimeProvider)
}

/// A clock that the test sets.
#[derive(Clone, Debug)]
pub struct Wall(Arc<AtomicU64>);

impl TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        let now = Duration::from_secs(self.0.load(Ordering::Relaxed));
        Some(UnixTime::since_unix_epoch(now))
    }
}

impl Wall {
    /// The present time to the second: clients compare it with their own.
    pub fn now() -> Self {
        Self(Arc::new(AtomicU64::new(UnixTime::now().as_secs())))
    }

    pub fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }

    pub fn clock(&self) -> Arc<dyn TimeProvider> {
        Arc::new(self.clone())
    }
}

pub fn tickets(byte: u8, clock: Arc<dyn TimeProvider>) -> Arc<Tickets> {
    let secret = Secret::new(&[byte; 32]).unwrap();
    Arc::new(Tickets::new(&[secret], ROTATION_S, clock).unwrap())
}

/// A server under [`FIXTURE`] with default settings and the tickets of secret 1.
pub fn server() -> ServerConfig {
    server_with(&Settings::default(), 1, system_clock())
}

pub fn server_with(settings: &Settings, secret: u8, clock: Arc<dyn TimeProvider>) -> ServerConfig {
    let tickets = tickets(secret, clock.clone());
    ServerConfig::new(settings, FIXTURE.certificates(), Some(tickets), clock).unwrap()
}

/// IANA's names of all suites.
pub const SUITES: [&str; 9] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// A handshake that waits for the client.
#[derive(Debug)]
pub struct Acceptor(Box<Handshake>);

/// The outcome of the client's bytes.
#[derive(Debug)]
pub enum Step {
    Wait { acceptor: Acceptor, output: Vec<u8> },
    Established(Established),
    Failed(Failure),
    NotTls { is_http: bool },
}

/// An established session, and the last bytes to the client.
#[derive(Debug)]
pub struct Established {
    pub output: Vec<u8>,
    pub keys: SessionKeys,
    pub unread: Vec<u8>,
    pub alpn: Option<Vec<u8>>,
    pub cipher_suite: String,
    pub resumed: bool,
}

#[derive(Debug)]
pub struct Failure {
    pub output: Vec<u8>,
    pub error: HandshakeError,
}

impl Acceptor {
    pub fn new(config: &ServerConfig) -> Self {
        Self(Box::new(config.handshake().unwrap()))
    }

    pub fn receive(self, input: &[u8]) -> Step {
        let Self(mut handshake) = self;
        let mut output = Vec::new();
        match handshake.receive(input, &mut output) {
            Ok(false) => Step::Wait {
                acceptor: Self(handshake),
                output,
            },
            Ok(true) => Step::Established(Established::new(*handshake, output)),
            Err(HandshakeError::NotTls) => {
                assert!(output.is_empty());
                let is_http = handshake.is_http();
                Step::NotTls { is_http }
            }
            Err(error) => Step::Failed(Failure { output, error }),
        }
    }
}

impl Established {
    fn new(handshake: Handshake, output: Vec<u8>) -> Self {
        let state = handshake.state();
        let suite = state.negotiated_cipher_suite().unwrap().suite();
        let cipher_suite = suite.as_str().unwrap().replace("TLS13", "TLS");
        let alpn = state.alpn_protocol().map(<[u8]>::to_vec);
        let resumed = state.handshake_kind() == Some(HandshakeKind::Resumed);
        let (keys, unread) = handshake.finish().unwrap();
        Self {
            output,
            keys,
            unread,
            alpn,
            cipher_suite,
            resumed,
        }
    }
}

/// The way in which the client's bytes are cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Nowhere,
    Everywhere,
    Randomly(u64),
}

impl Cut {
    pub const ALL: [Self; 4] = [
        Self::Nowhere,
        Self::Everywhere,
        Self::Randomly(1),
        Self::Randomly(2),
    ];

    fn pieces(self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut random = match self {
            Self::Nowhere => return vec![bytes.to_vec()],
            Self::Everywhere => return bytes.iter().map(|&byte| vec![byte]).collect(),
            Self::Randomly(seed) => fastrand::Rng::with_seed(seed),
        };
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(random.usize(1..=rest.len().min(300)));
            pieces.push(piece.to_vec());
            rest = tail;
        }
        pieces
    }
}

/// Runs the handshake to its end in memory. The server gets `behind` in the same bytes as the
/// client's last flight.
pub fn handshake(
    client: &mut ClientConnection,
    server: &ServerConfig,
    cut: Cut,
    behind: &[u8],
) -> Result<Established, Failure> {
    let mut acceptor = Acceptor::new(server);
    for _ in 0..8 {
        let mut wire = drain(client);
        if !client.is_handshaking() {
            wire.extend_from_slice(behind);
        }
        let mut pieces = cut.pieces(&wire).into_iter();
        while let Some(piece) = pieces.next() {
            match acceptor.receive(&piece) {
                Step::Wait {
                    acceptor: next,
                    output,
                } => {
                    acceptor = next;
                    feed(client, &output);
                }
                Step::Established(mut established) => {
                    feed(client, &established.output);
                    pieces.for_each(|piece| established.unread.extend(piece));
                    return Ok(established);
                }
                Step::Failed(failure) => return Err(failure),
                Step::NotTls { .. } => panic!("no TLS"),
            }
        }
    }
    panic!("no end of the handshake");
}

pub fn drain(client: &mut ClientConnection) -> Vec<u8> {
    let mut wire = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut wire).unwrap();
    }
    wire
}

pub fn feed(client: &mut ClientConnection, mut wire: &[u8]) {
    while !wire.is_empty() {
        client.read_tls(&mut wire).unwrap();
        client.process_new_packets().unwrap();
    }
}

/// The server's end of an established session.
pub struct Served {
    session: Session,
    input: Vec<u8>,
}

impl Served {
    pub fn new(established: Established) -> Self {
        Self {
            session: Session::new(established.keys).unwrap(),
            input: established.unread,
        }
    }

    /// The plaintext of all records that `wire` completes.
    pub fn open(&mut self, wire: &[u8]) -> Vec<u8> {
        self.input.extend_from_slice(wire);
        let mut plain = Vec::new();
        loop {
            let opened = self.session.open(&mut self.input).unwrap();
            match opened.event {
                Event::Incomplete { .. } => return plain,
                Event::Data(place) => plain.extend_from_slice(&self.input[place]),
                Event::CloseNotify => return plain,
                Event::Empty => {}
                other => panic!("{other:?}"),
            }
            self.input.drain(..opened.consumed);
        }
    }

    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        self.session.seal(plain, &mut wire).unwrap();
        wire
    }

    pub fn close(&mut self) -> Vec<u8> {
        let mut wire = Vec::new();
        self.session.seal_close_notify(&mut wire).unwrap();
        wire
    }
}

/// Sends `bytes` of data in each direction, in several turns, and compares them.
pub fn exchange(client: &mut ClientConnection, served: &mut Served, bytes: usize) {
    use std::io::{Read, Write};
    let data: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    for _ in 0..3 {
        client.writer().write_all(&data).unwrap();
        assert_eq!(served.open(&drain(client)), data);
        feed(client, &served.seal(&data));
        let mut answer = vec![0; bytes];
        client.reader().read_exact(&mut answer).unwrap();
        assert_eq!(answer, data);
    }
}

pub fn version_of(established: &Established) -> Version {
    assert_eq!(
        established.keys.read.version(),
        established.keys.write.version()
    );
    established.keys.read.version()
}

/// The party that has to act so that the next handshake succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client: it broke the protocol, or went away.
    Peer,
    /// Client and server together: they have nothing in common, or the client does not trust the
    /// certificate.
    Mismatch,
    /// This program or its configuration.
    Local,
}

pub fn fault(error: &HandshakeError) -> Fault {
    match error {
        HandshakeError::Incompatible(_) | HandshakeError::Refused(_) => Fault::Mismatch,
        HandshakeError::Local(_) | HandshakeError::NoSecrets => Fault::Local,
        _ => Fault::Peer,
    }
}
