//! Records that are not application data: alerts and handshake messages.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sockopt::check_length;

/// The content type of a record (RFC 8446, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// An alert, close_notify among them.
    Alert = 21,
    /// A handshake message, such as KeyUpdate.
    Handshake = 22,
}

/// Room for one control message of one byte, aligned as its header.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// `CMSG_SPACE(1)`: a header of 16 bytes, and data to the next multiple of 8.
const CONTROL_BYTES: usize = 24;

impl Control {
    const fn new() -> Self {
        Self([0; CONTROL_BYTES])
    }

    /// A message with this control data, which must outlive it, as must `iov`.
    fn message(&mut self, iov: *mut libc::iovec) -> libc::msghdr {
        // SAFETY: all fields are integers and pointers, for which 0 is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iov;
        message.msg_iovlen = 1;
        message.msg_control = self.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        message
    }
}

/// Sends `bytes` as records of this type, behind all that was written before. It needs
/// [`super::set_tx`], never waits, and never raises SIGPIPE. Alerts and KeyUpdates fit into one
/// record, so they are taken whole or not at all.
///
/// After a KeyUpdate no byte may be sent with the old key, and these kernels take no other: the
/// connection has to leave its socket (see [`super`]).
///
/// # Errors
/// `WouldBlock` if the socket is full; `BrokenPipe` or `ConnectionReset` if the peer is gone;
/// `InvalidInput` without [`super::set_tx`].
pub fn send_record(fd: BorrowedFd<'_>, content: ContentType, bytes: &[u8]) -> io::Result<usize> {
    // A socket without TLS would ignore the type, and send the bytes bare.
    super::tx_sequence(fd).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mut iov = IoSlice::new(bytes);
    let mut control = Control::new();
    let message = control.message((&raw mut iov).cast());
    // SAFETY: `message` points to a control buffer that holds one header with
    // one byte of data (`CONTROL_BYTES`), so the first header is in it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_TLS;
        (*header).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        *libc::CMSG_DATA(header) = content as u8;
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `IoSlice` is laid out as `iovec`; everything that `message` points
    // to lives until the call returns, and is only read.
    check_length(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_control_data_is_what_the_kernel_asks_for() {
        // SAFETY: arithmetic only.
        assert_eq!(CONTROL_BYTES, unsafe { libc::CMSG_SPACE(1) } as usize);
        assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());
    }
}
