//! The kernel's socket table: `sock_diag(7)` over netlink, for connections that this process may no
//! longer have.
//!
//! - [`Diag`] looks up one connection by its addresses, TIME_WAIT included.
//! - [`Destroyed`] reports every TCP socket of the namespace that is destroyed. It tells the owner
//!   of a flow that no packet can leave that socket any more, without a kernel module. It does not
//!   report the end of TIME_WAIT, whose length [`Diag`] returns.
//!
//! Both see the network namespace of the thread that opened them, and need no privilege.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::CallError;
use crate::sockopt;
use crate::tcp::TcpStateName;

/// `include/uapi/linux/sock_diag.h`, `inet_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const DESTROY_GROUP_IPV4: i32 = 1;
const DESTROY_GROUP_IPV6: i32 = 3;
/// `idiag_timer` of a TIME_WAIT entry.
const TIMER_TIME_WAIT: u8 = 3;

const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// `struct inet_diag_msg`, without attributes.
const MESSAGE_BYTES: usize = 72;
/// One datagram: a message of a destroyed socket with its attributes is a few
/// hundred bytes.
const BUFFER_BYTES: usize = 8192;
/// The kernel memory for unread reports: 4 MiB hold some thousand of them.
const EVENT_BUFFER_BYTES: i32 = 4 << 20;

/// The two ends of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// A connection found in the socket table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its state.
    pub state: TcpStateName,
    /// The rest of TIME_WAIT (or of FIN_WAIT2 without a process), in which it answers segments.
    pub time_wait: Option<Duration>,
}

/// The reason why a look-up or a report failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum DiagError {
    #[error("events were lost: look up every connection that matters")]
    Overflow,
    #[error("the two ends are of different families")]
    Families,
    #[error("the kernel's answer is not understood")]
    Answer,
    #[error(transparent)]
    Kernel(#[from] CallError),
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> DiagError {
    move |source| match source.raw_os_error() {
        Some(libc::ENOBUFS) => DiagError::Overflow,
        _ => CallError { call, source }.into(),
    }
}

/// Look-ups of single connections.
#[derive(Debug)]
pub struct Diag {
    socket: Socket,
    sequence: u32,
}

impl Diag {
    /// Opens a netlink socket in the namespace of the calling thread.
    pub fn open() -> Result<Self, DiagError> {
        Ok(Self {
            socket: netlink()?,
            sequence: 0,
        })
    }

    /// Looks up one connection; `None` if the kernel has none. It does not wait.
    ///
    /// # Errors
    /// [`DiagError`]; the next look-up works again.
    pub fn lookup(&mut self, connection: &Connection) -> Result<Option<Entry>, DiagError> {
        if connection.local.is_ipv4() != connection.remote.is_ipv4() {
            return Err(DiagError::Families);
        }
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(connection, self.sequence);
        self.socket.send(&request).map_err(failed("send"))?;
        let mut buffer = [0; BUFFER_BYTES];
        loop {
            let length = (&self.socket).read(&mut buffer).map_err(failed("recv"))?;
            let datagram = buffer.get(..length).unwrap_or_default();
            let message = Message::first(datagram).ok_or(DiagError::Answer)?;
            // The answer is left from a look-up that failed.
            if message.sequence == self.sequence {
                return answer(&message, connection);
            }
        }
    }
}

/// Reads an answer. The kernel also answers with a listener that would take the connection.
fn answer(message: &Message<'_>, asked: &Connection) -> Result<Option<Entry>, DiagError> {
    if i32::from(message.kind) == libc::NLMSG_ERROR {
        let code = message
            .body
            .first_chunk()
            .map(|code| i32::from_ne_bytes(*code));
        return match code {
            Some(code) if -code == libc::ENOENT => Ok(None),
            Some(code) => Err(failed("lookup")(io::Error::from_raw_os_error(-code))),
            None => Err(DiagError::Answer),
        };
    }
    let found = SocketMessage::parse(message.body).ok_or(DiagError::Answer)?;
    Ok((found.connection == *asked).then_some(found.entry))
}

/// Reports of destroyed sockets.
///
/// A connection that was closed silently ([`crate::tcp::Paused::close_silently`]) is not reported:
/// the kernel has forgotten its addresses, and its owner knows.
#[derive(Debug)]
pub struct Destroyed {
    socket: Socket,
}

impl Destroyed {
    /// Subscribes in the namespace of the calling thread. The socket is non-blocking.
    pub fn subscribe() -> Result<Self, DiagError> {
        let socket = netlink()?;
        // The option exceeds the limit of processes if we may; else the default stays.
        let _ = sockopt::set(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            &EVENT_BUFFER_BYTES,
        );
        for group in [DESTROY_GROUP_IPV4, DESTROY_GROUP_IPV6] {
            let name = libc::NETLINK_ADD_MEMBERSHIP;
            sockopt::set(socket.as_fd(), libc::SOL_NETLINK, name, &group)
                .map_err(failed("NETLINK_ADD_MEMBERSHIP"))?;
        }
        Ok(Self { socket })
    }

    /// The next connection whose socket is destroyed; `None` until the descriptor is readable
    /// again.
    ///
    /// # Errors
    /// [`DiagError::Overflow`] once after reports were lost. The kernel reports again when the
    /// queue has been read empty: read on until `None`, then look up every connection that matters.
    pub fn try_next(&mut self) -> Result<Option<Connection>, DiagError> {
        let mut buffer = [0; BUFFER_BYTES];
        loop {
            let length = match (&self.socket).read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(failed("recv")(error)),
            };
            let datagram = buffer.get(..length).unwrap_or_default();
            let gone = Message::first(datagram)
                .and_then(|message| SocketMessage::parse(message.body))
                .ok_or(DiagError::Answer)?
                .connection;
            // Never connected, or closed silently.
            if gone.remote.port() != 0 {
                return Ok(Some(gone));
            }
        }
    }
}

