//! What a process may do, and how long it lives.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::sockopt::check;

/// Ends the process without a word when it writes to a pipe that nobody reads, as
/// `program | head` does. For programs that print and hold nothing that must be
/// given back; a server must not call it.
pub fn end_on_broken_pipe() {
    // SAFETY: the default action replaces Rust's "ignore" before any other thread
    // exists that could rely on it; no handler of ours runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Has the command's process killed when the **thread** that starts it ends
/// (`PR_SET_PDEATHSIG`, which is about threads): start it from a thread that
/// lives as long as the process should, in most programs the main thread.
///
/// For helpers that must not survive a SIGKILL of their parent.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe functions run:
    // prctl and getppid, and an error built from a number without allocation.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            // The parent may have died before the call.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        })
    }
}

/// Raises the limit of open descriptors to what this process may have at most;
/// returns that.
///
/// # Errors
/// What the kernel said; the limit is then as it was.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable and outlives the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is initialised and outlives the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// A capability that some part of Prism needs (`capabilities(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// `CAP_NET_ADMIN`: hand-off of connections, network set-up.
    NetAdmin = 12,
    /// `CAP_SYS_ADMIN`: network namespaces, mounts.
    SysAdmin = 21,
    /// `CAP_BPF`: loading the switch's programs.
    Bpf = 39,
}

/// The capabilities in effect for the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Reads them from `/proc`.
    ///
    /// # Errors
    /// Without `/proc`, or where it does not have the field.
    pub fn effective() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        parse_effective(&status).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "no CapEff in /proc/thread-self/status",
            )
        })
    }

    /// Whether the capability is in effect.
    #[must_use]
    pub fn has(self, capability: Capability) -> bool {
        self.0 >> capability as u8 & 1 != 0
    }
}

fn parse_effective(status: &str) -> Option<Capabilities> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok().map(Capabilities)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_capabilities() {
        let some = parse_effective("Name:\tx\nCapEff:\t0000008000001000\n").unwrap();
        assert!(some.has(Capability::NetAdmin) && some.has(Capability::Bpf));
        assert!(!some.has(Capability::SysAdmin));
        assert!(parse_effective("CapEff:\tzz\n").is_none());
        assert!(Capabilities::effective().is_ok());
    }

    #[test]
    fn raises_open_files_to_the_hard_limit_twice() {
        assert_eq!(raise_open_files().unwrap(), raise_open_files().unwrap());
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            die_with_parent(command.arg("30")).spawn().unwrap()
        })
        .join()
        .unwrap();
        let status = child.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(libc::SIGKILL)
        );
    }
}
