//! A client that does exactly what the test says, over ordinary sockets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use prism_http::{BodyReader, Headers, Limits, Method, ResponseHead};
use prism_signer::{Body, Signer};
use time::OffsetDateTime;

use super::objects::Object;
use super::{BUCKET, Cluster};

/// The longest wait for one read or write, unless [`Client::with_timeout`] says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longer waits for bytes are recorded.
const LONG_WAIT: Duration = Duration::from_millis(100);
/// Bytes read at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// A request before it is signed.
pub struct Request<'a> {
    method: &'a str,
    target: String,
    version: &'a str,
    signed: Vec<(&'a str, String)>,
    unsigned: Vec<(&'a str, String)>,
    payload: Body<'a>,
}

impl<'a> Request<'a> {
    /// A request without a body; `target` follows the bucket's name.
    pub fn new(method: &'a str, target: &str) -> Self {
        Self {
            method,
            target: format!("/{BUCKET}{target}"),
            version: "HTTP/1.1",
            signed: Vec::new(),
            unsigned: Vec::new(),
            payload: Body::Bytes(b""),
        }
    }

    /// GET of an object.
    pub fn get(object: &Object) -> Self {
        Self::new("GET", &format!("/{}", object.key))
    }

    /// PUT of an object whose body is not signed, head only.
    pub fn put_unsigned(object: &Object) -> Self {
        let mut put = Self::new("PUT", &format!("/{}", object.key));
        put.payload = Body::Unsigned;
        put.header("Content-Length", object.len.to_string())
    }

    /// PUT of an object whose body is signed, head only.
    pub fn put_signed(object: &Object) -> Self {
        let mut put = Self::put_unsigned(object);
        put.payload = Body::Bytes(object.bytes());
        put
    }

    /// With the digest of `body` signed.
    pub fn signing(mut self, body: &'a [u8]) -> Self {
        self.payload = Body::Bytes(body);
        self
    }

    /// With a body that is not signed.
    pub fn unsigned(mut self) -> Self {
        self.payload = Body::Unsigned;
        self
    }

    /// In another bucket, which need not exist.
    pub fn bucket(mut self, bucket: &str) -> Self {
        let (_, key) = self.target[1..].split_once('/').unwrap_or_default();
        self.target = format!("/{bucket}/{key}");
        self
    }

    /// In another version of HTTP.
    pub fn version(mut self, version: &'a str) -> Self {
        self.version = version;
        self
    }

    /// With another header field, not signed.
    pub fn header(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.unsigned.push((name, value.into()));
        self
    }

    /// With another header field, signed.
    pub fn signed_header(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.signed.push((name, value.into()));
        self
    }

    /// The head, signed now.
    pub fn encode(&self, cluster: &Cluster) -> Vec<u8> {
        self.encode_by(&cluster.signer, cluster.service)
    }

    /// The same without a cluster.
    pub fn encode_by(&self, signer: &Signer, service: SocketAddr) -> Vec<u8> {
        let mut headers = Headers::new();
        headers.append("Host", service.to_string()).unwrap();
        for (name, value) in &self.signed {
            headers.append(name, value).unwrap();
        }
        let now = OffsetDateTime::now_utc();
        signer
            .sign(self.method, &self.target, &mut headers, self.payload, now)
            .unwrap();
        for (name, value) in &self.unsigned {
            headers.append(name, value).unwrap();
        }
        let mut bytes =
            format!("{} {} {}\r\n", self.method, self.target, self.version).into_bytes();
        headers.write_to(&mut bytes);
        bytes.extend_from_slice(b"\r\n");
        bytes
    }
}

/// A signed request with its body. `target` begins with the bucket.
///
/// # Errors
/// When the target cannot be signed.
pub fn signed(
    signer: &Signer,
    host: &str,
    method: &str,
    target: &str,
    body: &[u8],
) -> io::Result<Vec<u8>> {
    let mut headers = Headers::new();
    headers.append("Host", host).unwrap();
    headers
        .append("Content-Length", body.len().to_string())
        .unwrap();
    let (now, payload) = (OffsetDateTime::now_utc(), Body::Bytes(body));
    let signature = signer.sign(method, target, &mut headers, payload, now);
    signature.map_err(io::Error::other)?;
    let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    headers.write_to(&mut bytes);
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// An answer whose body fits into memory.
#[derive(Debug)]
pub struct Answer {
    pub head: ResponseHead,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    pub fn keep_alive(&self) -> bool {
        self.head.keep_alive()
    }

    pub fn header(&self, name: &str) -> &str {
        self.head.headers().get_str(name).unwrap_or_default()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body)
            .chars()
            .take(500)
            .collect()
    }
}

/// A wait of a connection for its next bytes.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub until: Instant,
    pub took: Duration,
}

