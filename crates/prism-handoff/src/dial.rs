//! How the port of another node is reached, in bounded time.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::silence::MAX_SILENCE;

/// TCP repeats a SYN that was lost after a second only, as long as a client would
/// have waited for an answer by then: another connection is tried well before.
const NEXT_ATTEMPT: Duration = Duration::from_millis(225);
const ATTEMPTS: usize = 4;
/// How long TLS may take, with a node whose host has answered.
const TLS_DEADLINE: Duration = Duration::from_secs(1);
/// When nothing was heard for so long, the peer is asked whether it lives, and then each
/// second. After three questions it is dead: 6 s in all.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(3);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;

/// Connects to `address`, and makes a session of the connection: nothing of both is
/// under way any more after 2 s.
///
/// # Errors
/// What the network or `shake_hands` said, or that it timed out.
pub(crate) async fn dial<S>(
    address: SocketAddr,
    shake_hands: impl AsyncFnOnce(TcpStream) -> io::Result<S>,
) -> io::Result<S> {
    let tcp = connect(address).await?;
    tune(&tcp)?;
    timeout(TLS_DEADLINE, shake_hands(tcp)).await?
}

/// The first of several connections that is answered, be it by a refusal.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for _ in 0..ATTEMPTS {
        attempts.spawn(TcpStream::connect(address));
        if let Ok(Some(answered)) = timeout(NEXT_ATTEMPT, attempts.join_next()).await {
            return answered.map_err(io::Error::other)?;
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// What every connection between nodes gets: no Nagle, and an end in bounded
/// time when the peer vanishes while nothing waits to be acknowledged.
pub(crate) fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = socket2::SockRef::from(tcp);
    // Otherwise the first segments are acknowledged at once, each at the cost of a
    // packet, for as long as a channel is young or wakes from a rest.
    socket.set_tcp_quickack(false)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// A channel also gets a user timeout: it breaks where its peer leaves data unacknowledged, or
/// does not read. A relay stream is read as fast as its client reads: see `silence`.
pub(crate) fn break_unread(channel: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(channel).set_tcp_user_timeout(Some(MAX_SILENCE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::{Ipv4Addr, TcpStream as Blocking};

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// A port of this host that drops what it is sent for as long as one connection
    /// waits to be accepted.
    fn full() -> (Socket, SocketAddr, Blocking) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let waiting = Blocking::connect(address).unwrap();
        (listener, address, waiting)
    }

    fn block_on<T>(what: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(what)
    }

    #[test]
    fn a_lost_first_packet_does_not_cost_the_connection() {
        let (listener, address, _waiting) = full();
        block_on(async {
            let connecting = tokio::spawn(connect(address));
            tokio::time::sleep(NEXT_ATTEMPT / 2).await;
            assert!(!connecting.is_finished(), "the first packet was not lost");
            let _accepted = listener.accept().unwrap();
            connecting.await.unwrap().unwrap();
        });
    }

    #[test]
    fn who_does_not_answer_and_who_refuses_is_told_apart() {
        let (listener, address, _waiting) = full();
        let silent = block_on(connect(address)).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        drop(listener);
        let refused = block_on(connect(address)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
