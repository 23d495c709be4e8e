//! A connection's socket, which the runtime's reactor hears of only when
//! somebody has to wait for it. Most connections that arrive have their request
//! with them, are answered, and may be gone again: telling the reactor would
//! cost them more than the answer does.

use std::io;
use std::net::TcpStream as Socket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tokio::net::TcpStream;

/// One non-blocking socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Unwatched(Socket),
    Watched(TcpStream),
}

impl Stream {
    /// The socket as the reactor knows it.
    ///
    /// # Errors
    /// What the kernel says; the socket is then closed.
    pub(crate) fn watched(self) -> io::Result<TcpStream> {
        match self {
            Self::Unwatched(socket) => TcpStream::from_std(socket),
            Self::Watched(stream) => Ok(stream),
        }
    }
}

impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Self {
        Self::Unwatched(fd.into())
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Watched(stream)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unwatched(socket) => socket.as_fd(),
            Self::Watched(stream) => stream.as_fd(),
        }
    }
}
