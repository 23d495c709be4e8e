//! TLS records by the kernel (`Documentation/networking/tls.rst`): from [`set_tx`] on, bytes that
//! are written to the socket, by `sendfile` too, leave as records.
//!
//! Keys and sequence numbers come from a session of the caller, who also decides when to use the
//! kernel. For a hand-off:
//!
//! - *Before* `set_tx`, all ciphertext (a `Live`'s output) must have been written: afterwards the
//!   kernel takes it for plaintext.
//! - The kernel keeps records that find no room in the TCP queue, and shows them nowhere. Saving
//!   the connection would lose them. TCP has all of them once [`queued_bytes`] has grown, since
//!   `set_tx`, by the plaintext and by what surrounds it in each record that [`tx_sequence`] has
//!   counted since.
//! - A record that `MSG_MORE` holds open is not counted, nor sent.
//! - These kernels take a key once. A session that has to change its sending key leaves by save and
//!   restore, on the same host if need be, which gives a socket without kTLS.

mod alert;
mod info;
mod offered;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use prism_proto::tls::KernelKeys;
use zeroize::Zeroizing;

use crate::CallError;
use crate::error::failed;
use crate::sockopt::{get, get_into, set_bytes};

pub use alert::send_alert;
use info::{LONG_BYTES, SEQUENCE_BYTES, SHORT_BYTES};
pub use offered::{Offered, ProbeError};

/// The reason why the kernel does not do TLS for a socket, or for a direction of it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum KtlsError {
    #[error("this kernel has no TLS (CONFIG_TLS, module \"tls\")")]
    NoTls,
    #[error("the kernel lacks this version or cipher")]
    NoCipher,
    #[error(transparent)]
    Kernel(#[from] CallError),
}

/// Lets the kernel's TLS code into an established connection. By itself this
/// changes nothing that is sent or received.
///
/// # Errors
/// [`KtlsError`]; the socket is as it was.
pub fn attach(fd: BorrowedFd<'_>) -> Result<(), KtlsError> {
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls").map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOPROTOOPT) => KtlsError::NoTls,
            _ => failed("TCP_ULP")(error).into(),
        }
    })
}

/// Has bytes that are written from now on leave as records, from this sequence number on.
///
/// # Errors
/// [`KtlsError`]; the socket goes on as before.
pub fn set_tx(fd: BorrowedFd<'_>, keys: &KernelKeys) -> Result<(), KtlsError> {
    set_bytes(fd, libc::SOL_TLS, libc::TLS_TX, &info::encode(keys)).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINVAL) => KtlsError::NoCipher,
            _ => failed("TLS_TX")(error).into(),
        }
    })
}

/// Sequence number of the next record to be sent: all before it are encrypted,
/// though perhaps not in TCP's hands yet (see the module).
pub fn tx_sequence(fd: BorrowedFd<'_>) -> Result<u64, KtlsError> {
    // The kernel wants the exact length; the header says which.
    let header: u32 = get(fd, libc::SOL_TLS, libc::TLS_TX).map_err(failed("TLS_TX"))?;
    let [_, _, low, high] = header.to_ne_bytes();
    let sequence = match u16::from_ne_bytes([low, high]) {
        libc::TLS_CIPHER_AES_GCM_128 => sequence_of::<SHORT_BYTES>(fd),
        _ => sequence_of::<LONG_BYTES>(fd),
    };
    Ok(sequence.map_err(failed("TLS_TX"))?)
}

/// Reads all parameters, with the key, which is wiped, and gives their end.
fn sequence_of<const N: usize>(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut raw = Zeroizing::new(MaybeUninit::<[u8; N]>::zeroed());
    get_into(fd, libc::SOL_TLS, libc::TLS_TX, &mut raw)?;
    // SAFETY: zeroed at first; bytes are valid whatever the kernel wrote.
    let bytes = unsafe { raw.assume_init_ref() };
    bytes
        .last_chunk::<SEQUENCE_BYTES>()
        .map(|sequence| u64::from_be_bytes(*sequence))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The number of bytes that TCP has taken from this socket so far, sent or not. Records that the
/// TLS code still keeps do not count, and bytes that a restore has put back may not: only
/// differences are meaningful.
///
/// It is the end of the send queue. The kernel's counters of bytes sent and retransmitted would not
/// do: bytes whose first transmission fails in the host are counted twice. It is read until no byte
/// was acknowledged meanwhile, which ends at the latest when the queue is empty.
///
/// # Errors
/// `ENOPROTOOPT` or `EOPNOTSUPP` for a socket that is not TCP.
pub fn queued_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut before = acked_bytes(fd)?;
    loop {
        let in_queue = super::info::send_queue_bytes(fd)?;
        let after = acked_bytes(fd)?;
        if after == before {
            return Ok(after.wrapping_add(in_queue as u64));
        }
        before = after;
    }
}

/// The number of bytes that the peer has acknowledged.
fn acked_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // `struct tcp_info` up to `tcpi_bytes_acked`, in words of 8 bytes.
    let info: [u64; 16] = get(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let [.., acked] = info;
    Ok(acked)
}
