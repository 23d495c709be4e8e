//! A socket in repair mode that ends without a segment.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::options;

/// A socket in repair mode. Dropping it ends the connection in this kernel, at once and silently,
/// whoever else has a duplicate.
#[derive(Debug)]
pub(crate) struct Silent(OwnedFd);

impl Silent {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// The socket, still in repair mode. Dropping it is silent too, unless it has left repair mode
    /// or has been duplicated.
    pub(crate) fn into_fd(self) -> OwnedFd {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped and not used again, so the
        // descriptor keeps one owner.
        unsafe { std::ptr::read(&raw const this.0) }
    }
}

impl AsFd for Silent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // If it fails, closing the descriptor does the same a little later.
        let _ = options::disconnect_silently(self.0.as_fd());
    }
}
