//! Limits, signals and last words of the own process.

use std::error::Error;
use std::io;

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

/// Ends the process silently when it writes to a pipe that nobody reads, as `program | head` does.
/// It is for programs that print and own nothing that has to be cleaned up; a server must not call
/// it.
pub fn end_on_broken_pipe() {
    // SAFETY: the default action replaces Rust's "ignore" before any other thread
    // exists that could rely on it; no handler of ours runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Blocks all signals in the calling thread and in those that it starts, but for those of a fault
/// of the thread itself. Threads of a library so leave the handlers and masks of its program alone.
pub fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset writes the whole set before the other calls use it, and each number is a
    // signal's. Only the mask of this thread changes, by which no memory is reached.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
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

/// The text of an error and of its causes. A cause that an error before it quotes is left out, so
/// that nothing is said twice.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

/// The text of an error for the user of a program: with its causes, and with the remedy if the
/// kernel refuses something to a user who is not root.
#[must_use]
pub fn explained(error: &dyn Error) -> String {
    let text = with_causes(error);
    let is_refused = ["Permission denied", "Operation not permitted"]
        .iter()
        .any(|refusal| text.contains(refusal));
    if is_refused && !geteuid().is_root() && !text.contains("as root") {
        format!("{text}; run it as root, as with sudo")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Said {
        text: &'static str,
        source: Option<Box<Said>>,
    }

    #[test]
    fn a_cause_that_was_quoted_is_not_said_again() {
        let chain = [
            "the store: full: disk a",
            "full: disk a",
            "disk a",
            "sector 7",
        ];
        let said = chain.into_iter().rev().fold(None, |source, text| {
            let source = source.map(Box::new);
            Some(Said { text, source })
        });
        let said = with_causes(&said.unwrap());
        assert_eq!(said, "the store: full: disk a: sector 7");
    }

    #[test]
    fn a_thread_blocks_signals_for_itself_and_for_those_that_it_starts() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
            u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
        };
        let before = blocked();
        let (own, inherited) = std::thread::spawn(move || {
            block_signals();
            (blocked(), std::thread::spawn(blocked).join().unwrap())
        })
        .join()
        .unwrap();
        let bit = |signal: i32| 1_u64 << (signal - 1);
        assert_eq!(own, inherited);
        assert_ne!(own & bit(libc::SIGTERM), 0);
        assert_eq!(own & bit(libc::SIGSEGV), 0);
        assert_eq!(blocked(), before);
    }

    #[test]
    fn raises_open_files_to_the_hard_limit_twice() {
        assert_eq!(raise_open_files().unwrap(), raise_open_files().unwrap());
    }
}
