//! Silencing one connection's socket in place, without the help of a switch.
//!
//! A frozen socket takes no segment in, and none of its own leaves the host, so
//! that it can be saved and, if the hand-off fails, thawed as it was. The order
//! is what makes it free of races:
//!
//! 1. *The mark*: packets with [`MARK`] are dropped by a routing rule of the
//!    namespace. The kernel forgets the socket's route as it sets the mark
//!    (`sock_set_mark`), so from here on nothing that happens to the socket can
//!    be told to the client: not by an acknowledgement, not by a probe.
//! 2. *The filter*: a socket filter that drops everything, before TCP sees it. A
//!    segment that has just passed it on another core is still taken. If that is
//!    before the state is read, it is a part of it; if it is after, the client
//!    never hears of it and sends it again, to the target.
//! 3. *Repair mode*, and the state is read ([`super::Paused`]).
//!
//! The filter is an eBPF program that is loaded once: attaching a classic one
//! would translate it each time.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::bpf;
use crate::fault::{self, Fault};
use crate::sockopt::set;

/// The mark (`SO_MARK`) of frozen sockets. A host on which something else marks
/// packets with this very value must use another way to hand off.
pub const MARK: u32 = 0x5072_6d46;
/// Place of the rule among the host's routing rules: before all but `local`.
const RULE_PRIORITY: u32 = 1;

/// What is needed to freeze sockets, made ready once per process.
#[derive(Debug)]
pub struct Freezer {
    deaf: OwnedFd,
}

/// Why sockets cannot be frozen here.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// CAP_NET_ADMIN or CAP_BPF is missing
    #[error("{call}: CAP_NET_ADMIN or CAP_BPF is missing")]
    NotPermitted {
        /// What was tried.
        call: &'static str,
    },
    /// {call} failed
    #[error("{call} failed: {source}")]
    Kernel {
        /// What was tried.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl FreezeError {
    /// Who has to act.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotPermitted { .. } => Fault::Configuration,
            Self::Kernel { source, .. } => fault::of_errno(source),
        }
    }
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> FreezeError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => FreezeError::NotPermitted { call },
        _ => FreezeError::Kernel { call, source },
    }
}

impl Freezer {
    /// Loads the filter, and sees to it that the network namespace of the
    /// calling thread drops marked packets. The rule stays when the process
    /// ends: others may rely on it, and without marked packets it does nothing.
    ///
    /// # Errors
    /// [`FreezeError`].
    pub fn new() -> Result<Self, FreezeError> {
        let deaf =
            bpf::load(bpf::SOCKET_FILTER, &DEAF).map_err(failed("loading a socket filter"))?;
        drop_marked(libc::AF_INET).map_err(failed("adding a routing rule"))?;
        match drop_marked(libc::AF_INET6) {
            // A kernel without IPv6 sends no packet of it.
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
            done => done.map_err(failed("adding a routing rule for IPv6"))?,
        }
        Ok(Self { deaf })
    }

    /// Steps 1 and 2 above.
    pub(crate) fn silence(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        set(fd, libc::SOL_SOCKET, libc::SO_MARK, &MARK)?;
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

/// Adds "packets with the mark: drop" to the rules of one family, if it is not
/// there (`rtnetlink(7)`, `include/uapi/linux/fib_rules.h`).
fn drop_marked(family: libc::c_int) -> io::Result<()> {
    const ACTION_BLACKHOLE: u8 = 6;
    const PRIORITY: u16 = 6;
    const FWMARK: u16 = 10;
    const FWMASK: u16 = 16;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    // `struct fib_rule_hdr`: everything that is not named matches anything.
    let mut body = vec![family as u8, 0, 0, 0, 0, 0, 0, ACTION_BLACKHOLE, 0, 0, 0, 0];
    for (kind, value) in [
        (PRIORITY, RULE_PRIORITY),
        (FWMARK, MARK),
        (FWMASK, u32::MAX),
    ] {
        body.extend(8_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value.to_ne_bytes());
    }
    let mut request = Vec::with_capacity(16 + body.len());
    request.extend(((16 + body.len()) as u32).to_ne_bytes());
    request.extend(libc::RTM_NEWRULE.to_ne_bytes());
    request.extend((flags as u16).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    let (netlink, route) = (Domain::from(libc::AF_NETLINK), libc::NETLINK_ROUTE);
    let socket = Socket::new(netlink, Type::RAW.cloexec(), Some(Protocol::from(route)))?;
    socket.send(&request)?;
    let mut answer = [0; 1024];
    let length = (&socket).read(&mut answer)?;
    // `struct nlmsghdr` (16 bytes), then the negated error, 0 where it is done.
    let code = answer.get(..length).and_then(|a| a.get(16..20));
    let code = code.and_then(|c| Some(i32::from_ne_bytes(c.try_into().ok()?)));
    match code {
        Some(0) => Ok(()),
        Some(code) if -code == libc::EEXIST => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
