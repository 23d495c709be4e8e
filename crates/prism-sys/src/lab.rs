//! System calls of labs and tests that need unsafe code; `tools/netns` wraps them.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves the calling thread, but no other one, into a new network namespace.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_ADMIN`.
pub fn leave_network_namespace() -> io::Result<()> {
    // SAFETY: the thread shares its descriptors and memory with the process as before.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Makes `queue`, an open `/dev/net/tun`, the queue of a new device of IP packets without a
/// header before them. In `name` the kernel replaces `%d` by a free number.
///
/// # Errors
/// The kernel's error, as without `CAP_NET_ADMIN`.
pub fn make_tun(queue: impl AsFd, name: &mut [u8; libc::IFNAMSIZ]) -> io::Result<()> {
    let ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    let mut request = libc::ifreq {
        ifr_name: name.map(|byte| byte as libc::c_char),
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags },
    };
    let queue = queue.as_fd().as_raw_fd();
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, and keeps no pointer.
    let result = unsafe { libc::ioctl(queue, libc::TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    *name = request.ifr_name.map(|byte| byte as u8);
    Ok(())
}
