//! Errors, one enum per operation.

use std::io;
use std::path::PathBuf;

/// A call into the kernel failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct KernelError {
    /// The operation.
    pub what: &'static str,
    /// The kernel's error.
    pub source: libbpf_rs::Error,
}

pub(crate) fn kernel(what: &'static str) -> impl Fn(libbpf_rs::Error) -> KernelError {
    move |source| KernelError { what, source }
}

/// A switch could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The configuration is wrong.
    #[error("switch configuration: {0}")]
    Config(String),
    /// The BPF file system cannot be used. The host's setup is at fault.
    #[error("cannot use {path}: {source}")]
    BpfFs {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Pinned maps have another layout. Unload, then load; flows are lost.
    #[error("map {map} is pinned by an incompatible version; run with --unload first")]
    Incompatible {
        /// The map.
        map: String,
    },
    /// The kernel refused a program or map: it is too old, or this process lacks privilege.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An interface could not be attached to.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Programs could not be attached to an interface.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no such interface. The configuration is at fault.
    #[error("no interface {name}: {source}")]
    NoInterface {
        /// Its name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot {what} on {name}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The interface.
        name: String,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
}

/// Aging failed. The kernel is at fault.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A call into the kernel failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Walking a map failed.
    #[error("cannot walk the flow table: {0}")]
    Walk(#[source] io::Error),
}

/// A switch could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum UnloadError {
    /// A pin could not be removed.
    #[error("cannot remove {path}: {source}")]
    Pin {
        /// The pin.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// An interface could not be detached from.
    #[error("cannot detach from {name}: {source}")]
    Detach {
        /// The interface.
        name: String,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// The interfaces of this host could not be listed.
    #[error("cannot list interfaces: {0}")]
    Interfaces(#[source] io::Error),
}

/// A switch could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No switch is pinned under that name, or this user cannot read it.
    #[error("no switch at {path}: {source}")]
    NoSwitch {
        /// Its path.
        path: PathBuf,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// A call into the kernel failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Reading the list of flows failed.
    #[error("cannot read the list of flows: {0}")]
    Read(#[source] io::Error),
    /// The pinned switch is of another version than this program.
    #[error("the switch is of another version than this program")]
    Version,
}
