//! Connections of proxies that name their clients: the header of the PROXY protocol, version 1 or
//! 2, before all other bytes (<https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>).
//!
//! The flow stays that of the proxy. The client's address travels beside it.

use std::io;
use std::time::Duration;

use prism_proto::facts::ClientFacts;
use proxy_header::{Error, ParseConfig, ProxyHeader};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The time limit of a header.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a header, as in nginx. Proxies add a few hundred to the addresses.
const MAX_HEADER_BYTES: usize = 4096;
/// The pause before the next look at a header that has come in part. Proxies send it in one
/// segment.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

const NO_HEADER: &str = "it does not begin with a header of the PROXY protocol, which \
    `service.accept_proxy_protocol` asks of trusted proxies";

/// Reads the header, and no byte behind it. `None`: the proxy is the client itself, as for its
/// checks, or does not know the client.
///
/// # Errors
/// If no valid header comes in time.
pub(crate) async fn read_header(stream: &mut TcpStream) -> io::Result<Option<ClientFacts>> {
    let read = tokio::time::timeout(TIMEOUT, read_whole_header(stream)).await;
    read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn read_whole_header(stream: &mut TcpStream) -> io::Result<Option<ClientFacts>> {
    let mut bytes = vec![0; MAX_HEADER_BYTES];
    loop {
        let len = stream.peek(&mut bytes).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let seen = bytes.get(..len).unwrap_or_default();
        match ProxyHeader::parse(seen, ParseConfig::default()) {
            Ok((header, len)) => {
                let client = client_of(&header);
                if let Some(header) = bytes.get_mut(..len) {
                    stream.read_exact(header).await?;
                }
                return Ok(client);
            }
            Err(Error::BufferTooShort) if len < MAX_HEADER_BYTES => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(_) => return Err(io::Error::other(NO_HEADER)),
        }
    }
}

fn client_of(header: &ProxyHeader<'_>) -> Option<ClientFacts> {
    let addresses = header.proxied_address()?;
    Some(ClientFacts {
        address: addresses.source,
        service: addresses.destination,
        is_tls: header.ssl().is_some_and(|ssl| ssl.client_ssl()),
    })
}
