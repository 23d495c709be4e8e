//! Silencing one connection's socket in place, without the help of a switch.
//!
//! A frozen socket takes no segment in, and none of its own leaves the host. It can therefore be
//! saved and, if the hand-off fails, thawed as it was. The order of the steps makes it free of
//! races:
//!
//! 1. *The mark*: an egress program on this process's control group (version 2) drops the
//!    packets of sockets with the process's mark. It looks at the socket, because a firewall
//!    may change the mark of a packet. The kernel sets a mark and sends packets under the same
//!    lock of the socket. From here on no packet, not even an acknowledgement or a probe, tells
//!    the client of anything that happens to the socket.
//! 2. *The filter*: a socket filter drops every segment before TCP sees it. A segment that has
//!    just passed it on another core is still taken. Before the state is read, it becomes part
//!    of the state. Afterwards the client never hears of it, and sends it again to the target.
//! 3. *Repair mode*, in which the state is read ([`super::Paused`]).
//!
//! The filter is an eBPF program that is loaded once, because a classic one would be translated
//! each time. Both programs end with the process.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;

use super::bpf;
use super::program::{self, ProgramError};
use crate::error::failed;
use crate::sockopt::set;

/// The upper half of the mark (`SO_MARK`) of frozen sockets. The lower half is the process's own.
/// Otherwise the fence of another process in the same control group would hide that this process
/// has none.
pub const FROZEN_MARKS: u32 = 0x5072_0000;

/// The programs that freeze sockets, loaded once for each process.
#[derive(Debug)]
pub struct Freezer {
    mark: u32,
    deaf: OwnedFd,
    /// One for each control group that this process has been in: sockets stay in the group that
    /// they were made in.
    fences: Mutex<Vec<OwnedFd>>,
}

impl Freezer {
    /// Loads the filter, attaches the fence to the control group of this process, and tests it.
    pub fn new() -> Result<Self, ProgramError> {
        let deaf =
            bpf::load(bpf::SOCKET_FILTER, &DEAF).map_err(failed("loading a socket filter"))?;
        let mark = FROZEN_MARKS | std::process::id() & 0xffff;
        let freezer = Self {
            mark,
            deaf,
            fences: Mutex::new(vec![fence(mark)?]),
        };
        freezer.check()?;
        Ok(freezer)
    }

    /// Tests, by a packet over loopback, that packets of marked sockets do not leave.
    ///
    /// # Errors
    /// [`ProgramError::Leaks`], or the error of the test's socket.
    pub fn check(&self) -> Result<(), ProgramError> {
        let marked = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &self.mark)?;
            Ok((socket.local_addr()?, socket))
        };
        let (address, socket) = marked().map_err(failed("making a marked socket"))?;
        match socket.send_to(&[0], address) {
            // The program has dropped it.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
            Err(source) => Err(failed("sending on a marked socket")(source).into()),
            Ok(_) => Err(ProgramError::Leaks),
        }
    }

    /// Attaches the fence again: to the control group that the process is in now, or after another
    /// program has detached it. Earlier sockets stay fenced.
    pub fn renew(&self) -> Result<(), ProgramError> {
        let fence = fence(self.mark)?;
        self.check()?;
        let mut fences = self.fences.lock();
        fences.push(fence);
        Ok(())
    }

    /// Step 1 above.
    pub(crate) fn mute(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        set(fd, libc::SOL_SOCKET, libc::SO_MARK, &self.mark)
    }

    /// Steps 1 and 2 above.
    pub(crate) fn silence(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.mute(fd)?;
        let program = self.deaf.as_raw_fd();
        set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program).inspect_err(|_| {
            let _ = set(fd, libc::SOL_SOCKET, libc::SO_MARK, &0_u32);
        })
    }
}

/// Undoes [`Freezer::silence`] and [`Freezer::mute`]. A mark that the application had set is lost.
pub(crate) fn give_voice(fd: BorrowedFd<'_>) -> io::Result<()> {
    match set(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32) {
        // It was mute, and not deaf.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        detached => detached?,
    }
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
