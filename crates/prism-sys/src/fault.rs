//! Who is to blame for an error.

/// Whose fault an error is, and so who has to act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other end of a connection, or the node that sent a state.
    Peer,
    /// The code that made the call.
    Caller,
    /// The kernel: out of memory, too old, or an answer nobody foresaw.
    Kernel,
    /// Whoever set this host up: addresses, routes, privileges, limits.
    Configuration,
}

/// The fault behind an error number that no operation has a special case for.
pub(crate) fn of_errno(error: &std::io::Error) -> Fault {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EMFILE | libc::ENFILE) => Fault::Configuration,
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => Fault::Caller,
        _ => Fault::Kernel,
    }
}
