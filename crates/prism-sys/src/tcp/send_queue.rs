//! Filling the send queue of a restored socket with the unacknowledged bytes.

use std::io;
use std::mem::size_of;
use std::os::fd::BorrowedFd;

use prism_proto::MAX_QUEUE_BYTES;
use rustix::net::SendFlags;

use super::options::{self, Queue};
use crate::CallError;
use crate::error::failed;
use crate::sockopt;

/// The smallest piece tried when the kernel has no memory for a larger one.
const MIN_CHUNK_BYTES: usize = 2048;

/// Kernel memory per byte of payload that the send buffer limit counts, at
/// worst: segments of 536 bytes in `sk_buff`s of 1,280.
const SEND_OVERHEAD: usize = 3;

/// Returns the sizes of both buffers to the kernel's autotuning, which a size that was set by hand
/// ends.
pub(super) fn unlock_buffers(fd: BorrowedFd<'_>) -> Result<(), CallError> {
    sockopt::set(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &0_i32).map_err(failed("SO_BUF_LOCK"))
}

/// Puts back the bytes that were sent and not acknowledged. They count as sent, and the
/// retransmission timer repeats them.
pub(super) fn fill_send_queue(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), CallError> {
    options::select_queue(fd, Queue::Send).map_err(failed("TCP_REPAIR_QUEUE"))?;
    queue_all(fd, bytes)
}

/// Puts all of `bytes`, which have been in a send queue before, into that of `fd`.
pub(super) fn queue_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), CallError> {
    let rest = queue_bytes(fd, bytes)?;
    if rest.is_empty() {
        return Ok(());
    }
    // The buffer of a fresh socket is small. Enlarge it for as long as it
    // takes; the application then waits until the queue is below its old size.
    let before: i32 =
        sockopt::get(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).map_err(failed("SO_SNDBUF"))?;
    set_send_buffer(fd, (bytes.len() * SEND_OVERHEAD) as i32 + before)?;
    let rest = queue_bytes(fd, rest)?;
    set_send_buffer(fd, before / 2)?;
    unlock_buffers(fd)?;
    if rest.is_empty() {
        Ok(())
    } else {
        let full = io::Error::from_raw_os_error(libc::ENOBUFS);
        Err(failed("send")(full))
    }
}

/// The kernel doubles `bytes`.
fn set_send_buffer(fd: BorrowedFd<'_>, bytes: i32) -> Result<(), CallError> {
    sockopt::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
        .map_err(failed("SO_SNDBUFFORCE"))
}

/// Queues as many bytes as fit, and returns the rest. If the kernel has no memory for one large
/// piece, it tries smaller ones.
fn queue_bytes<'a>(fd: BorrowedFd<'_>, mut rest: &'a [u8]) -> Result<&'a [u8], CallError> {
    let mut chunk = rest.len();
    while !rest.is_empty() {
        let piece = rest.get(..chunk).unwrap_or(rest);
        match send(fd, piece) {
            Ok(0) => break,
            Ok(taken) => rest = rest.get(taken..).unwrap_or_default(),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => break,
                Some(libc::EINTR) => {}
                Some(libc::ENOMEM) if chunk > MIN_CHUNK_BYTES => chunk /= 2,
                _ => return Err(failed("send")(error)),
            },
        }
    }
    Ok(rest)
}

fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(rustix::net::send(fd, bytes, flags)?)
}

/// The largest requested buffer fits the option's type.
const _: () =
    assert!(MAX_QUEUE_BYTES * SEND_OVERHEAD < (i32::MAX / 4) as usize && size_of::<usize>() >= 8);
