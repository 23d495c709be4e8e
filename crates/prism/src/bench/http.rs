//! Single requests, to store what is measured and to look whether it is served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use prism_http::{BodyReader, Headers, Limits, Method, ResponseHead};
use prism_s3::Signer;
use prism_s3::sign::Body;
use time::OffsetDateTime;

/// No single answer takes this long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The head of a request whose body is signed.
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

/// The head of a GET that nobody signs.
pub(crate) fn anonymous(address: SocketAddr, target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes()
}

/// One request over a connection of its own. The body of its answer, if it is 200.
pub(crate) fn call(address: SocketAddr, head: &[u8], body: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(head)?;
    stream.write_all(body)?;
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let mut more = |bytes: &mut Vec<u8>| -> Result<()> {
        let n = stream.read(&mut piece)?;
        ensure!(n > 0, "the answer ends early");
        bytes.extend_from_slice(piece.get(..n).unwrap_or_default());
        Ok(())
    };
    let (answer, len) = loop {
        if let Some(answer) = ResponseHead::parse(&bytes, &Limits::DEFAULT)? {
            break answer;
        }
        more(&mut bytes)?;
    };
    bytes.drain(..len);
    let mut reader = BodyReader::new(answer.framing(&Method::Get)?, u64::MAX);
    let mut whole = Vec::new();
    while !reader.is_done() {
        let step = reader.consume(&bytes)?;
        whole.extend_from_slice(bytes.get(step.data).unwrap_or_default());
        bytes.drain(..step.consumed);
        if !reader.is_done() && bytes.is_empty() {
            more(&mut bytes)?;
        }
    }
    let text = || String::from_utf8_lossy(&whole).into_owned();
    ensure!(
        matches!(answer.status(), 200 | 204),
        "status {}: {}",
        answer.status(),
        text()
    );
    Ok(whole)
}
