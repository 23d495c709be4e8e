//! Running code inside a network namespace.
//!
//! A namespace is a property of a thread, so [`NetNs::run`] starts one, enters
//! the namespace there, and waits for it; the caller's thread never moves.
//! Sockets opened inside keep their namespace wherever they are used.
//!
//! Named namespaces are made and removed by `ip netns` (the lab does that).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::sockopt::check;

/// Where `ip netns` keeps the named ones.
const NAMED: &str = "/run/netns";

/// A handle on a network namespace; it keeps the namespace alive.
#[derive(Debug)]
pub struct NetNs(OwnedFd);

/// Why a namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    /// {0:?} is not the name of a namespace
    #[error("{0:?} is not the name of a namespace")]
    Name(String),
    /// cannot open the namespace at a path
    #[error("cannot open the namespace {path}: {source}")]
    Open {
        /// What was opened.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// {call} failed
    #[error("{call} failed: {source}")]
    Kernel {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl NetNs {
    /// A namespace made by `ip netns add`.
    ///
    /// # Errors
    /// [`NetNsError::Name`] for what cannot be a name, [`NetNsError::Open`]
    /// where there is none.
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

    /// A new namespace without a name: it ends with its last handle, socket
    /// and thread, so nothing is left behind whatever happens. It holds an
    /// `lo` that is down.
    ///
    /// # Errors
    /// [`NetNsError::Kernel`] without `CAP_SYS_ADMIN`.
    pub fn anonymous() -> Result<Self, NetNsError> {
        in_thread(|| {
            // SAFETY: takes no pointer; only this thread, which ends with the
            // closure, leaves its namespace.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map_err(|source| {
                NetNsError::Kernel {
                    call: "unshare",
                    source,
                }
            })?;
            Self::current()
        })?
    }

    /// Runs `work` in a thread inside the namespace and waits for its result.
    /// Processes that it starts are inside too. A panic is passed on.
    ///
    /// # Errors
    /// [`NetNsError::Kernel`] where the namespace cannot be entered
    /// (`CAP_SYS_ADMIN`), or no thread can be started.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        in_thread(|| {
            // SAFETY: a valid descriptor and no pointer; only this thread moves.
            check(unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) }).map_err(
                |source| NetNsError::Kernel {
                    call: "setns",
                    source,
                },
            )?;
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
            .map_err(|source| NetNsError::Kernel {
                call: "clone",
                source,
            })?;
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
