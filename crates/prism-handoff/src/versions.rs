//! Errors that name the versions of two nodes that share none. TLS compares the versions (ALPN) and
//! refuses the connection; its own errors name no version.

use std::io;

use prism_proto::node::{HAND_OFF_VERSIONS, RELAY_VERSIONS};
use prism_tls::HandshakeError;
use rustls::AlertDescription;
use rustls::server::Acceptor;
use tokio::net::TcpStream;

/// The largest number of bytes of a node's first message that are looked at. It has some 300.
const HELLO_BYTES: usize = 4096;

/// The error for a node that has dialled and speaks no version of this one; `None` if it does, or
/// if its first message is not here in one piece.
pub(crate) async fn differ(tcp: &TcpStream) -> Option<io::Error> {
    let mut hello = vec![0; HELLO_BYTES];
    let len = tcp.peek(&mut hello).await.ok()?;
    let theirs = offered(hello.get(..len)?)?;
    let ours = || HAND_OFF_VERSIONS.iter().chain(RELAY_VERSIONS).copied();
    if theirs.is_empty() || ours().any(|version| theirs.iter().any(|other| other == version)) {
        return None;
    }
    let theirs = theirs.iter().map(Vec::as_slice);
    Some(io::Error::other(format!(
        "it speaks {}, and this node {}: upgrade the older one of the two nodes, by way of a \
         release between them",
        list(theirs),
        list(ours())
    )))
}

/// The error of a dialled node that has refused all of `ours`; any other error as it is.
pub(crate) fn of_refusal(error: io::Error, ours: &[&[u8]]) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(HandshakeError::Refused(AlertDescription::NoApplicationProtocol)) => {
            io::Error::other(format!(
                "it speaks none of this node's versions, {}; its log names its own ones: upgrade the \
             older one of the two nodes, by way of a release between them",
                list(ours.iter().copied())
            ))
        }
        _ => error,
    }
}

/// The versions that a dialling node offers.
fn offered(hello: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut acceptor = Acceptor::default();
    acceptor.read_tls(&mut &*hello).ok()?;
    let accepted = acceptor.accept().ok()??;
    let hello = accepted.client_hello();
    let versions = hello.alpn()?.map(<[u8]>::to_vec);
    Some(versions.collect())
}

fn list<'v>(versions: impl Iterator<Item = &'v [u8]>) -> String {
    let names: Vec<_> = versions.map(String::from_utf8_lossy).collect();
    names.join(", ")
}
