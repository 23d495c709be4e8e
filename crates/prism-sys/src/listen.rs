//! Listeners for TCP.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that wait for `accept`, at most. The kernel cuts it to
/// `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;
/// The largest value that `TCP_MAXSEG` takes (`MAX_TCP_WINDOW` of the kernel).
const MAX_SEGMENT_BYTES: u32 = 32_767;

/// Why a listener was not opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum ListenError {
    #[error("{0} is taken by another socket; `ss -ltnp` shows which process has it")]
    Taken(SocketAddr),
    #[error("{0} is not an address of this host; `ip address` shows those that it has")]
    NotLocal(SocketAddr),
    #[error("{call} for {address} failed: {source}")]
    Kernel {
        call: &'static str,
        address: SocketAddr,
        source: io::Error,
    },
}

fn failed(call: &'static str, address: SocketAddr) -> impl FnOnce(io::Error) -> ListenError {
    move |source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => ListenError::Taken(address),
        Some(libc::EADDRNOTAVAIL) => ListenError::NotLocal(address),
        _ => ListenError::Kernel {
            call,
            address,
            source,
        },
    }
}

/// Opens a non-blocking listener in the namespace of the calling thread. Several may share
/// the address, one for each worker: the kernel spreads connections over them
/// (`SO_REUSEPORT`). Accepted connections send without Nagle's algorithm. With `segment_bytes`
/// their segments carry no more payload and TCP options than that, both ways.
pub fn listen_tcp(
    address: SocketAddr,
    segment_bytes: Option<u32>,
) -> Result<TcpListener, ListenError> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))
        .map_err(failed("socket", address))?;
    prepare(&socket, address).map_err(failed("setsockopt", address))?;
    if let Some(bytes) = segment_bytes {
        let bytes = bytes.min(MAX_SEGMENT_BYTES);
        let set = socket.set_tcp_mss(bytes);
        set.map_err(failed("TCP_MAXSEG", address))?;
    }
    socket
        .bind(&address.into())
        .map_err(failed("bind", address))?;
    socket.listen(BACKLOG).map_err(failed("listen", address))?;
    Ok(socket.into())
}

fn prepare(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // IPv4 has listeners of its own.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A loopback address of each family, and one that no host has.
    fn families() -> [(SocketAddr, SocketAddr); 2] {
        [
            ("127.0.0.1:0", "203.0.113.77:0"),
            ("[::1]:0", "[2001:db8::77]:0"),
        ]
        .map(|(here, foreign)| (here.parse().unwrap(), foreign.parse().unwrap()))
    }

    #[test]
    fn listeners_share_an_address_with_each_other_only() {
        for (localhost, foreign) in families() {
            let first = listen_tcp(localhost, None).unwrap();
            let address = first.local_addr().unwrap();
            let _second = listen_tcp(address, None).unwrap();
            let alone = TcpListener::bind(localhost).unwrap();
            let address = alone.local_addr().unwrap();
            let error = listen_tcp(address, None).unwrap_err();
            assert!(
                matches!(error, ListenError::Taken(taken) if taken == address),
                "{error}"
            );
            let error = listen_tcp(foreign, None).unwrap_err();
            assert!(matches!(error, ListenError::NotLocal(_)), "{error}");
        }
    }

    #[test]
    fn families_do_not_mix_at_one_port() {
        let v6 = listen_tcp("[::]:0".parse().unwrap(), None).unwrap();
        let port = v6.local_addr().unwrap().port();
        let v4 = listen_tcp(([0, 0, 0, 0], port).into(), None).unwrap();
        let _client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert!(v4.accept().is_ok());
        assert!(v6.accept().is_err());
    }

    #[test]
    fn clients_are_told_the_longest_segment() {
        for (localhost, _) in families() {
            for (asked, told) in [(1_400, 1_400), (60_000, MAX_SEGMENT_BYTES)] {
                let listener = listen_tcp(localhost, Some(asked)).unwrap();
                let address = listener.local_addr().unwrap();
                let client = std::net::TcpStream::connect(address).unwrap();
                let bytes = socket2::SockRef::from(&client).tcp_mss().unwrap();
                // The client has taken its options away.
                assert!((told - 40..=told).contains(&bytes), "{bytes} of {told}");
            }
        }
    }

    #[test]
    fn accepted_connections_send_at_once() {
        for (localhost, _) in families() {
            let listener = listen_tcp(localhost, None).unwrap();
            let address = listener.local_addr().unwrap();
            let _client = std::net::TcpStream::connect(address).unwrap();
            let (server, _) = listener.accept().unwrap();
            assert!(server.nodelay().unwrap());
        }
    }
}
