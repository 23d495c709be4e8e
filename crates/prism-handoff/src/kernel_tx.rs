//! The kernel's part in sending of a TLS session (kTLS): giving it the key, and telling when it can
//! be taken back (docs/design/tls.md). The kernel keeps finished records outside of TCP's queue,
//! where saving the connection would lose them. This module therefore compares the bytes that TCP
//! has with those that it should have.

use std::io;
use std::os::fd::BorrowedFd;

use prism_proto::succession::KernelState;
use prism_sys::tcp::ktls::{self, Offered};
use prism_tls::{MAX_PLAINTEXT_BYTES, Session};

/// The kernel does not get a key that is good for fewer records: leaving it costs a hand-off. 1 GiB
/// in full records.
const WORTHWHILE_RECORDS: u64 = 1 << 16;
/// The kernel's key does not last for a message if it is good for fewer records. They are 32 MiB in
/// full records: enough for any head or listing, also in short records.
pub(crate) const RECORDS_FOR_MESSAGE: u64 = 2048;
/// The same within a body, whose head may be in an unfinished record. A message that may begin may
/// therefore begin its body.
pub(crate) const RECORDS_FOR_PIECE: u64 = 1024;

/// A socket whose output the kernel seals.
#[derive(Debug)]
pub(crate) struct KernelTx(pub(crate) KernelState);

/// Whether the kernel can seal for this session, and for long enough.
pub(crate) fn is_worthwhile(session: &Session, offered: &Offered) -> bool {
    offered.has(session.version(), session.suite())
        && !session.write_closed()
        && session.write_records_left() >= WORTHWHILE_RECORDS
}

impl KernelTx {
    /// Gives the kernel the write key. All records made before must have been written to the
    /// socket. A failure leaves session and connection unchanged: user space makes the records.
    pub(crate) fn start(fd: BorrowedFd<'_>, session: &mut Session) -> io::Result<Self> {
        ktls::attach(fd).map_err(io::Error::other)?;
        let first_queued = ktls::queued_bytes(fd)?;
        let all_records = session.write_records_left();
        let keys = session.write_to_kernel().map_err(io::Error::other)?;
        let first_sequence = keys.sequence;
        let overhead_bytes = session.surroundings().total();
        if let Err(error) = ktls::set_tx(fd, &keys) {
            (session.write_from_kernel(first_sequence)).map_err(io::Error::other)?;
            return Err(io::Error::other(error));
        }
        Ok(Self(KernelState {
            overhead_bytes: overhead_bytes as u64,
            first_sequence,
            first_queued,
            written: 0,
            all_records,
            records_left: all_records,
        }))
    }

    /// Notes that the kernel has taken this many bytes of plaintext in one call.
    pub(crate) fn took(&mut self, bytes: usize) {
        self.0.written += bytes as u64;
        // An upper bound: each call may begin and end a record early.
        let records = bytes / MAX_PLAINTEXT_BYTES + 2;
        self.0.records_left = self.0.records_left.saturating_sub(records as u64);
    }

    /// Whether the key is good for at least this many records more.
    pub(crate) fn lasts(&mut self, fd: BorrowedFd<'_>, records: u64) -> io::Result<bool> {
        if self.0.records_left < records {
            let made = sequence(fd)?.saturating_sub(self.0.first_sequence);
            self.0.records_left = self.0.all_records.saturating_sub(made);
        }
        Ok(self.0.records_left >= records)
    }

    /// Whether TCP has every record, and none is unfinished. Only then can the connection be saved,
    /// or our direction be closed.
    pub(crate) fn is_settled(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        let records = sequence(fd)?.wrapping_sub(self.0.first_sequence);
        let overhead = records.wrapping_mul(self.0.overhead_bytes);
        let queued = ktls::queued_bytes(fd)?.wrapping_sub(self.0.first_queued);
        Ok(queued == self.0.written.wrapping_add(overhead))
    }
}

/// Sequence number of the kernel's next record.
pub(crate) fn sequence(fd: BorrowedFd<'_>) -> io::Result<u64> {
    ktls::tx_sequence(fd).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use prism_tls::{DirectionKeys, Secret, SessionKeys, Suite};

    fn session(suite: Suite) -> Session {
        let key = Secret::new(&vec![7; suite.key_bytes()]).unwrap();
        let keys = |sequence| DirectionKeys::Tls12 {
            key: Secret::new(key.as_bytes()).unwrap(),
            iv: [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            sequence,
        };
        let (read, write) = (keys(3), keys(5));
        Session::new(SessionKeys { suite, read, write }).unwrap()
    }

    /// The kernel counts on from the explicit nonce that it gets. That must be the next record's,
    /// or nonces of the handshake repeat.
    #[test]
    fn the_kernel_is_given_the_explicit_nonce_of_the_next_record() {
        let keys = session(Suite::Aes128Gcm).write_to_kernel().unwrap();
        assert_eq!(keys.sequence, 5);
        assert_eq!(*keys.nonce, [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 4]);
        let keys = session(Suite::ChaCha20Poly1305).write_to_kernel().unwrap();
        assert_eq!(keys.nonce.last_chunk(), Some(&[0xff; 8]));
    }

    #[test]
    fn records_are_never_counted_too_low() {
        let mut tx = KernelTx(KernelState {
            overhead_bytes: 22,
            first_sequence: 0,
            first_queued: 0,
            written: 0,
            all_records: 100,
            records_left: 100,
        });
        tx.took(1);
        tx.took(3 * MAX_PLAINTEXT_BYTES);
        assert_eq!(tx.0.records_left, 100 - 2 - 5);
        assert_eq!(tx.0.written, 1 + 3 * MAX_PLAINTEXT_BYTES as u64);
        tx.took(1 << 30);
        assert_eq!(tx.0.records_left, 0);
    }
}
