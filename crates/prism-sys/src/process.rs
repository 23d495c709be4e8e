//! Limits and signals of the own process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Ends the process silently when it writes to a pipe that nobody reads, as `program | head` does.
/// It is for programs that print and own nothing that has to be cleaned up; a server must not call
/// it.
pub fn end_on_broken_pipe() {
    // SAFETY: the default action replaces Rust's "ignore" before any other thread
    // exists that could rely on it; no handler of ours runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Raises the limit of open descriptors to the hard limit, and returns that.
///
/// # Errors
/// The kernel's error; the limit is then as it was.
pub fn raise_open_files() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    Ok(maximum.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn raises_open_files_to_the_hard_limit_twice() {
        assert_eq!(raise_open_files().unwrap(), raise_open_files().unwrap());
    }
}
