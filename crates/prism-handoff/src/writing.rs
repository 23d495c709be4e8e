//! Writing to a client's connection: bytes and files, sealed here or by the kernel.

use std::fs::File;
use std::io;

use rustix::fs::sendfile;

use crate::connection::Connection;
use crate::connection_state::ConnectionState;
use crate::records::{Records, SEAL_BYTES, not_sealed, seal_file};

/// The largest number of bytes of one `sendfile` call, so that one connection does not occupy a
/// worker.
const SENDFILE_BYTES: usize = 1 << 20;

impl Connection {
    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `TimedOut` if the client took nothing in time; else the socket's error.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes, false).await
    }

    /// [`Self::write_all`] with more bytes to follow at once (`MSG_MORE`), so that a head and its
    /// body leave in one segment.
    ///
    /// # Errors
    /// As for [`Self::write_all`].
    pub async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes, true).await
    }

    /// Sends `len` bytes of `file` from `offset`. Without TLS they are not copied here; with TLS
    /// they are sealed in place.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends first; else as for [`Self::write_all`].
    pub async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        self.state.partial_bytes = 0;
        self.flush(true).await?;
        let mut at = offset;
        let end = offset.saturating_add(len);
        if self.is_tls() && !self.enter_kernel(len).await? {
            return self.send_sealed(file, offset, end).await;
        }
        while at < end && (at == offset || self.key_lasts()?) {
            let count = usize::try_from(end - at)
                .unwrap_or(SENDFILE_BYTES)
                .min(SENDFILE_BYTES);
            let sent = self
                .written(|socket| {
                    let mut from = at;
                    Ok(sendfile(socket, file, Some(&mut from), count)?)
                })
                .await?;
            if sent == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += sent as u64;
            self.state.partial_bytes += sent as u64;
        }
        if self.is_tls() {
            self.state.worker.counters.tls_kernel_bodies.add_one();
        }
        if at < end {
            self.leave_kernel().await?;
            self.send_sealed(file, at, end).await?;
        }
        Ok(())
    }

    /// Bytes that left by the last [`Self::send_file`] or [`Self::send_stream`].
    #[must_use]
    pub fn partial_bytes(&self) -> u64 {
        self.state.partial_bytes
    }

    async fn send_sealed(&mut self, file: &File, mut at: u64, end: u64) -> io::Result<()> {
        while at < end {
            let count = usize::try_from(end - at).unwrap_or(SEAL_BYTES);
            let count = count.min(SEAL_BYTES);
            let ConnectionState { tls, output, .. } = &mut *self.state;
            let records = tls.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            seal_file(&mut records.session, file, at, count, output)?;
            at += count as u64;
            self.flush(at < end).await?;
            self.state.partial_bytes += count as u64;
        }
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        let sealed = (self.state.tls.as_mut()).map_or(0, Records::take_sealed_bytes);
        let bytes = bytes.get(sealed..).unwrap_or_default();
        self.flush(more || !bytes.is_empty()).await?;
        if !self.is_tls() {
            return self.write_parts(bytes, more).await;
        }
        let by_kernel = self.kernel_goes_on().await?;
        let mut pieces = bytes.chunks(SEAL_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let more = more || pieces.peek().is_some();
            if by_kernel {
                self.write_parts(piece, more).await?;
                continue;
            }
            let ConnectionState { tls, output, .. } = &mut *self.state;
            let records = tls.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            records.session.seal(piece, output).map_err(not_sealed)?;
            self.flush(more).await?;
        }
        Ok(())
    }
}
