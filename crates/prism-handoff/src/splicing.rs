//! Bytes of another socket on their way to the client, without a copy in the process.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prism_common::input::SourceFault;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::connection::Connection;

/// The largest number of bytes that are taken at once, so that one connection does not occupy a
/// worker.
const PIECE_BYTES: usize = 1 << 20;
/// Empty pipes that a thread keeps.
const KEPT_PIPES: usize = 16;
/// The most pipes of a process. Each has two descriptors. The kernel gives a user 1,024 pipes of
/// full size (`fs.pipe-user-pages-soft` is 16,384 pages, and a pipe has 16). Moving bytes through a
/// smaller one costs more than copying them.
pub const MAX_PIPES: usize = 768;

static OPEN_PIPES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PIPES: RefCell<Vec<CountedPipe>> = const { RefCell::new(Vec::new()) };
}

/// One of the pipes of this process. It is empty between two uses.
struct CountedPipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl CountedPipe {
    /// `None` if the process has all that it may have, or no descriptors left.
    fn open() -> Option<Self> {
        let has_room = |open| (open < MAX_PIPES).then_some(open + 1);
        let order = Ordering::Relaxed;
        OPEN_PIPES.fetch_update(order, order, has_room).ok()?;
        match pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            Ok((reader, writer)) => Some(Self { reader, writer }),
            Err(_) => {
                OPEN_PIPES.fetch_sub(1, order);
                None
            }
        }
    }
}

impl Drop for CountedPipe {
    fn drop(&mut self) {
        OPEN_PIPES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Sends `len` bytes that come from `source`, and returns how many were sent. They are fewer
    /// if the rest has to be copied by the caller: because records of TLS are made in user space,
    /// or because the process has [`MAX_PIPES`] pipes or no descriptors left.
    ///
    /// # Errors
    /// A [`SourceFault`] if `source` breaks, ends first (`UnexpectedEof`) or is silent for
    /// `silence` (`TimedOut`); else as for [`Self::write_all`].
    pub async fn send_stream(
        &mut self,
        source: &TcpStream,
        len: u64,
        silence: Duration,
    ) -> io::Result<u64> {
        self.state.partial_bytes = 0;
        self.flush(true).await?;
        if self.is_tls() && !(self.enter_kernel(len).await? && self.key_lasts()?) {
            return Ok(0);
        }
        let kept = PIPES.with_borrow_mut(Vec::pop);
        let Some(pipe) = kept.or_else(CountedPipe::open) else {
            return Ok(0);
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let mut sent = 0;
        while sent < len && (sent == 0 || self.key_lasts()?) {
            let count = usize::try_from(len - sent).unwrap_or(PIECE_BYTES);
            let count = count.min(PIECE_BYTES);
            let taking = || Ok(splice(source, None, &pipe.writer, None, count, flags)?);
            let taken = tokio::time::timeout(silence, source.async_io(Interest::READABLE, taking));
            let taken = taken.await.unwrap_or(Err(io::ErrorKind::TimedOut.into()));
            let mut held = taken.map_err(SourceFault::error)?;
            if held == 0 {
                return Err(SourceFault::error(io::ErrorKind::UnexpectedEof.into()));
            }
            sent += held as u64;
            while held > 0 {
                let emptied = self
                    .written(|socket| Ok(splice(&pipe.reader, None, socket, None, held, flags)?))
                    .await?;
                held = held.saturating_sub(emptied);
                self.state.partial_bytes += emptied as u64;
            }
        }
        if self.is_tls() {
            self.state.worker.counters.tls_kernel_bodies.add_one();
        }
        PIPES.with_borrow_mut(|kept| {
            if kept.len() < KEPT_PIPES {
                kept.push(pipe);
            }
        });
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_so_many_pipes_at_most() {
        OPEN_PIPES.store(MAX_PIPES - 1, Ordering::Relaxed);
        let last = CountedPipe::open();
        assert!(last.is_some() && CountedPipe::open().is_none());
        drop(last);
        assert!(CountedPipe::open().is_some());
        assert_eq!(OPEN_PIPES.load(Ordering::Relaxed), MAX_PIPES - 1);
    }
}
