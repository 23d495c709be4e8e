//! One connection to one member of etcd, and the exchanges on it. A broken connection is
//! closed, and so is one whose exchange was given up.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prism_http::{BodyReader, Limits, Method, ResponseHead};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::endpoint::Endpoint;

/// Bytes of one read.
const PIECE_BYTES: usize = 16 << 10;
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
    stream: Box<dyn ByteStream>,
    /// Bytes that were read and not parsed yet.
    buffer: Vec<u8>,
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
            stream,
            buffer: Vec::new(),
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
        self.stream.flush().await?;
        loop {
            let parsed = ResponseHead::parse(&self.buffer, &Limits::DEFAULT);
            match parsed.map_err(io::Error::other)? {
                Some((head, len)) => {
                    self.buffer.drain(..len);
                    return Ok(head);
                }
                None => self.fill().await?,
            }
        }
    }

    /// The reader of the body behind a head.
    pub(crate) fn body_of(head: &ResponseHead, max_bytes: u64) -> io::Result<BodyReader> {
        let framing = head.framing(&Method::Post).map_err(io::Error::other)?;
        Ok(BodyReader::new(framing, max_bytes))
    }

    /// Reads the whole body. Returns also whether the connection can be used again.
    pub(crate) async fn read_all(
        &mut self,
        head: &ResponseHead,
        max_bytes: u64,
    ) -> io::Result<(Vec<u8>, bool)> {
        let mut reader = Self::body_of(head, max_bytes)?;
        let mut body = Vec::new();
        while !reader.is_done() {
            if self.buffer.is_empty()
                && let Err(error) = self.fill().await
            {
                match reader.end_of_input() {
                    Ok(()) => return Ok((body, false)),
                    Err(_) => return Err(error),
                }
            }
            self.take_body(&mut reader, &mut body)?;
            // The bound applies to the bytes read, because nothing else bounds a declared length.
            if body.len() as u64 > max_bytes {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        Ok((body, head.keep_alive() && self.buffer.is_empty()))
    }

    /// Moves the bytes read of a body to `into`. It is cancel safe.
    pub(crate) fn take_body(
        &mut self,
        reader: &mut BodyReader,
        into: &mut Vec<u8>,
    ) -> io::Result<()> {
        while !self.buffer.is_empty() && !reader.is_done() {
            let step = reader.consume(&self.buffer).map_err(io::Error::other)?;
            into.extend_from_slice(self.buffer.get(step.data).unwrap_or_default());
            self.buffer.drain(..step.consumed);
        }
        Ok(())
    }

    /// Reads more bytes. The end of the connection is an error. It is cancel safe.
    pub(crate) async fn fill(&mut self) -> io::Result<()> {
        self.buffer.reserve(PIECE_BYTES);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}
