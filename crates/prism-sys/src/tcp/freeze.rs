//! Silencing one connection's socket in place, without the help of a switch.
//!
//! A frozen socket takes no segment in, and none of its own leaves the host, so
//! that it can be saved and, if the hand-off fails, thawed as it was. The order
//! is what makes it free of races:
//!
//! 1. *The mark*: an egress program on this process's control group (version 2) drops
//!    the packets of sockets that have the process's mark. It looks at the socket and not at the
//!    packet, whose own mark a firewall may change. The kernel sets a mark and sends
//!    packets under the same lock of the socket, so from here on nothing that happens to
//!    the socket can be told to the client: not by an acknowledgement, not by a probe.
//! 2. *The filter*: a socket filter that drops everything, before TCP sees it. A
//!    segment that has just passed it on another core is still taken. If that is
//!    before the state is read, it is a part of it; if it is after, the client
//!    never hears of it and sends it again, to the target.
//! 3. *Repair mode*, and the state is read ([`super::Paused`]).
//!
//! The filter is an eBPF program that is loaded once: attaching a classic one
//! would translate it each time. Both programs go with the process.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use super::bpf;
use super::program::{self, ProgramError, failed};
use crate::sockopt::set;

/// Upper half of the mark (`SO_MARK`) of frozen sockets. The lower one is the process's
/// own: the fence of another process that shares a control group would hide that this
/// process has none.
const MARKS: u32 = 0x5072_0000;

/// What is needed to freeze sockets, made ready once per process.
#[derive(Debug)]
pub struct Freezer {
    mark: u32,
    deaf: OwnedFd,
    /// One for each control group that this process has been in: sockets stay in the
    /// group that they were made in.
    fences: Mutex<Vec<OwnedFd>>,
}

impl Freezer {
    /// Loads the filter, attaches the fence to the control group of this process, and
    /// tries it.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn new() -> Result<Self, ProgramError> {
        let deaf =
            bpf::load(bpf::SOCKET_FILTER, &DEAF).map_err(failed("loading a socket filter"))?;
        let mark = MARKS | std::process::id() & 0xffff;
        let freezer = Self {
            mark,
            deaf,
            fences: Mutex::new(vec![fence(mark)?]),
        };
        freezer.check()?;
        Ok(freezer)
    }

    /// Whether packets of sockets that this process makes now are stopped, found out by
    /// one over loopback.
    ///
    /// # Errors
    /// [`ProgramError::Leaks`], or what a socket to try it on lacks.
    pub fn check(&self) -> Result<(), ProgramError> {
        let marked = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &self.mark)?;
            Ok((socket.local_addr()?, socket))
        };
        let (address, socket) = marked().map_err(failed("making a marked socket"))?;
        match socket.send_to(&[0], address) {
            // As the program says.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
            Err(source) => Err(ProgramError::Kernel {
                call: "sending on a marked socket",
                source,
            }),
            Ok(_) => Err(ProgramError::Leaks),
        }
    }

    /// Attaches the fence once more: to the control group that the process is in now, or
    /// where somebody has detached it. Sockets of before stay fenced as they are.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn renew(&self) -> Result<(), ProgramError> {
        let fence = fence(self.mark)?;
        self.check()?;
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.push(fence);
        Ok(())
    }

    /// The mark of this process's frozen sockets.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// Steps 1 and 2 above.
    pub(crate) fn silence(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        set(fd, libc::SOL_SOCKET, libc::SO_MARK, &self.mark)?;
        let program = self.deaf.as_raw_fd();
        set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program).inspect_err(|_| {
            let _ = set(fd, libc::SOL_SOCKET, libc::SO_MARK, &0_u32);
        })
    }
}

/// The way back: the socket hears, and may speak. An application's own mark, if
/// it had one, is not restored.
pub(crate) fn give_voice(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)?;
    set(fd, libc::SOL_SOCKET, libc::SO_MARK, &0_u32)
}

/// `return 0`: keep no byte of any packet.
const DEAF: [bpf::Instruction; 2] = [
    bpf::instruction(0xb7, (0, 0), 0, 0), // r0 = 0
    bpf::instruction(0x95, (0, 0), 0, 0), // exit
];

/// Offset of the socket in `struct __sk_buff`, and of the mark in `struct bpf_sock`
/// (`include/uapi/linux/bpf.h`).
const SOCKET: i16 = 168;
const SOCKET_MARK: i16 = 16;
const BPF_SK_FULLSOCK: i32 = 95;

/// Drops what a socket with the mark sends. Registers as in `initial_window`.
const fn drop_marked(mark: u32) -> [bpf::Instruction; 9] {
    [
        bpf::instruction(0x79, (1, 1), SOCKET, 0), // r1 = the packet's socket
        bpf::instruction(0x15, (1, 0), 5, 0),      // none: pass
        bpf::instruction(0x85, (0, 0), 0, BPF_SK_FULLSOCK),
        bpf::instruction(0x15, (0, 0), 3, 0), // not a whole one: pass
        bpf::instruction(0x61, (1, 0), SOCKET_MARK, 0), // r1 = its mark
        bpf::instruction(0xb7, (0, 0), 0, 0), // r0 = 0: drop
        bpf::instruction(0x15, (1, 0), 1, mark as i32), // ours: to the end
        bpf::instruction(0xb7, (0, 0), 0, 1), // r0 = 1: pass
        bpf::instruction(0x95, (0, 0), 0, 0), // exit
    ]
}

/// The fence, attached to the control group of this process until it is dropped.
fn fence(mark: u32) -> Result<OwnedFd, ProgramError> {
    program::attach(bpf::CGROUP_SKB, bpf::CGROUP_INET_EGRESS, &drop_marked(mark))
}
