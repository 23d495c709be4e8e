//! TLS handshakes with clients: from an accepted socket to a [`Connection`].
//!
//! `prism_tls::accept` does the handshake. This module has the socket, the time limit, and the
//! answer to clients that do not speak TLS.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use prism_sys::tcp::ktls::Offered;
use prism_tls::Session;
use prism_tls::accept::{Acceptor, Established, ServerConfig, Step};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connection::ConnectionState;
use crate::endpoint::{Incoming, Shared};
use crate::records::Records;

/// The time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The size of one read during a handshake: a full record and a little more.
const READ_BYTES: usize = 17 << 10;
/// The answer to a client that speaks HTTP on the port of HTTPS.
const NOT_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Content-Length: 44\r\nConnection: close\r\n\r\nThis port speaks HTTPS: use an https:// URL\n";

/// The service over TLS.
#[derive(Clone, Debug)]
pub struct TlsService {
    /// The address that clients connect to: the service's address with another port.
    pub address: SocketAddr,
    /// Certificates, tickets, versions and suites. A node that accepts no clients needs none.
    pub server: Option<ServerConfig>,
    /// The versions and ciphers for which the kernel encrypts large bodies, as [`Offered::probe`]
    /// finds them; `None` leaves all to user space. Only a node with a switch uses it.
    pub kernel: Option<Offered>,
}

/// The reason for a failed handshake.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the client took longer than {} s", HANDSHAKE.as_secs())]
    TimedOut,
    #[error("it gave way to other connections, because too many are not authenticated")]
    NoRoom,
    #[error("the client closed the connection within the handshake")]
    Ended,
    #[error("{0}")]
    Tls(#[from] prism_tls::accept::AcceptError),
    #[error("the client does not speak TLS")]
    NotTls,
    #[error("{0}")]
    Keys(#[from] prism_tls::KeysError),
}

impl Shared {
    /// Does the handshake with one client, and gives its connection to the application.
    pub(crate) async fn secure(
        self: Rc<Self>,
        mut stream: TcpStream,
        mut state: Box<ConnectionState>,
        config: ServerConfig,
    ) {
        let handshake = tokio::time::timeout(HANDSHAKE, shake_hands(&mut stream, &config));
        let leave = state.newcomer.as_ref().map(|n| n.leave.clone());
        let given_up = async {
            match leave {
                Some(leave) => leave.told().await,
                None => std::future::pending().await,
            }
        };
        let done = tokio::select! {
            done = handshake => done.unwrap_or(Err(HandshakeError::TimedOut)),
            () = given_up => Err(HandshakeError::NoRoom),
        };
        match done {
            Ok((records, resumed)) => {
                self.counters.tls_handshakes.add_one();
                if resumed {
                    self.counters.tls_resumed.add_one();
                }
                state.tls = Some(records);
                let connection = self.connection(stream, state);
                let _ = self.incoming.send(Incoming::Client(connection)).await;
            }
            Err(error) => {
                self.counters.tls_failed.add_one();
                let client = state.flow.client;
                tracing::debug!(%client, %error, "a TLS handshake failed");
                drop(stream);
                self.on_closed(&state);
            }
        }
    }
}

async fn shake_hands(
    stream: &mut TcpStream,
    config: &ServerConfig,
) -> Result<(Records, bool), HandshakeError> {
    let mut acceptor = Acceptor::new(config)?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = stream.read(&mut buffer).await?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            return Err(HandshakeError::Ended);
        };
        match acceptor.receive(bytes) {
            Step::Wait {
                acceptor: next,
                output,
            } => {
                stream.write_all(&output).await?;
                acceptor = next;
            }
            Step::Established(Established {
                output,
                keys,
                unread,
                resumed,
                ..
            }) => {
                stream.write_all(&output).await?;
                return Ok((Records::new(Session::new(keys)?, unread), resumed));
            }
            Step::Failed(failure) => {
                // It does not matter whether the alert arrives.
                let _ = stream.write_all(&failure.output).await;
                return Err(failure.error.into());
            }
            Step::NotTls(found) => {
                if found.http {
                    let _ = stream.write_all(NOT_HTTPS).await;
                    let _ = stream.shutdown().await;
                }
                return Err(HandshakeError::NotTls);
            }
        }
    }
}
