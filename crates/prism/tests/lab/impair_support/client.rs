//! A client of the service that signs, and reads its answers one by one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use prism_http::{BodyReader, Headers, Limits, Method, ResponseHead};
use prism_s3::Signer;
use prism_s3::sign::Body;

use super::{Bed, content, eventually, path};

impl Bed {
    /// A client of the service.
    pub fn client(&self) -> Client {
        let credential = self.lab.credential();
        let (key, secret) = (&credential.access_key, &credential.secret_key);
        Client {
            stream: self.dial(self.lab.service().into()),
            buffer: Vec::new(),
            signer: Signer::new(key.as_str(), secret.as_str(), self.region.as_str()),
            host: self.lab.service().to_string(),
        }
    }
}

/// One whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub keep_alive: bool,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

/// One keep-alive connection to the service.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    signer: Signer,
    host: String,
}

impl Client {
    pub fn request(&mut self, method: &str, target: &str, body: &[u8]) -> io::Result<Answer> {
        let bytes = self.signed(method, target, body);
        self.stream.write_all(&bytes)?;
        self.answer(method)
    }

    /// Object `n`, which has to be right.
    pub fn get(&mut self, n: usize) {
        if let Err(fault) = self.try_get(n) {
            panic!("{fault}");
        }
    }

    /// Object `n`, or what is wrong with the answer.
    pub fn try_get(&mut self, n: usize) -> Result<(), String> {
        match self.request("GET", &path(n), b"") {
            Err(error) => Err(format!("object {n}: {error}")),
            Ok(answer) if answer.status != 200 => Err(format!("object {n}: {}", answer.text())),
            Ok(answer) if answer.body != content(n) => Err(format!("object {n}: other bytes")),
            Ok(_) => Ok(()),
        }
    }

    /// Fetches an object of `host` until the connection is there: the first
    /// requests after a start may be relayed.
    pub fn get_from(&mut self, bed: &Bed, host: &str) {
        let address = bed.lab.address(host).unwrap();
        eventually("a hand-off", Duration::from_secs(5), || {
            self.get(bed.object_of(host));
            let flow = bed.flow_of(self.local());
            flow.is_some_and(|known| known.owner.via == address)
        });
    }

    /// The client's own address.
    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// The bytes of a signed request.
    pub fn signed(&self, method: &str, target: &str, body: &[u8]) -> Vec<u8> {
        let mut headers = Headers::new();
        headers.set("Host", &self.host).unwrap();
        let now = time::OffsetDateTime::now_utc();
        self.signer
            .sign(method, target, &mut headers, Body::Bytes(body), now)
            .unwrap();
        if !body.is_empty() {
            headers
                .set("Content-Length", body.len().to_string())
                .unwrap();
        }
        let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
        headers.write_to(&mut bytes);
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        bytes
    }

    /// Reads one answer; an end before it is an error.
    pub fn answer(&mut self, method: &str) -> io::Result<Answer> {
        let method = match method {
            "PUT" => Method::Put,
            "HEAD" => Method::Head,
            _ => Method::Get,
        };
        let (head, len) = loop {
            let parsed = ResponseHead::parse(&self.buffer, &Limits::DEFAULT);
            match parsed.map_err(io::Error::other)? {
                Some(read) => break read,
                None => self.fill()?,
            }
        };
        self.buffer.drain(..len);
        let framing = head.framing(&method).map_err(io::Error::other)?;
        let mut reader = BodyReader::new(framing, u64::MAX);
        let mut body = Vec::new();
        while !reader.is_done() {
            if self.buffer.is_empty() {
                self.fill()?;
            }
            let step = reader.consume(&self.buffer).map_err(io::Error::other)?;
            body.extend_from_slice(&self.buffer[step.data]);
            self.buffer.drain(..step.consumed);
        }
        Ok(Answer {
            status: head.status(),
            keep_alive: head.keep_alive(),
            body,
        })
    }

    /// The server closes in order: an end, no reset, and not a byte more.
    pub fn assert_closed(&mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
        assert!(self.buffer.is_empty() && rest.is_empty(), "bytes follow");
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        match self.stream.read(&mut piece)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.buffer.extend_from_slice(&piece[..n]);
                Ok(())
            }
        }
    }
}
