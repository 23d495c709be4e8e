//! The TLS record layer between a connection's socket and its buffers, and the state that moves
//! with a session.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use prism_proto::node::TlsState;
use prism_sys::tcp::ktls::Offered;
use prism_tls::{Event, MAX_PLAINTEXT_BYTES, RestoreError, SealError, Session};

use crate::buffers::Input;
use crate::kernel_tx::{self, KernelTx, RECORDS_FOR_MESSAGE};

/// The largest number of bytes that are sealed before they are written.
pub(crate) const SEAL_BYTES: usize = 128 << 10;

/// A session, and the records that were read and not opened.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) session: Session,
    /// The bytes of the socket that were not opened.
    pub(crate) sealed: Input,
    /// Bytes of an unfinished write whose records are made.
    pub(crate) sealed_bytes: usize,
    kernel: Kernel,
    /// The alert that ends the session and that the kernel is to send.
    pub(crate) alert: Option<[u8; 2]>,
}

/// The kernel's part in the session's output.
#[derive(Debug)]
enum Kernel {
    /// None yet.
    Idle,
    /// None on this socket, which did not take the key.
    Refused,
    /// It seals what is written to the socket.
    Seals(KernelTx),
}

/// The result of opening records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedRecords {
    /// Bytes of plaintext; 0 if the next record is not complete.
    Data(usize),
    /// The client will send no more.
    End,
}

impl Records {
    /// A session whose `sealed` records came behind the handshake.
    pub(crate) fn new(session: Session, sealed: Vec<u8>) -> Self {
        Self {
            session,
            sealed: Input::new(sealed),
            sealed_bytes: 0,
            kernel: Kernel::Idle,
            alert: None,
        }
    }

    /// Opens records, in order, until `input` holds `enough` bytes. `InvalidData` if the client
    /// broke TLS or ended it by an alert; `output` then has a fatal alert if it is to get one.
    pub(crate) fn open(
        &mut self,
        input: &mut Vec<u8>,
        enough: usize,
        output: &mut Vec<u8>,
    ) -> io::Result<OpenedRecords> {
        let before = input.len();
        while input.len() < enough {
            let sealed = self.sealed.unread_mut();
            let opened = match self.session.open(sealed) {
                Ok(opened) => opened,
                Err(error) => {
                    // A session that cannot send an alert just ends.
                    match self.session.fatal_alert_by_kernel(error.alert()) {
                        Ok(alert) => self.alert = Some(alert),
                        Err(_) => drop(self.session.seal_fatal_alert(error.alert(), output)),
                    }
                    return Err(broken(format!("the client broke TLS: {error}")));
                }
            };
            match opened.event {
                Event::Incomplete { .. } => break,
                Event::Data(place) => {
                    input.extend_from_slice(sealed.get(place).unwrap_or_default());
                }
                Event::Aborted(alert) => {
                    return Err(broken(format!(
                        "the client ended TLS by an alert: {alert:?}"
                    )));
                }
                Event::Empty | Event::KeyUpdate | Event::CloseNotify | Event::Discarded => {}
            }
            self.sealed.consume(opened.consumed);
            if opened.consumed == 0 {
                break;
            }
        }
        if self.sealed.unread().is_empty() {
            // An idle connection keeps no buffer.
            self.sealed = Input::default();
        }
        match input.len() - before {
            0 if self.session.read_closed() => Ok(OpenedRecords::End),
            n => Ok(OpenedRecords::Data(n)),
        }
    }

    /// Seals the record layer's own messages, if there are any. They wait while the kernel has the
    /// session.
    pub(crate) fn seal_control(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        if self.session.write_in_kernel() {
            return Ok(());
        }
        self.session.seal_control(output).map_err(not_sealed)
    }

    /// Ends the unfinished write, whose records are in the output, and returns its bytes.
    pub(crate) fn take_sealed_bytes(&mut self) -> usize {
        std::mem::take(&mut self.sealed_bytes)
    }

