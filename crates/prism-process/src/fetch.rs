//! Reads a page of another process's admin address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use prism_http::{Limits, ResponseHead};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time for a request and its answer.
const DEADLINE: Duration = Duration::from_millis(700);
/// Longest answer.
const MAX_BYTES: u64 = 1 << 20;

/// The JSON document at `path`.
///
/// # Errors
/// The process is out of reach, does not answer within 700 ms, or answers something else.
pub async fn fetch(address: SocketAddr, path: &str) -> io::Result<Value> {
    let answered = tokio::time::timeout(DEADLINE, ask(address, path)).await;
    let bytes = answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let head = ResponseHead::parse(&bytes, &Limits::DEFAULT).map_err(io::Error::other)?;
    let (head, head_bytes) = head.ok_or(io::ErrorKind::UnexpectedEof)?;
    if head.status() != 200 {
        return Err(io::Error::other(format!("status {}", head.status())));
    }
    // The server ends the connection behind the document.
    let body = bytes.get(head_bytes..).unwrap_or_default();
    Ok(serde_json::from_slice(body)?)
}

async fn ask(address: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut bytes).await?;
    Ok(bytes)
}
