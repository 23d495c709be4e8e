//! One connection to one member of etcd, and the exchanges on it. A broken connection is
//! closed, and so is one whose exchange was given up.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prism_common::input::{BufferedStream, Input};
use prism_http::{
    BodyReader, Limits, Method, ResponseFraming, ResponseHead, read_answer, read_body, take_body,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::endpoint::Endpoint;

/// A connection notices a host that has vanished after 2 + 2 * 1 = 4 s, also while a watch
/// waits.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection, idle or in an exchange.
pub(crate) struct MemberConnection {
    endpoint: Endpoint,
    stream: BufferedStream<Box<dyn ByteStream>>,
}

impl MemberConnection {
    /// Dials. The caller sets the timeout.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let tcp = TcpStream::connect((endpoint.host(), endpoint.port())).await?;
        tcp.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_PROBES);
        socket2::SockRef::from(&tcp).set_tcp_keepalive(&keepalive)?;
        let stream: Box<dyn ByteStream> = match (endpoint.is_secure(), tls) {
            (false, _) => Box::new(tcp),
            (true, None) => return Err(io::Error::other("TLS is not configured")),
            (true, Some(tls)) => {
                let name = ServerName::try_from(endpoint.host().to_owned());
                let name = name.map_err(io::Error::other)?;
                let connector = tokio_rustls::TlsConnector::from(tls.clone());
                Box::new(connector.connect(name, tcp).await?)
            }
        };
        Ok(Self {
            endpoint: endpoint.clone(),
            stream: BufferedStream::new(stream),
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request and reads the head of its answer.
    pub(crate) async fn ask(&mut self, path: &str, body: &str) -> io::Result<ResponseHead> {
        // A member without a leader then answers with an error, not with old data.
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Grpc-Metadata-hasleader: true\r\nContent-Length: {}\r\n\r\n{body}",
            self.endpoint.authority(),
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        Ok(read_answer(&mut self.stream, &Limits::DEFAULT).await?)
    }

    /// The framing of the body behind a head.
    pub(crate) fn framing(head: &ResponseHead) -> io::Result<ResponseFraming> {
        head.framing(&Method::POST).map_err(io::Error::other)
    }

    /// Reads the whole body. Returns also whether the connection can be used again.
    pub(crate) async fn read_all(
        &mut self,
        head: &ResponseHead,
        max_bytes: usize,
    ) -> io::Result<(Vec<u8>, bool)> {
        let framing = Self::framing(head)?;
        let body = read_body(&mut self.stream, framing, max_bytes).await?;
        let ends = matches!(framing, ResponseFraming::UntilClose);
        let is_clean = self.stream.buffered().is_empty();
        Ok((body, !ends && head.keep_alive() && is_clean))
    }

    /// Reads more of a body to `into`. The end of the connection is an error. It is cancel safe.
    pub(crate) async fn read_some(
        &mut self,
        reader: &mut BodyReader,
        into: &mut Vec<u8>,
    ) -> io::Result<()> {
        if self.stream.buffered().is_empty() && self.stream.fill().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let taken = take_body(&mut self.stream, reader, |piece| {
            into.extend_from_slice(piece)
        });
        taken.map_err(io::Error::other)
    }
}
