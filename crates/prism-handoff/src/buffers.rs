//! The buffers that connections read into, and waiting for bytes to read.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;

pub(crate) use prism_common::input::Unread as Input;
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// The smallest size of a read: a TLS record and a little more.
pub(crate) const MIN_READ_BYTES: usize = 17 << 10;
/// The number of spare buffers of a worker, and their capacity.
const SPARE_MAX: usize = 16;
pub(crate) const SPARE_BYTES: usize = MIN_READ_BYTES;
/// The largest number of unread bytes of a connection.
pub(crate) const MAX_BUFFERED_BYTES: usize = 256 << 10;

/// Spare buffers: idle connections hold none. The next connection that receives gets one that is
/// still in the processor's caches.
#[derive(Default)]
pub(crate) struct Spare(RefCell<Vec<Vec<u8>>>);

impl Spare {
    /// Gives `bytes` a buffer if it has none.
    pub(crate) fn lend(&self, bytes: &mut Vec<u8>) {
        if bytes.capacity() == 0 {
            let spare = self.0.borrow_mut().pop();
            *bytes = spare.unwrap_or_else(|| Vec::with_capacity(SPARE_BYTES));
        }
    }

    /// Takes an empty buffer back, or drops it.
    pub(crate) fn take_back(&self, bytes: &mut Vec<u8>) {
        let bytes = std::mem::take(bytes);
        let mut spare = self.0.borrow_mut();
        if bytes.capacity() == SPARE_BYTES && spare.len() < SPARE_MAX {
            spare.push(bytes);
        }
    }
}

/// Reads once into the room of `buffer`. Also returns whether the socket is empty now.
pub(crate) fn read_once(socket: impl AsFd, buffer: &mut Vec<u8>) -> io::Result<(usize, bool)> {
    let room_bytes = buffer.capacity() - buffer.len();
    let room = rustix::buffer::spare_capacity(buffer);
    let (read, _) = rustix::net::recv(socket, room, RecvFlags::DONTWAIT)?;
    Ok((read, read < room_bytes))
}

/// Waits for the socket and reads by `receive`, which also returns whether the socket is empty now.
pub(crate) async fn receive(
    stream: &TcpStream,
    receive: impl FnMut() -> io::Result<(usize, bool)>,
) -> io::Result<usize> {
    let (n, is_empty) = stream.async_io(Interest::READABLE, receive).await?;
    if is_empty && n > 0 {
        // The reactor waits for new bytes, which spares the next read a system call.
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = stream.try_io(Interest::READABLE, nothing);
    }
    Ok(n)
}
