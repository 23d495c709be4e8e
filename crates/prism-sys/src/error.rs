//! The error that operations have in common.

use std::io;

/// A call into the kernel failed, for a reason that the operation gives no name.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed: {source}")]
pub struct CallError {
    /// The call, or the option.
    pub call: &'static str,
    /// The kernel's error.
    pub source: io::Error,
}

impl CallError {
    pub(crate) fn of(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { call, source }
    }
}
