//! Loading and attaching the few eBPF programs that sockets need, which are written by hand.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sockopt::check;

/// One instruction (`struct bpf_insn`): operation, registers (source above target),
/// offset, immediate.
pub(super) type Instruction = [u8; 8];

/// Makes one instruction; `registers` are the target and the source.
pub(super) const fn instruction(
    operation: u8,
    registers: (u8, u8),
    offset: i16,
    immediate: i32,
) -> Instruction {
    let registers = if cfg!(target_endian = "little") {
        registers.1 << 4 | registers.0
    } else {
        registers.0 << 4 | registers.1
    };
    let ([a, b], [c, d, e, f]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    [operation, registers, a, b, c, d, e, f]
}

/// `BPF_PROG_TYPE_SOCKET_FILTER`.
pub(super) const SOCKET_FILTER: u32 = 1;
/// `BPF_PROG_TYPE_CGROUP_SKB`.
pub(super) const CGROUP_SKB: u32 = 8;
/// `BPF_PROG_TYPE_SOCK_OPS`.
pub(super) const SOCK_OPS: u32 = 13;

/// `BPF_CGROUP_INET_EGRESS`, where a [`CGROUP_SKB`] program is attached.
pub(super) const CGROUP_INET_EGRESS: u32 = 1;
/// `BPF_CGROUP_SOCK_OPS`, where a [`SOCK_OPS`] program is.
pub(super) const CGROUP_SOCK_OPS: u32 = 3;

const LICENSE: &CStr = c"Apache-2.0";

/// The first members of `union bpf_attr` for `BPF_PROG_LOAD`
/// (`include/uapi/linux/bpf.h`). The kernel takes the others for 0.
#[repr(C)]
struct ProgramAttributes {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}
const _: () = assert!(size_of::<ProgramAttributes>() == 24);

pub(super) fn load(kind: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: libc::c_long = 5;
    let attributes = ProgramAttributes {
        kind,
        instruction_count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
    };
    // SAFETY: the attributes are initialised and without padding, and what they point
    // to outlives the call; the kernel keeps none of it.
    unsafe { call(BPF_PROG_LOAD, &attributes) }
}

/// The same for `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkAttributes {
    program: u32,
    target: u32,
    attach_type: u32,
}
const _: () = assert!(size_of::<LinkAttributes>() == 12);

/// Attaches a program to a control group (version 2), until the returned descriptor is closed.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    group: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    const BPF_LINK_CREATE: libc::c_long = 28;
    let attributes = LinkAttributes {
        program: program.as_raw_fd() as u32,
        target: group.as_raw_fd() as u32,
        attach_type,
    };
    // SAFETY: the attributes are initialised, without padding and without pointers.
    unsafe { call(BPF_LINK_CREATE, &attributes) }
}

/// `bpf(2)` for a command that makes a descriptor.
///
/// # Safety
/// `attributes` must be what the command reads: initialised to the last byte, and its
/// pointers must be good for the call.
unsafe fn call<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises; the length is that of the attributes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    let fd = libc::c_int::try_from(result).map_err(io::Error::other)?;
    check(fd)?;
    // SAFETY: the call has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
