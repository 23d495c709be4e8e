//! Programs on the control group of this process.

use std::os::fd::{AsFd, OwnedFd};

use super::{bpf, group};
use crate::CallError;
use crate::error::failed;

/// The reason why a program cannot be attached, or does not work.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum ProgramError {
    #[error("this process is in no control group of version 2 that is mounted")]
    NoGroup,
    #[error("the control group's egress program does not stop the packets of frozen sockets")]
    Leaks,
    #[error(transparent)]
    Kernel(#[from] CallError),
}

/// Loads a program and attaches it to the control group of this process, until the
/// descriptor is closed.
pub(super) fn attach(
    kind: u32,
    attach_type: u32,
    program: &[bpf::Instruction],
) -> Result<OwnedFd, ProgramError> {
    let own = group::open().map_err(failed("opening the control group"))?;
    let own = own.ok_or(ProgramError::NoGroup)?;
    let program = bpf::load(kind, program).map_err(failed("loading a program"))?;
    let attached = bpf::attach(program.as_fd(), own.as_fd(), attach_type);
    Ok(attached.map_err(failed("attaching a program to the control group"))?)
}
