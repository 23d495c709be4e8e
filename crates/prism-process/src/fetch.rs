//! Reads a page of another process's admin address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use prism_common::input::BufferedStream;
use prism_http::{Limits, Method, read_answer, read_body};
use serde_json::Value;
use tokio::net::TcpStream;

/// Time for a request and its answer.
const DEADLINE: Duration = Duration::from_millis(700);
/// Longest answer.
const MAX_BYTES: usize = 1 << 20;

/// The JSON document at `path`.
///
/// # Errors
/// The process is out of reach, does not answer within 700 ms, or answers something else.
pub async fn fetch(address: SocketAddr, path: &str) -> io::Result<Value> {
    let answered = tokio::time::timeout(DEADLINE, ask(address, path)).await;
    answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn ask(address: SocketAddr, path: &str) -> io::Result<Value> {
    let mut stream = BufferedStream::new(TcpStream::connect(address).await?);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let head = read_answer(&mut stream, &Limits::DEFAULT).await?;
    if head.status() != 200 {
        return Err(io::Error::other(format!("status {}", head.status())));
    }
    let framing = head.framing(&Method::GET).map_err(io::Error::other)?;
    let body = read_body(&mut stream, framing, MAX_BYTES).await?;
    Ok(serde_json::from_slice(&body)?)
}
