//! Connects to another node in bounded time.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// TCP repeats a lost SYN only after 1 s, which is too late for a waiting client. Another
/// connection is tried well before.
const NEXT_ATTEMPT: Duration = Duration::from_millis(225);
const ATTEMPTS: usize = 4;
/// The time limit of TLS with a node whose host has answered.
const TLS_DEADLINE: Duration = Duration::from_secs(1);
/// After this time without a segment the kernel probes the peer, and then every second. After three
/// probes the peer is dead: 6 s in all.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(3);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;

/// Connects to `address`, and runs `shake_hands` on the connection. It ends within 2 s.
pub(crate) async fn dial<S>(
    address: SocketAddr,
    shake_hands: impl AsyncFnOnce(TcpStream) -> io::Result<S>,
) -> io::Result<S> {
    let tcp = connect(address).await?;
    tune(&tcp)?;
    timeout(TLS_DEADLINE, shake_hands(tcp)).await?
}

/// Tries several connections, and returns the first one that is answered, also by a refusal.
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

/// Sets the options of every connection between nodes: no Nagle, and keepalives that end a
/// connection whose peer has vanished.
pub(crate) fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = socket2::SockRef::from(tcp);
    // Otherwise the kernel acknowledges the first segments at once, each by a packet, while a
    // channel is young or wakes from a rest.
    socket.set_tcp_quickack(false)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::{Ipv4Addr, TcpStream as Blocking};

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// A port of this host that drops packets as long as one connection waits to be accepted.
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
