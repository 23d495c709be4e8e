//! Why something about a lab failed.

use std::io;
use std::path::PathBuf;

use crate::name::InvalidName;

/// Why something about a lab failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// the caller lacks the privilege that namespaces need
    #[error("a lab needs root (network namespaces, eBPF); run it with sudo")]
    NotRoot,
    /// the name is not one of a lab
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// the lab cannot have that many hosts
    #[error("a lab has at least 1 frontend and 1 backend, and at most {max} in all", max = crate::MAX_SERVERS)]
    Size,
    /// The cluster cannot begin with so many backends.
    #[error(
        "a cluster begins with at least one of its backends, and with fewer than all only where etcd keeps its state"
    )]
    Members,
    /// a lab of that name is up
    #[error(
        "lab {name} is up already; take it down first (`prism-lab down --name {name}`) or choose another name"
    )]
    Exists {
        /// The lab's name.
        name: String,
    },
    /// there is no lab of that name
    #[error("lab {name} is not up; start it with `prism-lab up --name {name}`")]
    NotUp {
        /// The lab's name.
        name: String,
    },
    /// the lab has no such host
    #[error("there is no host {host} in this lab; its hosts are {hosts}")]
    UnknownHost {
        /// What was asked for.
        host: String,
        /// What there is.
        hosts: String,
    },
    /// the host has no process of the lab
    #[error("host {host} runs no process of the lab")]
    NoProcess {
        /// The host.
        host: String,
    },
    /// a program that the lab runs is not installed
    #[error("there is no program `{program}`; install it with `apt-get install {package}`")]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// Debian's package.
        package: &'static str,
    },
    /// the program `prism` is not where it is looked for
    #[error(
        "there is no program at {}; build it with `cargo build --release -p prism`, or name one with `--prism PATH`",
        path.display()
    )]
    NoPrism {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// the caller asked to stop
    #[error("interrupted")]
    Cancelled,
    /// the changed configuration has faults
    #[error("the lab's configuration: {0}")]
    Config(String),
    /// the certificates of HTTPS cannot be made
    #[error("making the lab's certificates: {0}")]
    Certificate(#[from] rcgen::Error),
    /// another process holds the lock for too long
    #[error("another process has been building or removing a lab for {seconds} s; see `ps`")]
    Busy {
        /// How long this process waited.
        seconds: u64,
    },
    /// a tool of the system failed
    #[error("`{command}` failed ({outcome}): {output}")]
    Tool {
        /// The command line.
        command: String,
        /// Exit status, or why it did not start.
        outcome: String,
        /// What it wrote to its standard error.
        output: String,
    },
    /// a file or a process could not be dealt with
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// a host did not become healthy
    #[error("{host} is not healthy: {fault}\nend of {}:\n{log_tail}", log.display())]
    Unhealthy {
        /// Which host.
        host: String,
        /// What is missing.
        fault: String,
        /// Where the process's output is.
        log: PathBuf,
        /// Its last lines.
        log_tail: String,
    },
    /// the process's counters cannot be had
    #[error("{host} does not answer its counters: {fault}")]
    Admin {
        /// Which host.
        host: String,
        /// What went wrong.
        fault: String,
    },
    /// something of the lab could not be removed
    #[error("lab {name} is not removed in full: {what}")]
    Leftover {
        /// The lab's name.
        name: String,
        /// What is left.
        what: String,
    },
}

impl LabError {
    /// For `map_err`: adds what was being done to an I/O error.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
