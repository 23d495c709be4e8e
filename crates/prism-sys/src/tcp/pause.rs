//! The source's socket during a hand-off. `save.rs` reads its state.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::freeze::{self, Freezer};
use super::info::{TcpInfo, TcpStateName};
use super::options;
use crate::CallError;
use crate::error::failed;

/// A connection in repair mode, which can be saved, resumed, or closed without the peer's
/// knowledge. `S` owns the socket's descriptor.
///
/// Dropping it **resumes and then closes it in the ordinary way**, also when the owner panics: the
/// client learns that the connection is over. A silent end takes [`Paused::close_silently`].
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
    /// The reason.
    #[source]
    pub reason: PauseFault,
}

/// The reason why a connection cannot be paused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum PauseFault {
    #[error("the connection is in state {0:?}; only Established and CloseWait can be handed off")]
    State(TcpStateName),
    #[error(transparent)]
    Kernel(#[from] CallError),
}

/// The kernel would not let the connection out of repair mode. The socket is
/// closed, and the peer has not been told.
#[derive(Debug, thiserror::Error)]
#[error("cannot leave repair mode: {0}")]
pub struct ResumeError(#[source] pub io::Error);

impl<S: AsFd> Paused<S> {
    /// Puts a connection into repair mode.
    ///
    /// Its packets must have been stopped before (see [`crate::tcp`]); [`Self::freeze`] does that
    /// itself. The caller must have stopped using the socket: it is in no epoll set, and no
    /// duplicate of it is in use.
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

    /// Stops the connection's packets at this socket, and then does as [`Self::pause`].
    ///
    /// # Errors
    /// [`PauseError`], with the untouched socket in it.
    pub fn freeze(fd: S, freezer: &Freezer) -> Result<Self, PauseError<S>> {
        if let Err(error) = freezer.silence(fd.as_fd()) {
            let reason = failed("SO_ATTACH_BPF")(error).into();
            return Err(PauseError { fd, reason });
        }
        let mut paused = Self::pause(fd).inspect_err(|error| {
            // It cannot fail: both calls have just worked in the other direction.
            let _ = freeze::give_voice(error.fd.as_fd());
        })?;
        paused.is_frozen = true;
        Ok(paused)
    }

    /// The kernel's figures just before the pause.
    #[must_use]
    pub fn info(&self) -> &TcpInfo {
        &self.info
    }

    /// Whether [`Self::freeze`] has stopped its packets.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Makes the connection live again. It has lost nothing, and sends nothing by this.
    ///
    /// # Errors
    /// [`ResumeError`], which no known kernel returns for a paused socket.
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

    /// Closes the socket without a packet: no FIN, no RST, no TIME_WAIT. It is for the source, once
    /// the target has the connection.
    pub fn close_silently(self) {
        let fd = self.into_fd();
        // If it fails, closing the descriptor does the same a little later.
        let _ = options::disconnect_silently(fd.as_fd());
    }

    /// The descriptor, still in repair mode.
    pub(super) fn into_fd(self) -> S {
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
        // On failure the socket closes silently.
        let _ = self.leave_repair();
    }
}

/// Checks the state first, so a refused socket is unchanged.
fn enter_repair(fd: BorrowedFd<'_>) -> Result<TcpInfo, PauseFault> {
    let info = TcpInfo::read(fd).map_err(failed("TCP_INFO"))?;
    match info.state {
        TcpStateName::Established | TcpStateName::CloseWait => {}
        state => return Err(PauseFault::State(state)),
    }
    options::repair_on(fd).map_err(failed("TCP_REPAIR"))?;
    Ok(info)
}
