//! A congestion window for a connection that is not new.
//!
//! `connect` in repair mode gives a socket the window of a new connection, 10 segments, and no
//! option of repair mode changes that. A `SOCK_OPS` program may set it (`TCP_BPF_IW`) just after
//! the kernel has done so (`tcp_init_transfer`), and before the congestion control reads it.
//!
//! The program is attached to this process's control group (version 2), and sees every connection
//! of it. It acts on a socket whose priority (`SO_PRIORITY`) asks for it, and sets the priority to
//! 0 again. No packet is sent in between. The program ends with the process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::program::{self, ProgramError};
use super::{MAX_WINDOW_SEGMENTS, bpf};
use crate::sockopt::set;

/// The upper half of the priority of a socket whose lower half is a window, in segments, times 16.
/// The lowest bits of a priority choose a queue's band, and 0 is the ordinary one.
const TAG: u16 = 0x5077;
const WINDOW_SHIFT: u32 = 4;
const _: () = assert!(MAX_WINDOW_SEGMENTS <= u16::MAX >> WINDOW_SHIFT);

/// The program that sets windows.
#[derive(Debug)]
pub struct InitialWindow {
    _attached: OwnedFd,
}

impl InitialWindow {
    /// Loads the program, and attaches it to the control group of this process.
    pub fn new() -> Result<Self, ProgramError> {
        let attached = program::attach(bpf::SOCK_OPS, bpf::CGROUP_SOCK_OPS, &SET_WINDOW)?;
        Ok(Self {
            _attached: attached,
        })
    }

    /// The next `connect` gives the socket this window, [`MAX_WINDOW_SEGMENTS`] at most.
    pub(super) fn prepare(&self, fd: BorrowedFd<'_>, segments: u16) -> io::Result<()> {
        let window = segments.min(MAX_WINDOW_SEGMENTS) << WINDOW_SHIFT;
        let priority = i32::from(TAG) << 16 | i32::from(window);
        set(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &priority)
    }
}

/// Offset of the socket in `struct bpf_sock_ops`, and of a socket's priority in `struct
/// bpf_sock` (`include/uapi/linux/bpf.h`).
const SOCKET: i16 = 184;
const PRIORITY: i16 = 20;
const ACTIVE_ESTABLISHED: i32 = 4;
const TCP_BPF_IW: i32 = 1001;
const BPF_SETSOCKOPT: i32 = 49;

/// Registers 1 to 5 are arguments, 6 is kept over calls, 10 is the end of the stack.
const SET_WINDOW: [bpf::Instruction; 29] = [
    bpf::instruction(0xbf, (6, 1), 0, 0), // r6 = r1, the context
    bpf::instruction(0x61, (2, 6), 0, 0), // r2 = what happens
    bpf::instruction(0x55, (2, 0), 24, ACTIVE_ESTABLISHED), // something else: to the end
    bpf::instruction(0x79, (1, 6), SOCKET, 0), // r1 = the socket
    bpf::instruction(0x15, (1, 0), 22, 0), // none: to the end
    bpf::instruction(0x61, (2, 1), PRIORITY, 0), // r2 = its priority
    bpf::instruction(0xbf, (3, 2), 0, 0), // r3 = r2
    bpf::instruction(0x77, (3, 0), 0, 16), // r3 >>= 16
    bpf::instruction(0x55, (3, 0), 18, TAG as i32), // not ours: to the end
    bpf::instruction(0x57, (2, 0), 0, 0xffff), // r2 &= 0xffff
    bpf::instruction(0x77, (2, 0), 0, WINDOW_SHIFT as i32), // r2 >>= the shift
    bpf::instruction(0x63, (10, 2), -4, 0), // the last 4 bytes of the stack = r2
    bpf::instruction(0xbf, (1, 6), 0, 0), // r1 = the context
    bpf::instruction(0xb7, (2, 0), 0, libc::IPPROTO_TCP), // r2 = the level
    bpf::instruction(0xb7, (3, 0), 0, TCP_BPF_IW), // r3 = the option
    bpf::instruction(0xbf, (4, 10), 0, 0), // r4 = where its value is
    bpf::instruction(0x07, (4, 0), 0, -4),
    bpf::instruction(0xb7, (5, 0), 0, 4), // r5 = its length
    bpf::instruction(0x85, (0, 0), 0, BPF_SETSOCKOPT),
    bpf::instruction(0x62, (10, 0), -4, 0), // the value = 0, for the priority
    bpf::instruction(0xbf, (1, 6), 0, 0),
    bpf::instruction(0xb7, (2, 0), 0, libc::SOL_SOCKET),
    bpf::instruction(0xb7, (3, 0), 0, libc::SO_PRIORITY),
    bpf::instruction(0xbf, (4, 10), 0, 0),
    bpf::instruction(0x07, (4, 0), 0, -4),
    bpf::instruction(0xb7, (5, 0), 0, 4),
    bpf::instruction(0x85, (0, 0), 0, BPF_SETSOCKOPT),
    // 0 would be an answer to some questions of the kernel.
    bpf::instruction(0xb7, (0, 0), 0, 1), // the end: r0 = 1
    bpf::instruction(0x95, (0, 0), 0, 0), // exit
];
