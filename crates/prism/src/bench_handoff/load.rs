//! The client: one connection, two objects of different backends in turn.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use prism_cluster::{NodeName, Placement};
use prism_http::{BodyReader, Limits, Method, ResponseHead};
use prism_lab::Lab;
use prism_s3::Signer;
use prism_sys::netns::NetNs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, StreamOwned};

use crate::bench::http;

/// What both objects hold.
const OBJECT: &[u8] = b"hand-off";
/// No answer takes this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests that are ready to be sent.
pub(super) struct Load {
    service: SocketAddr,
    tls: Option<Arc<rustls::ClientConfig>>,
    netns: NetNs,
    /// One for each backend.
    gets: [Vec<u8>; 2],
}

impl Load {
    /// Stores the two objects.
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let service = lab.https_service().unwrap_or(lab.service()).into();
        let tls = lab.ca_file().map(|ca| trusting(&ca)).transpose()?;
        let credential = lab.credential();
        let (key, secret) = (&credential.access_key, &credential.secret_key);
        let signer = Signer::new(key.as_str(), secret.as_str(), "us-east-1");
        let namespace = lab.namespace("client")?;
        let namespace = namespace
            .file_name()
            .and_then(|n| n.to_str())
            .context("namespace")?;
        let netns = NetNs::named(namespace)?;
        let keys = [key_of("be0")?, key_of("be1")?];
        let request = |method: &str, target: &str, body: &[u8]| {
            request(&signer, service, method, target, body)
        };
        let mut requests = vec![request("PUT", "/bench", b"")?];
        for key in &keys {
            requests.push(request("PUT", &format!("/bench/{key}"), OBJECT)?);
        }
        let [a, b] = keys.map(|key| request("GET", &format!("/bench/{key}"), b""));
        let load = Self {
            service,
            tls,
            netns,
            gets: [a?, b?],
        };
        load.run(requests.iter().map(Vec::as_slice).collect())?;
        Ok(load)
    }

    /// Fetches `count` times, from one backend and the other in turn; gives the
    /// time that each took, in µs.
    pub(super) fn alternate(&self, count: usize) -> Result<Vec<f64>> {
        self.run(
            self.gets
                .iter()
                .map(Vec::as_slice)
                .cycle()
                .take(count)
                .collect(),
        )
    }

    /// Sends one request after the other on one connection.
    fn run(&self, requests: Vec<&[u8]>) -> Result<Vec<f64>> {
        self.netns.run(|| {
            let stream = TcpStream::connect(self.service)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut stream: Box<dyn Stream> = match &self.tls {
                None => Box::new(stream),
                Some(config) => {
                    let name = ServerName::from(self.service.ip());
                    let session = ClientConnection::new(config.clone(), name)?;
                    Box::new(StreamOwned::new(session, stream))
                }
            };
            let (mut buffer, mut took_us) = (Vec::new(), Vec::with_capacity(requests.len()));
            for request in requests {
                let start = Instant::now();
                stream.write_all(request)?;
                read_answer(&mut *stream, &mut buffer, request.starts_with(b"GET"))?;
                took_us.push(start.elapsed().as_secs_f64() * 1e6);
            }
            Ok(took_us)
        })?
    }
}

/// What a client speaks over.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// TLS 1.3 with AES-128-GCM, as the papers measured.
fn trusting(ca_file: &Path) -> Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca_file)? {
        roots.add(certificate?)?;
    }
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites =
        vec![rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A key that placement gives to `backend`.
fn key_of(backend: &str) -> Result<String> {
    let nodes = ["be0", "be1"]
        .map(NodeName::new)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let placement = Placement::new(nodes)?;
    (0..1000)
        .map(|n| format!("object-{n}"))
        .find(|key| {
            placement
                .owner("bench", key)
                .is_some_and(|n| n.as_str() == backend)
        })
        .context("placement gives nothing to a backend")
}

fn request(
    signer: &Signer,
    service: SocketAddr,
    method: &str,
    target: &str,
    body: &[u8],
) -> Result<Vec<u8>> {
    let head = http::signed(signer, service, method, target, body)?;
    Ok([&head, body].concat())
}

/// Reads one answer, and checks that it is the object.
fn read_answer(stream: &mut dyn Stream, buffer: &mut Vec<u8>, is_get: bool) -> Result<()> {
    buffer.clear();
    let mut chunk = [0; 4096];
    loop {
        if let Some((head, len)) = ResponseHead::parse(buffer, &Limits::DEFAULT)? {
            ensure!(
                head.status() == 200,
                "status {}: {}",
                head.status(),
                text(buffer)
            );
            let framing = head.framing(&Method::Get)?;
            let body = buffer.get(len..).unwrap_or_default();
            let mut reader = BodyReader::new(framing, u64::MAX);
            if reader.consume(body)?.done || reader.is_done() {
                ensure!(!is_get || body == OBJECT, "the answer is not the object");
                return Ok(());
            }
        }
        match stream.read(&mut chunk)? {
            0 => bail!("the connection ended in an answer: {}", text(buffer)),
            n => buffer.extend_from_slice(chunk.get(..n).unwrap_or_default()),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(500).collect()
}
