//! What can go wrong, one enum per operation.

use std::io;
use std::path::PathBuf;

/// Why a switch could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The configuration makes no sense. The configuration is at fault.
    #[error("switch configuration: {0}")]
    Config(String),
    /// The BPF file system cannot be used. The host's set-up is at fault.
    #[error("cannot use {path}: {source}")]
    BpfFs {
        /// What was touched.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Pinned maps are of another layout. Unload, then load: flows are lost.
    #[error("map {map} is pinned by an incompatible version; run with --unload first")]
    Incompatible {
        /// The map.
        map: String,
    },
    /// The kernel refused a program or map: too old, or no privilege.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// An interface could not be attached to.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Why programs could not be attached to an interface.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no such interface. The configuration is at fault.
    #[error("no interface {name}: {source}")]
    NoInterface {
        /// Its name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot {what} on {name}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The interface.
        name: String,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
}

/// Why aging failed. The kernel is at fault.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A call into the kernel failed.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// Walking a map failed.
    #[error("cannot walk the flow table: {0}")]
    Walk(#[source] io::Error),
}

/// Why a switch could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum UnloadError {
    /// A pin could not be removed.
    #[error("cannot remove {path}: {source}")]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An interface could not be detached from.
    #[error("cannot detach from {name}: {source}")]
    Detach {
        /// The interface.
        name: String,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// The interfaces of this host could not be listed.
    #[error("cannot list interfaces: {0}")]
    Interfaces(#[source] io::Error),
}

/// Why a switch could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No switch is pinned under that name, or not for this user.
    #[error("no switch at {path}: {source}")]
    NoSwitch {
        /// Where it was looked for.
        path: PathBuf,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// A call into the kernel failed.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// Reading the list of flows failed.
    #[error("cannot read the list of flows: {0}")]
    Read(#[source] io::Error),
    /// What is pinned is of another version than this program.
    #[error("the switch is of another version than this program")]
    Version,
}
