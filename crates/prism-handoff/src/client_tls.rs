//! TLS handshakes with clients: the socket, the time limit, and the answer to clients that do not
//! speak TLS. `prism_tls::Handshake` has the rest.

use std::io;
use std::time::Duration;

use prism_tls::Session;
use prism_tls::accept::ServerConfig;
use rustls::HandshakeKind;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::connection::Connection;
use crate::connection_state::ConnectionState;
use crate::incoming::Incoming;
use crate::newcomers::told_to_leave;
use crate::node_tls;
use crate::records::Records;

/// The time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The answer to a client that speaks HTTP on the port of HTTPS.
const NOT_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Content-Length: 44\r\nConnection: close\r\n\r\nThis port speaks HTTPS: use an https:// URL\n";

/// Does the handshake with one client, and gives its connection to the application.
pub(crate) async fn secure(
    mut stream: TcpStream,
    mut state: Box<ConnectionState>,
    config: ServerConfig,
    incoming: mpsc::Sender<Incoming>,
) {
    let counters = state.worker.counters.clone();
    let handshake = tokio::time::timeout(HANDSHAKE, shake_hands(&mut stream, &config));
    let done = tokio::select! {
        done = handshake => done.unwrap_or_else(|_| failed("the client took longer than 10 s")),
        () = told_to_leave(state.leave()) => {
            failed("it gave way to other connections, because too many are not authenticated")
        }
    };
    match done {
        Ok((records, resumed)) => {
            counters.tls_handshakes.add_one();
            if resumed {
                counters.tls_resumed.add_one();
            }
            state.tls = Some(records);
            let connection = Connection::new(stream, state);
            let _ = incoming.send(Incoming::Client(connection)).await;
        }
        Err(error) => {
            counters.tls_failed.add_one();
            let client = state.flow.client;
            tracing::debug!(%client, %error, "a TLS handshake failed");
            drop(stream);
            state.on_closed();
        }
    }
}

async fn shake_hands(stream: &mut TcpStream, config: &ServerConfig) -> io::Result<(Records, bool)> {
    let mut handshake = config.handshake().map_err(io::Error::other)?;
    let shaken = node_tls::shake_hands(stream, &mut handshake).await;
    if handshake.is_http() {
        let _ = stream.write_all(NOT_HTTPS).await;
        let _ = stream.shutdown().await;
    }
    shaken?;
    let resumed = handshake.state().handshake_kind() == Some(HandshakeKind::Resumed);
    let (keys, unread) = handshake.finish().map_err(io::Error::other)?;
    let session = Session::new(keys).map_err(io::Error::other)?;
    Ok((Records::new(session, unread), resumed))
}

fn failed<T>(why: &str) -> io::Result<T> {
    Err(io::Error::other(why))
}
