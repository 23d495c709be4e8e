//! Moving bytes of a file into a socket without copying them through the process.

use std::io;
use std::os::fd::BorrowedFd;

/// Sends up to `count` bytes of a file, from `offset` on, into a socket. Returns how many the
/// socket took: 0 at the end of the file. The file's own position is neither used nor moved. The
/// kernel takes at most 2 GiB at once.
///
/// A non-blocking socket does not wait, but reading the file may wait for the disk.
///
/// # Errors
/// `WouldBlock` if the socket is full; `BrokenPipe` or `ConnectionReset` if the peer is gone;
/// `InvalidInput` if the offset is beyond the size of files, or the file cannot be mapped.
pub fn sendfile(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    mut offset: u64,
    count: usize,
) -> io::Result<usize> {
    Ok(rustix::fs::sendfile(
        socket,
        file,
        Some(&mut offset),
        count,
    )?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// An unnamed file that ends with its descriptor.
    fn file(content: &[u8]) -> std::fs::File {
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(std::env::temp_dir())
            .unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn a_part_of_a_file_arrives() {
        let (mut client, server) = pair();
        let mut file = file(b"0123456789");
        assert_eq!(sendfile(server.as_fd(), file.as_fd(), 3, 4).unwrap(), 4);
        assert_eq!(sendfile(server.as_fd(), file.as_fd(), 10, 4).unwrap(), 0);
        assert_eq!(file.stream_position().unwrap(), 10);
        drop(server);
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert_eq!(got, "3456");
    }

    #[test]
    fn a_full_socket_says_so_and_a_mad_offset_is_refused() {
        let (_client, server) = pair();
        server.set_nonblocking(true).unwrap();
        let file = file(&vec![0; 1 << 20]);
        let error = loop {
            if let Err(error) = sendfile(server.as_fd(), file.as_fd(), 0, 1 << 20) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let error = sendfile(server.as_fd(), file.as_fd(), u64::MAX, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
