//! HTTP towards the authority: one request on each connection, over TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use prism_common::input::BufferedStream;
use prism_http::{Limits, Method, read_answer, read_body};
use prism_pki::https_client;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer in bytes. A chain of certificates has about 8 KiB.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// The files with the authorities that a system trusts: Debian's, Fedora's and openSUSE's.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// A client of one authority.
#[derive(Clone)]
pub(crate) struct Https(Arc<ClientConfig>);

impl Https {
    /// A client that trusts the authorities in `ca_file`, or those that the system trusts.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn new(ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let file = match ca_file {
            Some(file) => file.to_owned(),
            None => system_authorities()?,
        };
        let client = https_client(&file, None).context("service.acme.ca_file")?;
        Ok(Self(client))
    }

    async fn exchange(self, request: Request<BodyWrapper<Bytes>>) -> io::Result<BytesResponse> {
        let (parts, body) = request.into_parts();
        // The error of the body's type has no value.
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let host = parts.uri.host().unwrap_or_default();
        let port = parts.uri.port_u16().unwrap_or(443);
        if parts.uri.scheme_str() != Some("https") {
            return Err(io::Error::other("the URL is not https"));
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned()).map_err(io::Error::other)?;
        let tcp = TcpStream::connect((bare, port)).await?;
        let connector = tokio_rustls::TlsConnector::from(self.0);
        let mut stream = BufferedStream::new(connector.connect(name, tcp).await?);
        let head = request_head(&parts, body.len());
        stream.write_all(&[&head, &*body].concat()).await?;
        read(&mut stream, &parts.method).await
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        let uri = request.uri().clone();
        Box::pin(async move {
            let answered = tokio::time::timeout(TIMEOUT, client.exchange(request)).await;
            let answered = answered.map_err(io::Error::from).flatten();
            answered.map_err(|cause| Error::Other(Box::new(Unreachable { uri, cause })))
        })
    }
}

/// A request without a readable answer.
#[derive(Debug, thiserror::Error)]
#[error("{uri}: {cause}")]
struct Unreachable {
    uri: Uri,
    cause: io::Error,
}

fn request_head(parts: &http::request::Parts, body_bytes: usize) -> Vec<u8> {
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = parts.uri.authority().map_or("", |host| host.as_str());
    let mut head = format!(
        "{} {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n",
        parts.method
    )
    .into_bytes();
    for (name, value) in &parts.headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    if parts.method == Method::POST {
        head.extend_from_slice(format!("Content-Length: {body_bytes}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Reads the answer to a request of this method.
async fn read(
    stream: &mut BufferedStream<TlsStream<TcpStream>>,
    method: &Method,
) -> io::Result<BytesResponse> {
    let head = read_answer(stream, &Limits::DEFAULT).await?;
    let framing = head.framing(method).map_err(io::Error::other)?;
    let body = read_body(stream, framing, MAX_ANSWER_BYTES).await?;
    let mut response = Response::builder().status(head.status());
    for (name, value) in head.headers().iter() {
        response = response.header(name, value);
    }
    let response = response.body(()).map_err(io::Error::other)?;
    Ok(BytesResponse {
        parts: response.into_parts().0,
        body: Box::new(Bytes::from(body)),
    })
}

fn system_authorities() -> anyhow::Result<PathBuf> {
    let found = SYSTEM_AUTHORITIES.iter().map(PathBuf::from);
    let found = found.into_iter().find(|file| file.exists());
    found.with_context(|| {
        format!(
            "the system has no file of authorities ({}); install ca-certificates, or set \
             service.acme.ca_file",
            SYSTEM_AUTHORITIES.join(", ")
        )
    })
}
