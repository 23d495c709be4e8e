//! A client for clusters whose processes are killed: a broken connection is an error,
//! and no test fails for it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use prism_http::Headers;
use prism_s3::Signer;
use prism_s3::sign::Body;
use prism_sys::netns::NetNs;
use time::OffsetDateTime;

use super::{BUCKET, Cluster};

/// The longest wait for an answer.
const IO_TIMEOUT: Duration = Duration::from_secs(3);

/// The service, and the client's host and credential.
#[derive(Clone)]
pub struct Target {
    service: SocketAddr,
    signer: Arc<Signer>,
    namespace: String,
}

impl Target {
    pub fn of(cluster: &Cluster) -> Self {
        let namespace = cluster.lab.namespace("client").unwrap();
        let credential = cluster.lab.credential();
        let signer = Signer::new(&credential.access_key, &credential.secret_key, "us-east-1");
        Self {
            service: cluster.service,
            signer: Arc::new(signer),
            namespace: namespace.file_name().unwrap().to_str().unwrap().to_owned(),
        }
    }

    /// Runs `work` on the client's host.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        NetNs::named(&self.namespace).unwrap().run(work).unwrap()
    }

    /// One request over a connection of its own; `target` begins with the bucket.
    pub fn call(&self, method: &str, target: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        self.run(|| Connection::open(self)?.call(method, target, body))
    }

    /// GET of an object of [`BUCKET`].
    pub fn get(&self, key: &str) -> io::Result<(u16, Vec<u8>)> {
        self.call("GET", &format!("/{BUCKET}/{key}"), b"")
    }
}

/// A connection whose end is no surprise.
pub struct Connection {
    stream: TcpStream,
    service: SocketAddr,
    signer: Arc<Signer>,
    /// The `ETag` of the last answer.
    pub etag: String,
}

impl Connection {
    pub fn open(target: &Target) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&target.service, IO_TIMEOUT)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            service: target.service,
            signer: target.signer.clone(),
            etag: String::new(),
        })
    }

    /// One request and its answer: status and body. `target` begins with the bucket.
    pub fn call(&mut self, method: &str, target: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let mut headers = Headers::new();
        headers.append("Host", self.service.to_string()).unwrap();
        headers
            .append("Content-Length", body.len().to_string())
            .unwrap();
        let (now, signed) = (OffsetDateTime::now_utc(), Body::Bytes(body));
        let signature = self.signer.sign(method, target, &mut headers, signed, now);
        signature.map_err(io::Error::other)?;
        let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
        headers.write_to(&mut bytes);
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes)?;
        self.answer(method == "HEAD")
    }

    fn answer(&mut self, is_to_head: bool) -> io::Result<(u16, Vec<u8>)> {
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        let mut more = |bytes: &mut Vec<u8>| match self.stream.read(&mut piece)? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            n => {
                bytes.extend_from_slice(&piece[..n]);
                Ok(())
            }
        };
        let end = loop {
            match bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => more(&mut bytes)?,
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let field = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            let found = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_owned())
        };
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        self.etag = field("etag").unwrap_or_default();
        let len = field("content-length").and_then(|len| len.parse::<usize>().ok());
        let no_body = is_to_head || status == 204;
        let Some(len) = no_body.then_some(0).or(len) else {
            // An answer that is kept alive by chunks (a completed upload).
            while !bytes.ends_with(b"0\r\n\r\n") {
                more(&mut bytes)?;
            }
            return Ok((status, bytes.split_off(end)));
        };
        while bytes.len() < end + len {
            more(&mut bytes)?;
        }
        Ok((status, bytes.split_off(end)))
    }
}