/// One connection of the client's host.
pub struct Client {
    pub stream: TcpStream,
    /// The TLS of the connection, if it has any.
    tls: Option<Box<rustls::ClientConnection>>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Waits of more than [`LONG_WAIT`].
    pub waits: Vec<Wait>,
}

impl Client {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        let client = Self {
            stream,
            tls: None,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            waits: Vec::new(),
        };
        client.with_timeout(TIMEOUT)
    }

    /// With another limit of the wait for one read or write.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        self.stream.set_read_timeout(Some(timeout)).unwrap();
        self.stream.set_write_timeout(Some(timeout)).unwrap();
        self
    }

    /// Speaks TLS on this connection from now on, the handshake included.
    pub fn with_tls(self, tls: rustls::ClientConnection) -> Self {
        self.try_with_tls(tls).unwrap()
    }

    /// The same, where the handshake may fail.
    pub fn try_with_tls(mut self, tls: rustls::ClientConnection) -> io::Result<Self> {
        let tls = self.tls.insert(Box::new(tls));
        while tls.is_handshaking() {
            tls.complete_io(&mut self.stream)?;
        }
        Ok(self)
    }

    /// The TLS state of this connection.
    pub fn tls(&self) -> &rustls::ClientConnection {
        self.tls.as_ref().unwrap()
    }

    /// The next bytes sent carry new keys of TLS 1.3, and ask the other side for new keys.
    pub fn ask_for_new_keys(&mut self) {
        self.tls.as_mut().unwrap().refresh_traffic_keys().unwrap();
    }

    /// The same at once.
    pub fn update_keys(&mut self) {
        self.ask_for_new_keys();
        let tls = self.tls.as_mut().unwrap();
        while tls.wants_write() {
            tls.write_tls(&mut self.stream).unwrap();
        }
    }

    /// Ends TLS in order, and returns its state. It first reads the server's last messages,
    /// such as new keys. Closing with unread bytes would send a reset.
    pub fn close_tls(mut self) -> rustls::ClientConnection {
        let mut tls = self.tls.take().unwrap();
        tls.send_close_notify();
        while tls.wants_write() {
            tls.write_tls(&mut self.stream).unwrap();
        }
        self.half_close();
        io::copy(&mut self.stream, &mut io::sink()).unwrap();
        *tls
    }

    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    pub fn port(&self) -> u16 {
        self.local().port()
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends all of it.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    /// The same. A connection that breaks is an error.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut self.stream);
                stream.write_all(bytes)?;
                stream.flush()
            }
            None => self.stream.write_all(bytes),
        }
    }

    /// Says that nothing more will be sent.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Ends the connection with a RST.
    pub fn reset(self) {
        let linger = Some(Duration::ZERO);
        socket2::SockRef::from(&self.stream)
            .set_linger(linger)
            .unwrap();
    }

    /// Reads more. Returns false at the end of the stream.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let free = &mut self.buffer[self.end..];
        let begun = Instant::now();
        let n = match &mut self.tls {
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).read(free)?,
            None => self.stream.read(free)?,
        };
        let took = begun.elapsed();
        if took > LONG_WAIT {
            let until = Instant::now();
            self.waits.push(Wait { until, took });
        }
        self.end += n;
        Ok(n > 0)
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        while self.end - self.start < len {
            assert!(self.fill().unwrap(), "the connection has ended");
        }
        let bytes = self.buffer[self.start..self.start + len].to_vec();
        self.start += len;
        bytes
    }

    /// The next bytes as they come; none at the end of the stream.
    pub fn take_some(&mut self) -> io::Result<Vec<u8>> {
        if self.start == self.end {
            self.fill()?;
        }
        let bytes = self.buffer[self.start..self.end].to_vec();
        self.start = self.end;
        Ok(bytes)
    }

    /// The head of the next answer.
    pub fn head(&mut self) -> ResponseHead {
        self.try_head().unwrap()
    }

    /// The same. An end before it is an error.
    pub fn try_head(&mut self) -> io::Result<ResponseHead> {
        Ok(self.try_head_line()?.0)
    }

    /// The same, and its first line as it came.
    pub fn try_head_line(&mut self) -> io::Result<(ResponseHead, String)> {
        loop {
            let unread = &self.buffer[self.start..self.end];
            let parsed = ResponseHead::parse(unread, &Limits::ANSWER);
            if let Some((head, len)) = parsed.map_err(io::Error::other)? {
                let line = unread.split(|byte| b"\r\n".contains(byte)).next();
                let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
                self.start += len;
                return Ok((head, line));
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Gives the body that follows `head` to `take`, piece by piece.
    pub fn body(&mut self, head: &ResponseHead, method: &Method, take: impl FnMut(&[u8])) {
        self.try_body(head, method, take).unwrap();
    }

    pub fn try_body(
        &mut self,
        head: &ResponseHead,
        method: &Method,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let framing = head.framing(method).map_err(io::Error::other)?;
        let mut reader = BodyReader::new(framing, u64::MAX);
        while !reader.is_done() {
            if self.start == self.end && !self.fill()? {
                return reader.end_of_input().map_err(io::Error::other);
            }
            let unread = &self.buffer[self.start..self.end];
            let step = reader.consume(unread).map_err(io::Error::other)?;
            take(&unread[step.data]);
            self.start += step.consumed;
        }
        Ok(())
    }

    /// The next answer, to a request of this method.
    pub fn answer(&mut self, method: &Method) -> Answer {
        self.try_answer(method).unwrap()
    }

    /// The same. A connection that breaks is an error.
    pub fn try_answer(&mut self, method: &Method) -> io::Result<Answer> {
        let head = self.try_head()?;
        let mut body = Vec::new();
        self.try_body(&head, method, |piece| body.extend_from_slice(piece))?;
        Ok(Answer { head, body })
    }

    /// Sends a request, and reads its answer.
    pub fn call(&mut self, request: &[u8]) -> Answer {
        self.try_call(request).unwrap()
    }

    /// The same. A connection that breaks is an error.
    pub fn try_call(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.try_send(request)?;
        let is_head = request.starts_with(b"HEAD ");
        self.try_answer(if is_head { &Method::HEAD } else { &Method::GET })
    }

    /// Reads an answer that has to be `object`.
    pub fn expect(&mut self, object: &Object) {
        let head = self.head();
        self.expect_body(&head, object);
    }

    /// Reads the body of an answer that has to be `object`.
    pub fn expect_body(&mut self, head: &ResponseHead, object: &Object) {
        if head.status() != 200 {
            let mut text = Vec::new();
            self.body(head, &Method::GET, |piece| text.extend_from_slice(piece));
            let text = String::from_utf8_lossy(&text).into_owned();
            panic!("{}: status {}: {text}", object.key, head.status());
        }
        let mut offset = 0;
        self.body(head, &Method::GET, |piece| {
            object.check(offset, piece);
            offset += piece.len() as u64;
        });
        assert_eq!(offset, object.len, "{} is cut short", object.key);
    }

    /// Fetches an object and checks every byte.
    pub fn get(&mut self, cluster: &Cluster, object: &Object) {
        self.send(&Request::get(object).encode(cluster));
        self.expect(object);
    }

    /// Stores an object, its body not signed.
    pub fn put(&mut self, cluster: &Cluster, object: &Object) {
        let answer = self.try_to_put(cluster, object);
        assert_eq!(answer.status(), 200, "{}: {}", object.key, answer.text());
    }

    /// The same, whatever the answer is.
    pub fn try_to_put(&mut self, cluster: &Cluster, object: &Object) -> Answer {
        self.send(&Request::put_unsigned(object).encode(cluster));
        self.send_object(object);
        self.answer(&Method::PUT)
    }

    /// Sends an object's bytes.
    pub fn send_object(&mut self, object: &Object) {
        let mut offset = 0;
        while offset < object.len {
            let piece = object.at(offset);
            self.send(piece);
            offset += piece.len() as u64;
        }
    }

    /// The other side closes, and says nothing more.
    pub fn expect_end(&mut self) {
        let unread = &self.buffer[self.start..self.end];
        let text = String::from_utf8_lossy(unread);
        assert!(unread.is_empty(), "unexpected: {text}");
        assert!(!self.fill().unwrap(), "more than the answers");
    }
}
