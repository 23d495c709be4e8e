//! Sockets that are opened, not handed over: listeners and UDP.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

use crate::fault::{self, Fault};
use crate::sockopt;

/// How a listener is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that wait for `accept`, at most. The kernel cuts it to
    /// `net.core.somaxconn`, 4096 by default.
    pub backlog: u16,
    /// Several listeners may share the address, one for each worker; the kernel
    /// spreads connections over them (`SO_REUSEPORT`).
    pub shared: bool,
    /// Accepted connections send at once, without Nagle's algorithm.
    pub nodelay: bool,
    /// The address need not be there yet, or ever: a virtual address, packets
    /// for which are routed here (`IP_FREEBIND`).
    pub foreign_address: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            backlog: 4096,
            shared: true,
            nodelay: true,
            foreign_address: false,
        }
    }
}

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// {0} is taken by another socket
    #[error("{0} is taken by another socket")]
    Taken(SocketAddr),
    /// {0} is not an address of this host
    #[error("{0} is not an address of this host")]
    NotLocal(SocketAddr),
    /// {call} for {address} failed
    #[error("{call} for {address} failed: {source}")]
    Kernel {
        /// The call or option.
        call: &'static str,
        /// The address asked for.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ListenError {
    /// Who has to act.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Taken(_) | Self::NotLocal(_) => Fault::Configuration,
            Self::Kernel { source, .. } => fault::of_errno(source),
        }
    }
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

/// Opens a listener, non-blocking, in the namespace of the calling thread. It
/// may follow at once on another that had the same address. Accepted sockets
/// take over what the listener has set, except that they block.
///
/// # Errors
/// [`ListenError`].
pub fn listen_tcp(
    address: SocketAddr,
    options: &ListenOptions,
) -> Result<TcpListener, ListenError> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))
        .map_err(failed("socket", address))?;
    prepare(&socket, address, options).map_err(failed("setsockopt", address))?;
    socket
        .bind(&address.into())
        .map_err(failed("bind", address))?;
    socket
        .listen(i32::from(options.backlog))
        .map_err(failed("listen", address))?;
    Ok(socket.into())
}

fn prepare(socket: &Socket, address: SocketAddr, options: &ListenOptions) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // IPv4 has listeners of its own.
        socket.set_only_v6(true)?;
    }
    if options.shared {
        socket.set_reuse_port(true)?;
    }
    if options.nodelay {
        socket.set_tcp_nodelay(true)?;
    }
    if options.foreign_address {
        // One option serves both families.
        sockopt::set(socket.as_fd(), libc::IPPROTO_IP, libc::IP_FREEBIND, &1_i32)?;
    }
    Ok(())
}

/// Opens a UDP socket that talks to one peer only, non-blocking. Datagrams from
/// others do not reach it, and a refusal by the peer's host is an error of the
/// next call. `local` chooses the source address; port 0 is any.
///
/// # Errors
/// [`ListenError`].
pub fn connected_udp(
    local: Option<SocketAddr>,
    peer: SocketAddr,
) -> Result<UdpSocket, ListenError> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(peer), kind, Some(Protocol::UDP))
        .map_err(failed("socket", peer))?;
    if let Some(local) = local {
        socket.bind(&local.into()).map_err(failed("bind", local))?;
    }
    socket
        .connect(&peer.into())
        .map_err(failed("connect", peer))?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn localhost() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn shared_listeners_share_and_others_do_not() {
        let shared = ListenOptions::default();
        let first = listen_tcp(localhost(), &shared).unwrap();
        let address = first.local_addr().unwrap();
        let _second = listen_tcp(address, &shared).unwrap();
        let alone = ListenOptions {
            shared: false,
            ..shared
        };
        let error = listen_tcp(address, &alone).unwrap_err();
        assert!(
            matches!(error, ListenError::Taken(taken) if taken == address),
            "{error}"
        );
    }

    #[test]
    fn accepted_connections_send_at_once() {
        let listener = listen_tcp(localhost(), &ListenOptions::default()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(server.nodelay().unwrap());
    }

    #[test]
    fn a_foreign_address_is_taken_only_when_asked_for() {
        let foreign = "203.0.113.77:0".parse().unwrap();
        let error = listen_tcp(foreign, &ListenOptions::default()).unwrap_err();
        assert!(matches!(error, ListenError::NotLocal(_)), "{error}");
        let options = ListenOptions {
            foreign_address: true,
            ..ListenOptions::default()
        };
        listen_tcp(foreign, &options).unwrap();
    }

    #[test]
    fn udp_hears_its_peer_only() {
        let peer = UdpSocket::bind(localhost()).unwrap();
        let stranger = UdpSocket::bind(localhost()).unwrap();
        let socket = connected_udp(Some(localhost()), peer.local_addr().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        stranger.send_to(b"stranger", address).unwrap();
        peer.send_to(b"peer", address).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
        assert_eq!(
            socket.recv(&mut buffer).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }
}
