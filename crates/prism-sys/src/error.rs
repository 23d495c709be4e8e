//! The error that operations have in common.

use std::io;

/// A call into the kernel failed, for a reason that the operation gives no name.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed: {source}{}", remedy(self))]
pub struct CallError {
    /// The call, or the option.
    pub call: &'static str,
    /// The kernel's error.
    pub source: io::Error,
}

impl CallError {
    /// Whether the kernel refused the call for want of a capability.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

fn remedy(error: &CallError) -> &'static str {
    if error.is_refused() {
        ": CAP_NET_ADMIN or CAP_BPF is missing"
    } else {
        ""
    }
}

/// Names the call that failed.
pub(crate) fn failed(call: &'static str) -> impl FnOnce(io::Error) -> CallError {
    move |source| CallError { call, source }
}
