//! Single requests: storing objects and comparing answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use prism_http::{BodyReader, Headers, Limits, Method, ResponseHead};
use prism_signer::{Body, Signer};
use time::OffsetDateTime;

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes read at a time, at first and after that.
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 10;

/// The head of a request with a signed body.
pub(crate) fn signed(
    signer: &Signer,
    address: SocketAddr,
    method: &str,
    target: &str,
    body: &[u8],
) -> Result<Vec<u8>> {
    let mut headers = Headers::new();
    headers.append("Host", address.to_string())?;
    let now = OffsetDateTime::now_utc();
    signer.sign(method, target, &mut headers, Body::Bytes(body), now)?;
    if method == "PUT" {
        headers.append("Content-Length", body.len().to_string())?;
    }
    let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    headers.write_to(&mut bytes);
    bytes.extend_from_slice(b"\r\n");
    Ok(bytes)
}

/// The head of an anonymous GET.
pub(crate) fn anonymous(address: SocketAddr, target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes()
}

/// Sends one request over a new connection. Gives the body of a successful answer.
pub(crate) fn call(address: SocketAddr, head: &[u8], body: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(head)?;
    stream.write_all(body)?;
    answer(&mut stream)
}

/// The body of the answer to the only outstanding request.
///
/// # Errors
/// When the connection ends early, or the status is not 2xx.
pub(crate) fn answer(stream: &mut (impl Read + ?Sized)) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; SMALL];
    let mut more = |bytes: &mut Vec<u8>| -> Result<()> {
        let n = stream.read(&mut piece)?;
        // Longer answers are read in longer pieces.
        if n == SMALL {
            piece.resize(LARGE, 0);
        }
        ensure!(n > 0, "the answer ends early");
        bytes.extend_from_slice(piece.get(..n).unwrap_or_default());
        Ok(())
    };
    let (head, len) = loop {
        if let Some(head) = ResponseHead::parse(&bytes, &Limits::DEFAULT)? {
            break head;
        }
        more(&mut bytes)?;
    };
    bytes.drain(..len);
    let mut reader = BodyReader::new(head.framing(&Method::GET)?, u64::MAX);
    let mut body = Vec::new();
    while !reader.is_done() {
        let step = reader.consume(&bytes)?;
        body.extend_from_slice(bytes.get(step.data).unwrap_or_default());
        bytes.drain(..step.consumed);
        if !reader.is_done() && bytes.is_empty() {
            more(&mut bytes)?;
        }
    }
    ensure!(
        (200..300).contains(&head.status()),
        "status {}: {}",
        head.status(),
        String::from_utf8_lossy(&body)
    );
    Ok(body)
}
