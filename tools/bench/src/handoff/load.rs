//! The client: one connection, two objects of different backends in turn.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use prism_cluster::{NodeName, Placement};
use prism_http::{BodyReader, Limits, Method, ResponseHead};
use prism_lab::Lab;
use prism_s3::Signer;
use prism_sys::netns::NetNs;

use crate::client::{self, Stream, Trust};
use crate::http;

/// What both objects hold.
const OBJECT: &[u8] = b"hand-off";

/// How long backends may take to hear of each other's buckets.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// Requests that are ready to be sent.
pub(super) struct Load {
    service: SocketAddr,
    trust: Option<Trust>,
    netns: NetNs,
    /// One for each backend.
    gets: [Vec<u8>; 2],
}

impl Load {
    /// Stores the two objects.
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let service = SocketAddr::from(lab.https_service().unwrap_or(lab.service()));
        let ca_file = lab.ca_file();
        let trust = ca_file.map(|file| Trust::new(&file, service.ip()));
        let trust = trust.transpose()?;
        let credential = lab.credential();
        let (key, secret) = (&credential.access_key, &credential.secret_key);
        let signer = Signer::new(key.as_str(), secret.as_str(), "us-east-1");
        let keys = [key_of("be0")?, key_of("be1")?];
        let request = |method: &str, target: &str, body: &[u8]| {
            request(&signer, service, method, target, body)
        };
        let bucket = request("PUT", "/bench", b"")?;
        let mut requests = Vec::new();
        for key in &keys {
            requests.push(request("PUT", &format!("/bench/{key}"), OBJECT)?);
        }
        let [a, b] = keys.map(|key| request("GET", &format!("/bench/{key}"), b""));
        let load = Self {
            service,
            trust,
            netns: client::network(lab)?,
            gets: [a?, b?],
        };
        let begun = Instant::now();
        while let Err(error) = load.run(vec![&bucket]) {
            // The backends may not have heard of each other yet.
            if begun.elapsed() > READY_WITHIN {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
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
            let mut stream = client::connect(self.service, self.trust.as_ref())?.stream;
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
