//! The source's socket while its connection is handed off.
//!
//! Reading its state is in `save.rs`.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::freeze::{self, Freezer};
use super::info::{TcpInfo, TcpStateName};
use super::options;

/// A connection in repair mode: its system calls are ours, and it can be
/// saved, resumed, or closed without the peer's knowledge. `S` owns the socket's
/// descriptor, alone or with what belongs to it.
///
/// Dropping it, as happens when the owner panics or gives up, **resumes and
/// then closes it in the ordinary way**: the client learns that the connection
/// is over, as it does when any other socket is dropped. Silence is never an
/// accident, it takes [`Paused::close_silently`].
#[derive(Debug)]
#[must_use = "dropping it closes the connection and tells the peer so"]
pub struct Paused<S: AsFd = OwnedFd> {
    fd: S,
    info: TcpInfo,
    is_frozen: bool,
}

/// The connection was not paused. The descriptor comes back as it was.
#[derive(Debug, thiserror::Error)]
#[error("cannot pause the connection: {reason}")]
pub struct PauseError<S = OwnedFd> {
    /// The socket, still working.
    pub fd: S,
    /// Why.
    #[source]
    pub reason: PauseFault,
}

/// Why a connection cannot be paused.
#[derive(Debug, thiserror::Error)]
pub enum PauseFault {
    /// the connection is in state {0:?}; only Established and CloseWait can be handed off
    #[error("the connection is in state {0:?}; only Established and CloseWait can be handed off")]
    State(TcpStateName),
    /// the descriptor is no TCP socket
    #[error("the descriptor is no TCP socket")]
    NotTcp,
    /// CAP_NET_ADMIN is missing
    #[error("CAP_NET_ADMIN is missing")]
    NotPermitted,
    /// {call} failed
    #[error("{call} failed: {source}")]
    Kernel {
        /// The option or call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PauseFault {
    fn of(call: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM) => Self::NotPermitted,
            Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::ENOTSOCK) => Self::NotTcp,
            _ => Self::Kernel { call, source },
        }
    }
}

/// The kernel would not let the connection out of repair mode. The socket is
/// closed, and the peer has not been told.
#[derive(Debug, thiserror::Error)]
#[error("cannot leave repair mode: {0}")]
pub struct ResumeError(#[source] pub io::Error);

impl<S: AsFd> Paused<S> {
    /// Puts a connection into repair mode.
    ///
    /// The packets of the connection must have been stopped before, as
    /// [`Self::freeze`] does by itself (see [`crate::tcp`]), and the caller must have stopped using the socket: it
    /// is out of every epoll set, and no duplicate of it is in use.
    ///
    /// # Errors
    /// [`PauseError`], with the untouched socket in it.
    pub fn pause(fd: S) -> Result<Self, PauseError<S>> {
        match enter_repair(fd.as_fd()) {
            Ok(info) => Ok(Self {
                fd,
                info,
                is_frozen: false,
            }),
            Err(reason) => Err(PauseError { fd, reason }),
        }
    }

    /// Stops the connection's packets at this socket, and puts it into repair
    /// mode: nothing has to be stopped elsewhere. For the rest as
    /// [`Self::pause`].
    ///
    /// # Errors
    /// [`PauseError`], with the untouched socket in it.
    pub fn freeze(fd: S, freezer: &Freezer) -> Result<Self, PauseError<S>> {
        if let Err(error) = freezer.silence(fd.as_fd()) {
            let reason = PauseFault::of("SO_ATTACH_BPF", error);
            return Err(PauseError { fd, reason });
        }
        match enter_repair(fd.as_fd()) {
            Ok(info) => Ok(Self {
                fd,
                info,
                is_frozen: true,
            }),
            Err(reason) => {
                // Both calls have just worked the other way round.
                let _ = freeze::give_voice(fd.as_fd());
                Err(PauseError { fd, reason })
            }
        }
    }

    /// What the kernel said of the connection just before it was paused.
    #[must_use]
    pub fn info(&self) -> &TcpInfo {
        &self.info
    }

    /// Its packets were stopped by [`Self::freeze`].
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Takes the connection back: it is live again, with nothing lost, and
    /// nothing is sent.
    ///
    /// # Errors
    /// [`ResumeError`], which no kernel known gives a socket that was paused.
    pub fn resume(self) -> Result<S, ResumeError> {
        self.leave_repair().map_err(ResumeError)?;
        Ok(self.into_fd())
    }

    fn leave_repair(&self) -> io::Result<()> {
        options::repair_off_silently(self.as_fd())?;
        if self.is_frozen {
            freeze::give_voice(self.as_fd())?;
        }
        Ok(())
    }

    /// Closes the socket and tells nobody: no FIN, no RST, no TIME_WAIT. For
    /// the source, once the target has the connection.
    pub fn close_silently(self) {
        let fd = self.into_fd();
        // Where it fails, closing the descriptor does the same a little later.
        let _ = options::disconnect_silently(fd.as_fd());
    }

    /// The descriptor, still in repair mode.
    fn into_fd(self) -> S {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped and not used again, so there is one
        // owner; the other field needs no drop.
        unsafe { std::ptr::read(&raw const this.fd) }
    }
}

impl<S: AsFd> AsFd for Paused<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<S: AsFd> Drop for Paused<S> {
    fn drop(&mut self) {
        // On failure the socket closes silently: there is nobody to tell.
        let _ = self.leave_repair();
    }
}

/// Looks before it touches: a socket that is refused has not been changed.
fn enter_repair(fd: BorrowedFd<'_>) -> Result<TcpInfo, PauseFault> {
    let info = TcpInfo::read(fd).map_err(|error| PauseFault::of("TCP_INFO", error))?;
    match info.state {
        TcpStateName::Established | TcpStateName::CloseWait => {}
        state => return Err(PauseFault::State(state)),
    }
    options::repair_on(fd).map_err(|error| PauseFault::of("TCP_REPAIR", error))?;
    Ok(info)
}
