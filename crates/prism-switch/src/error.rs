//! Errors of the operations. An operation that only the kernel refuses has [`KernelError`].

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

/// A call into the kernel failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct KernelError {
    /// The operation.
    pub what: Cow<'static, str>,
    /// The kernel's error.
    pub source: libbpf_rs::Error,
}

/// Names the operation that failed.
pub(crate) fn kernel<E: Into<libbpf_rs::Error>>(
    what: impl Into<Cow<'static, str>>,
) -> impl FnOnce(E) -> KernelError {
    move |source| KernelError {
        what: what.into(),
        source: source.into(),
    }
}

/// A switch could not be loaded, or attached to an interface.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The configuration is wrong.
    #[error("switch configuration: {0}")]
    Config(String),
    /// There is no such interface. The configuration is at fault.
    #[error("no interface {name}: {source}")]
    NoInterface {
        /// Its name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Pinned maps have another layout. Unload, then load; flows are lost.
    #[error("map {0} is pinned by an incompatible version; run with --unload first")]
    Incompatible(String),
    /// The pinned switch answers nodes of another release. It goes on as it is.
    #[error(
        "the switch that runs speaks version {running} of the control protocol, and this program \
         {own}: nodes of the other version would be left without a switch. It goes on as it is. \
         Stop all nodes, run with --unload, then start the new release everywhere"
    )]
    ControlVersion {
        /// The version of the switch that runs.
        running: u8,
        /// The version of this program.
        own: u8,
    },
    /// The kernel refused a program, map or pin: it is too old, or this process lacks privilege.
    #[error(transparent)]
    Kernel(#[from] KernelError),
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
    /// The pinned switch is of another version than this program.
    #[error("the switch is of another version than this program")]
    Version,
}
