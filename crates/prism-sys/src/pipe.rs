//! Moving bytes from one socket into another without copying them through the process
//! (`splice(2)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags};

/// A pipe that bytes pass on their way from one socket to another.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held_bytes: usize,
}

impl Pipe {
    /// An empty pipe.
    ///
    /// # Errors
    /// The process or the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            reader,
            writer,
            held_bytes: 0,
        })
    }

    /// The bytes in it.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Moves up to `count` bytes from a socket into the empty pipe. Returns how many: 0 at the
    /// end of the stream. Does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has none, or the pipe is not empty; else the socket's error.
    pub fn fill(&mut self, socket: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
        // A full pipe would look like a socket without bytes.
        if self.held_bytes > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let moved = rustix::pipe::splice(socket, None, self.writer.as_fd(), None, count, flags)?;
        self.held_bytes = moved;
        Ok(moved)
    }

    /// Moves bytes on into a socket. Returns how many it took. Does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full; `BrokenPipe` or `ConnectionReset` if the peer is gone.
    pub fn empty(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let count = self.held_bytes;
        let moved = rustix::pipe::splice(self.reader.as_fd(), None, socket, None, count, flags)?;
        self.held_bytes = count.saturating_sub(moved);
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_pass_in_order_and_what_is_full_or_empty_does_not_wait() {
        let ((mut server, from), (to, mut client)) = (pair(), pair());
        from.set_nonblocking(true).unwrap();
        to.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new().unwrap();
        let fault = pipe.fill(from.as_fd(), 10).unwrap_err();
        assert_eq!(fault.kind(), io::ErrorKind::WouldBlock);
        let bytes: Vec<u8> = (0..20_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let expected = bytes.clone();
        let sending = std::thread::spawn(move || {
            server.write_all(&bytes).unwrap();
        });
        let mut was_full = false;
        let mut left = expected.len();
        let mut reading = None;
        while left > 0 {
            match pipe.fill(from.as_fd(), left) {
                Ok(moved) => left -= moved,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            while pipe.held_bytes() > 0 {
                if let Err(error) = pipe.empty(to.as_fd()) {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    was_full = true;
                    // The client begins to read when everything is full.
                    let mut client = client.try_clone().unwrap();
                    let len = expected.len();
                    reading.get_or_insert_with(|| {
                        std::thread::spawn(move || {
                            let mut got = vec![0; len];
                            client.read_exact(&mut got).unwrap();
                            got
                        })
                    });
                    std::thread::yield_now();
                }
            }
        }
        assert!(was_full);
        assert!(reading.unwrap().join().unwrap() == expected);
        sending.join().unwrap();
        assert_eq!(pipe.fill(from.as_fd(), 1).unwrap(), 0);
        drop(to);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}
