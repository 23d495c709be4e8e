//! Running code inside a network namespace.
//!
//! A namespace is a property of a thread. [`NetNs::run`] starts a thread, which enters the
//! namespace, and waits for it; the caller's thread never moves. Sockets that are opened inside
//! keep their namespace wherever they are used.
//!
//! `ip netns` makes and removes named namespaces (the lab does that).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::CallError;
use crate::sockopt::check;

/// The directory of the named namespaces of `ip netns`.
const NAMED: &str = "/run/netns";

/// A handle on a network namespace; it keeps the namespace alive.
#[derive(Debug)]
pub struct NetNs(OwnedFd);

/// The reason why a namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    /// {0:?} is not the name of a namespace
    #[error("{0:?} is not the name of a namespace")]
    Name(String),
    /// cannot open the namespace at a path
    #[error("cannot open the namespace {path}: {source}")]
    Open {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A call failed.
    #[error(transparent)]
    Kernel(#[from] CallError),
}

impl NetNs {
    /// The namespace `name`, made by `ip netns add`.
    ///
    /// # Errors
    /// [`NetNsError::Name`] if `name` cannot be a name, [`NetNsError::Open`] if there is none.
    pub fn named(name: &str) -> Result<Self, NetNsError> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(NetNsError::Name(name.to_owned()));
        }
        open(Path::new(NAMED).join(name))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetNsError::Open`] without `/proc`.
    pub fn current() -> Result<Self, NetNsError> {
        open(PathBuf::from("/proc/thread-self/ns/net"))
    }

    /// A new namespace without a name, which ends with its last handle, socket and thread. It has
    /// an `lo` that is down.
    ///
    /// # Errors
    /// [`NetNsError::Kernel`] without `CAP_SYS_ADMIN`.
    pub fn anonymous() -> Result<Self, NetNsError> {
        in_thread(|| {
            // SAFETY: takes no pointer; only this thread, which ends with the
            // closure, leaves its namespace.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
                .map_err(CallError::of("unshare"))?;
            Self::current()
        })?
    }

    /// Runs `work` in a thread inside the namespace and waits for its result. Processes that it
    /// starts are inside too.
    ///
    /// # Errors
    /// [`NetNsError::Kernel`] if the thread cannot be started, or cannot enter the namespace
    /// (`CAP_SYS_ADMIN`).
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        in_thread(|| {
            // SAFETY: a valid descriptor and no pointer; only this thread moves.
            check(unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) })
                .map_err(CallError::of("setns"))?;
            Ok(work())
        })?
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open(path: PathBuf) -> Result<NetNs, NetNsError> {
    match File::open(&path) {
        Ok(file) => Ok(NetNs(file.into())),
        Err(source) => Err(NetNsError::Open { path, source }),
    }
}

fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .spawn_scoped(scope, work)
            .map_err(CallError::of("clone"))?;
        match thread.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn refuses_names_that_are_paths() {
        for name in ["", ".", "..", "a/b", "../x", "a\0b"] {
            assert!(
                matches!(NetNs::named(name), Err(NetNsError::Name(_))),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_missing_namespace_is_an_error() {
        let error = NetNs::named("psys-no-such-namespace").unwrap_err();
        assert!(matches!(error, NetNsError::Open { .. }), "{error}");
    }
}