    /// Ends the session here. Returns its state for another host, and the kernel's part for
    /// [`Self::stay`] if it goes on in the same socket `fd`. The socket must be settled
    /// ([`Self::is_settled`]). On failure the session is lost.
    pub(crate) fn save(mut self, fd: BorrowedFd<'_>) -> io::Result<(TlsState, Option<KernelTx>)> {
        if self.session.write_in_kernel() {
            let sequence = kernel_tx::sequence(fd)?;
            (self.session.write_from_kernel(sequence)).map_err(io::Error::other)?;
        }
        let sealed = std::mem::take(self.sealed.bytes_mut());
        let session = self.session.save().map_err(io::Error::other)?;
        let kernel = match self.kernel {
            Kernel::Seals(kernel) => Some(kernel),
            Kernel::Idle | Kernel::Refused => None,
        };
        Ok((TlsState { session, sealed }, kernel))
    }

    /// Goes on with a session that has not moved, in the socket `fd` whose kernel has the key. On
    /// failure the session is lost.
    pub(crate) fn stay(&mut self, kernel: KernelTx, fd: BorrowedFd<'_>) -> io::Result<()> {
        let sequence = kernel_tx::sequence(fd)?;
        (self.session.write_still_in_kernel(sequence)).map_err(io::Error::other)?;
        self.kernel = Kernel::Seals(kernel);
        Ok(())
    }

    /// Restores a saved session, on this host or another.
    pub(crate) fn restore(state: TlsState) -> Result<Self, RestoreError> {
        Ok(Self::new(Session::restore(&state.session)?, state.sealed))
    }
}

/// The kernel's part.
impl Records {
    /// Whether the kernel seals all that is written to the socket.
    pub(crate) fn is_in_kernel(&self) -> bool {
        matches!(self.kernel, Kernel::Seals(_))
    }

    /// Whether the kernel could get the key.
    pub(crate) fn may_enter_kernel(&self, offered: &Offered) -> bool {
        matches!(self.kernel, Kernel::Idle) && kernel_tx::is_worthwhile(&self.session, offered)
    }

    /// Gives the kernel the key, once all sealed records are in the socket. A failure is final.
    pub(crate) fn enter_kernel(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.kernel = Kernel::Refused;
        self.kernel = Kernel::Seals(KernelTx::start(fd, &mut self.session)?);
        Ok(())
    }

    /// The kernel's part, while it seals.
    pub(crate) fn kernel_mut(&mut self) -> Option<&mut KernelTx> {
        match &mut self.kernel {
            Kernel::Seals(kernel) => Some(kernel),
            Kernel::Idle | Kernel::Refused => None,
        }
    }

    /// Whether the kernel can make the records of another message: no KeyUpdate is due, and the key
    /// lasts. It fails if the session is closed, or the socket does not tell.
    pub(crate) fn kernel_goes_on(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        if !self.session.write_in_kernel() {
            return Err(not_sealed(SealError::Closed));
        }
        Ok(!self.session.wants_control() && self.key_lasts(fd, RECORDS_FOR_MESSAGE)?)
    }

    /// Whether the kernel's key is good for this many records more.
    pub(crate) fn key_lasts(&mut self, fd: BorrowedFd<'_>, records: u64) -> io::Result<bool> {
        let kernel = self.kernel_mut();
        kernel.map_or(Ok(false), |kernel| kernel.lasts(fd, records))
    }

    /// Whether TCP has every record that was made.
    pub(crate) fn is_settled(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        match &self.kernel {
            Kernel::Seals(kernel) => kernel.is_settled(fd),
            Kernel::Idle | Kernel::Refused => Ok(true),
        }
    }
}

/// Appends the records of `len` bytes of `file` from `offset`, sealed in place.
pub(crate) fn seal_file(
    session: &mut Session,
    file: &File,
    offset: u64,
    len: usize,
    output: &mut Vec<u8>,
) -> io::Result<()> {
    let around = session.surroundings();
    let mut done = 0;
    while done < len {
        let count = (len - done).min(MAX_PLAINTEXT_BYTES);
        if !session.write_in_kernel() {
            session.seal_control(output).map_err(not_sealed)?;
        }
        let start = output.len();
        output.resize(start + around.total() + count, 0);
        let record = output.get_mut(start..).unwrap_or_default();
        let plaintext = record.get_mut(around.before..around.before + count);
        file.read_exact_at(plaintext.unwrap_or_default(), offset + done as u64)?;
        let sealed = session.seal_in_place(record, count);
        let record_bytes = sealed.map_err(not_sealed)?;
        output.truncate(start + record_bytes);
        done += count;
    }
    Ok(())
}

fn broken(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

pub(crate) fn not_sealed(error: SealError) -> io::Error {
    io::Error::other(error)
}