impl AsRawFd for Destroyed {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Destroyed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn netlink() -> Result<Socket, DiagError> {
    let kind = Type::RAW.nonblocking().cloexec();
    let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
    let socket = Socket::new_raw(Domain::from(libc::AF_NETLINK), kind, Some(protocol))
        .map_err(failed("socket"))?;
    bind_any(socket.as_fd()).map_err(failed("bind"))?;
    Ok(socket)
}

/// Gives the socket a port id. Multicasts skip a socket without one, which they take for their
/// sender.
fn bind_any(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `sockaddr_nl` is integers only, for which 0 is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an initialised address of `length` bytes, read by the kernel
    // before the call returns.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    sockopt::check(result).map(drop)
}

/// `struct nlmsghdr`, then `struct inet_diag_req_v2`.
fn request(connection: &Connection, sequence: u32) -> Vec<u8> {
    let Connection { local, remote } = connection;
    let family = match local {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    [
        &(REQUEST_BYTES as u32).to_ne_bytes()[..],
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &(libc::NLM_F_REQUEST as u16).to_ne_bytes(),
        &sequence.to_ne_bytes(),
        &[0; 4], // port id: the kernel fills it in
        &[family as u8, libc::IPPROTO_TCP as u8, 0, 0],
        &u32::MAX.to_ne_bytes(), // any state
        &local.port().to_be_bytes(),
        &remote.port().to_be_bytes(),
        &address_bytes(local.ip()),
        &address_bytes(remote.ip()),
        &[0; 4],    // any interface
        &[0xff; 8], // INET_DIAG_NOCOOKIE
    ]
    .concat()
}

/// An IPv4 address takes the first of four words.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
    }
}

/// One netlink message.
struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The first message of a datagram; `sock_diag` puts one in each, except in
    /// dumps.
    fn first(datagram: &'a [u8]) -> Option<Self> {
        let length = u32::from_ne_bytes(*datagram.first_chunk()?) as usize;
        Some(Self {
            kind: u16::from_ne_bytes(chunk(datagram, 4)?),
            sequence: u32::from_ne_bytes(chunk(datagram, 8)?),
            body: datagram.get(HEADER_BYTES..length)?,
        })
    }
}

/// `struct inet_diag_msg`.
struct SocketMessage {
    connection: Connection,
    entry: Entry,
}

impl SocketMessage {
    fn parse(body: &[u8]) -> Option<Self> {
        let body: &[u8; MESSAGE_BYTES] = body.first_chunk()?;
        let [family, state, timer, ..] = *body;
        let address = |address_at, port_at| {
            let port = u16::from_be_bytes(chunk(body, port_at)?);
            let raw: [u8; 16] = chunk(body, address_at)?;
            Some(SocketAddr::new(ip(family, raw), port))
        };
        let expires_ms = u32::from_ne_bytes(chunk(body, 52)?);
        Some(Self {
            connection: Connection {
                local: address(8, 4)?,
                remote: address(24, 6)?,
            },
            entry: Entry {
                state: TcpStateName::from_kernel(state),
                time_wait: (timer == TIMER_TIME_WAIT)
                    .then(|| Duration::from_millis(u64::from(expires_ms))),
            },
        })
    }
}

/// IPv4 addresses of IPv6 sockets are shown as IPv4, as everywhere in Prism.
fn ip(family: u8, raw: [u8; 16]) -> IpAddr {
    if i32::from(family) == libc::AF_INET {
        let [a, b, c, d, ..] = raw;
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    } else {
        IpAddr::V6(Ipv6Addr::from(raw)).to_canonical()
    }
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn a_request_has_the_layout_of_the_kernel() {
        let connection = Connection {
            local: "192.0.2.1:80".parse().unwrap(),
            remote: "[2001:db8::2]:443".parse().unwrap(),
        };
        let bytes = request(&connection, 7);
        assert_eq!(bytes[0..6], [72, 0, 0, 0, 20, 0]);
        assert_eq!(bytes[16..18], [2, 6]);
        assert_eq!(bytes[24..28], [0, 80, 1, 187]);
        assert_eq!(bytes[28..32], [192, 0, 2, 1]);
        assert_eq!(bytes[44..48], [0x20, 1, 0x0d, 0xb8]);
        assert_eq!(
            bytes[60..72],
            [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]
        );
    }

    #[test]
    fn short_messages_are_no_messages() {
        let full = {
            let mut bytes = [0u8; 88];
            bytes[0] = 88;
            bytes[16] = libc::AF_INET as u8;
            bytes
        };
        let parses = |bytes: &[u8]| {
            Message::first(bytes)
                .is_some_and(|message| SocketMessage::parse(message.body).is_some())
        };
        assert!(parses(&full));
        for length in 0..full.len() {
            assert!(!parses(&full[..length]), "{length}");
        }
    }
}
