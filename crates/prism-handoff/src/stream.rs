//! A connection's socket, which is registered with the runtime's reactor at the first wait. Most
//! imported connections have their request with them and never wait.

use std::io;
use std::net::TcpStream as Socket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use prism_sys::tcp::probe_peer;
use tokio::net::TcpStream;

/// One non-blocking socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Unwatched(Socket),
    Watched(TcpStream),
}

impl Stream {
    /// The socket, registered with the reactor; an error closes it.
    pub(crate) fn watched(self) -> io::Result<TcpStream> {
        match self {
            Self::Unwatched(socket) => TcpStream::from_std(socket),
            Self::Watched(stream) => Ok(stream),
        }
    }

    /// The socket, without its registration.
    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Self::Unwatched(socket) => Some(socket.into()),
            Self::Watched(stream) => stream.into_std().ok().map(Into::into),
        }
    }

    /// Asks the client for an acknowledgement and its window, which it repeats only then.
    pub(crate) fn ask_for_window(&self) {
        if let Err(error) = probe_peer(self.as_fd()) {
            tracing::debug!(%error, "cannot ask the client for its window");
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
