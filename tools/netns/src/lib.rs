//! Network namespaces and TUN devices, for labs and tests.
//!
//! A namespace is a property of a thread. [`NetNs::run`] starts a thread, which enters the
//! namespace, and waits for it; the caller's thread never moves. Sockets that are opened inside
//! keep their namespace wherever they are used.
//!
//! `ip netns` makes and removes named namespaces (the lab does that).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use prism_sys::lab::leave_network_namespace;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

mod tun;

pub use tun::Tun;

/// The directory of the named namespaces of `ip netns`.
const NAMED: &str = "/run/netns";

/// A handle on a network namespace; it keeps the namespace alive.
#[derive(Debug)]
pub struct NetNs(OwnedFd);

impl NetNs {
    /// The namespace `name`, made by `ip netns add`.
    ///
    /// # Errors
    /// `InvalidInput` if `name` cannot be a name, `NotFound` if there is none.
    pub fn named(name: &str) -> io::Result<Self> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            let fault = format!("{name:?} is not the name of a namespace");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, fault));
        }
        open(Path::new(NAMED).join(name))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel's error, without `/proc`.
    pub fn current() -> io::Result<Self> {
        open(PathBuf::from("/proc/thread-self/ns/net"))
    }

    /// A new namespace without a name, which ends with its last handle, socket and thread. It has
    /// an `lo` that is down.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN`.
    pub fn anonymous() -> io::Result<Self> {
        in_thread(|| {
            leave_network_namespace().map_err(named_call("unshare"))?;
            Self::current()
        })?
    }

    /// Runs `work` in a thread inside the namespace and waits for its result. Processes that it
    /// starts are inside too.
    ///
    /// # Errors
    /// The kernel's error if the thread cannot be started, or cannot enter the namespace
    /// (`CAP_SYS_ADMIN`).
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(named_call("setns"))?;
            Ok(work())
        })?
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open(path: PathBuf) -> io::Result<NetNs> {
    let file = File::open(&path).map_err(|error| {
        let fault = format!("cannot open the namespace {}: {error}", path.display());
        io::Error::new(error.kind(), fault)
    })?;
    Ok(NetNs(file.into()))
}

/// Puts the name of the call that failed before the kernel's error.
fn named_call<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> io::Error {
    move |error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{call} failed: {error}"))
    }
}

fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
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
            let error = NetNs::named(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }

    #[test]
    fn a_missing_namespace_is_an_error() {
        let error = NetNs::named("psys-no-such-namespace").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
