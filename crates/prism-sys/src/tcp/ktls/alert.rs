//! Alerts, which are records that are not application data.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use socket2::{MsgHdr, SockRef};

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
/// `CMSG_SPACE(1)`.
const CONTROL_BYTES: usize = HEADER_BYTES + 8;

/// The content type of an alert (RFC 8446, section 5.1).
const ALERT: u8 = 21;

/// Sends `bytes` as an alert, behind all that was written before. It needs [`super::set_tx`], never
/// waits, and never raises SIGPIPE. An alert fits into one record, so it is taken whole or not at
/// all.
///
/// # Errors
/// `WouldBlock` if the socket is full; `BrokenPipe` or `ConnectionReset` if the peer is gone;
/// `InvalidInput` without [`super::set_tx`].
pub fn send_alert(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // A socket without TLS would ignore the type, and send the bytes bare.
    super::tx_sequence(fd).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let buffers = [IoSlice::new(bytes)];
    let control = control();
    let message = MsgHdr::new().with_buffers(&buffers).with_control(&control);
    SockRef::from(&fd).sendmsg(&message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
}

/// One control message: `struct cmsghdr` and a byte of data, filled up to a multiple of 8.
fn control() -> [u8; CONTROL_BYTES] {
    let [a, b, c, d, e, f, g, h] = (HEADER_BYTES + 1).to_ne_bytes();
    let [i, j, k, l] = libc::SOL_TLS.to_ne_bytes();
    let [m, n, o, p] = libc::TLS_SET_RECORD_TYPE.to_ne_bytes();
    [
        a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ALERT, 0, 0, 0, 0, 0, 0, 0,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_message_is_as_the_kernel_reads_it() {
        let control = control();
        // SAFETY: arithmetic only.
        let (space, len) = unsafe { (libc::CMSG_SPACE(1), libc::CMSG_LEN(1)) };
        assert_eq!(
            (CONTROL_BYTES, HEADER_BYTES + 1),
            (space as usize, len as usize)
        );
        assert_eq!(control.get(HEADER_BYTES), Some(&21));
        // SAFETY: `control` has more bytes than the header, whose fields are integers.
        let header: libc::cmsghdr = unsafe { std::ptr::read_unaligned(control.as_ptr().cast()) };
        let fields = (header.cmsg_len as u64, header.cmsg_level, header.cmsg_type);
        assert_eq!(fields, (17, libc::SOL_TLS, libc::TLS_SET_RECORD_TYPE));
    }
}
