//! Bytes of another socket on their way to the client, without a copy in the process.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use prism_sys::pipe::Pipe;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::connection::Connection;

/// The largest number of bytes that are taken at once, so that one connection does not occupy a
/// worker.
const PIECE_BYTES: usize = 1 << 20;
/// Empty pipes that a thread keeps. Each has two descriptors.
const KEPT_PIPES: usize = 16;

thread_local! {
    static PIPES: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

impl Connection {
    /// Sends `len` bytes that come from `source`, and returns how many were sent. They are fewer
    /// if the rest has to be copied by the caller: because records of TLS are made in user space,
    /// or because there are no descriptors left.
    ///
    /// # Errors
    /// `UnexpectedEof` if `source` ends first, `TimedOut` if it was silent for `silence`; else as
    /// for [`Self::write_all`].
    pub async fn send_stream(
        &mut self,
        source: &TcpStream,
        len: u64,
        silence: Duration,
    ) -> io::Result<u64> {
        self.flush(true).await?;
        if self.is_tls() && !self.enter_kernel(len).await? {
            return Ok(0);
        }
        let kept = PIPES.with_borrow_mut(Vec::pop);
        let Some(mut pipe) = kept.or_else(|| Pipe::new().ok()) else {
            return Ok(0);
        };
        let mut sent = 0;
        while sent < len && (sent == 0 || self.key_lasts()?) {
            let count = usize::try_from(len - sent).unwrap_or(PIECE_BYTES);
            let count = count.min(PIECE_BYTES);
            let taking = || pipe.fill(source.as_fd(), count);
            let taken = tokio::time::timeout(silence, source.async_io(Interest::READABLE, taking));
            match taken.await.map_err(|_| io::ErrorKind::TimedOut)?? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                taken => sent += taken as u64,
            }
            while pipe.held_bytes() > 0 {
                self.written(|socket| pipe.empty(socket)).await?;
            }
        }
        if self.is_tls() {
            self.state.shared.counters.tls_kernel_bodies.add_one();
        }
        PIPES.with_borrow_mut(|kept| {
            if kept.len() < KEPT_PIPES {
                kept.push(pipe);
            }
        });
        Ok(sent)
    }
}
