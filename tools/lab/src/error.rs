//! Why something about a lab failed.

use std::io;
use std::path::PathBuf;

use crate::family::Family;
use crate::name::InvalidName;

/// Why something about a lab failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The caller is not root.
    #[error("a lab needs root (network namespaces, eBPF); run it with sudo")]
    NotRoot,
    /// The text is not a lab's name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The lab cannot have so many hosts.
    #[error("a lab has at least 1 frontend and 1 backend, and at most {max} in all")]
    Size {
        /// The most frontends and backends of a lab with so many switches.
        max: usize,
    },
    /// A lab has another number of switches.
    #[error("a lab has 1 switch, or 2 of which one is active")]
    Switches,
    /// A switch is asked for between routed hosts.
    #[error("a router between the hosts is for host mode")]
    Routed,
    /// Clients are to be spread over one frontend.
    #[error("clients are spread over two frontends or more")]
    Spread,
    /// The cluster cannot begin with so many backends.
    #[error(
        "a cluster begins with at least one of its backends, and with fewer than all only where etcd keeps its state"
    )]
    Members,
    /// A lab of that name is up.
    #[error(
        "lab {name} is up already; take it down first (`prism-lab down --name {name}`) or choose another name"
    )]
    Exists {
        /// The lab's name.
        name: String,
    },
    /// No lab has that name.
    #[error("lab {name} is not up; start it with `prism-lab up --name {name}`")]
    NotUp {
        /// The lab's name.
        name: String,
    },
    /// The lab has no such host.
    #[error("there is no host {host} in this lab; its hosts are {hosts}")]
    UnknownHost {
        /// The name that the caller gave.
        host: String,
        /// The hosts of the lab.
        hosts: String,
    },
    /// The host has no address of a family.
    #[error("the lab's hosts have no {family} addresses; use `--family dual`")]
    NoAddress {
        /// The missing family.
        family: Family,
    },
    /// The host has no process of the lab.
    #[error("host {host} runs no process of the lab")]
    NoProcess {
        /// The host.
        host: String,
    },
    /// A program that the lab runs is not installed.
    #[error("there is no program `{program}`; install it with `apt-get install {package}`")]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// Debian's package.
        package: &'static str,
    },
    /// The program `prism` is missing.
    #[error(
        "there is no program at {}; build it with `cargo build --release -p prism`, or name one with `--prism PATH`",
        path.display()
    )]
    NoPrism {
        /// The path where it should be.
        path: PathBuf,
    },
    /// The caller stopped the work.
    #[error("interrupted")]
    Cancelled,
    /// The changed configuration has faults.
    #[error("the lab's configuration: {0}")]
    Config(String),
    /// The certificates of HTTPS cannot be made.
    #[error("making the lab's certificates: {0}")]
    Certificate(#[from] rcgen::Error),
    /// Another process holds the lock for too long.
    #[error(
        "another process has been building or removing a lab for {seconds} s; find it with `ps`, and end it if it hangs"
    )]
    Busy {
        /// How long this process waited.
        seconds: u64,
    },
    /// A tool of the system failed.
    #[error("`{command}` failed ({outcome}): {output}")]
    Tool {
        /// The command line.
        command: String,
        /// Exit status, or why it did not start.
        outcome: String,
        /// Its standard error.
        output: String,
    },
    /// An operation on a file or a process failed.
    #[error("{doing}: {source}")]
    Io {
        /// The operation.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A host did not become healthy.
    #[error("{host} is not healthy: {fault}\nend of {}:\n{log_tail}", log.display())]
    Unhealthy {
        /// Which host.
        host: String,
        /// The missing condition.
        fault: String,
        /// The file of the process's output.
        log: PathBuf,
        /// Its last lines.
        log_tail: String,
    },
    /// The process does not answer its counters.
    #[error("{host} does not answer its counters: {fault}")]
    Admin {
        /// Which host.
        host: String,
        /// The fault of the answer.
        fault: String,
    },
    /// A part of the lab could not be removed.
    #[error("lab {name} is not removed in full: {what}")]
    Leftover {
        /// The lab's name.
        name: String,
        /// The remains.
        what: String,
    },
}

impl LabError {
    /// For `map_err`: adds the failed operation to an I/O error.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
