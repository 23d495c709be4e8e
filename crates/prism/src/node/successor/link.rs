//! The Unix socket between a process and its successor: whole packets, with sockets in them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use prism_proto::succession::{MAX_MESSAGE_BYTES, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zeroize::Zeroize;

/// One end of the link.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    version: u8,
}

/// A message, and the socket that came with it.
pub(super) type Received = (Message, Option<OwnedFd>);

/// Makes a link. Returns this process's end, and the end that the successor gets.
pub(crate) fn offer(version: u8) -> io::Result<(Link, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((Link { socket, version }, theirs))
}

impl Link {
    /// The end that the predecessor has made.
    pub(super) fn new(socket: OwnedFd, version: u8) -> Self {
        Self { socket, version }
    }

    /// Sends a message, and waits for room up to `limit`.
    pub(super) fn send_within(
        &self,
        message: &Message,
        socket: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> io::Result<()> {
        let mut bytes = message.encode(self.version);
        let sent = loop {
            match send(&self.socket, &bytes, socket) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, limit)?;
                }
                sent => break sent,
            }
        };
        bytes.zeroize();
        sent
    }

    /// Waits for a message up to `limit`.
    pub(super) fn receive_within(&self, limit: Duration) -> io::Result<Received> {
        loop {
            match receive(&self.socket, self.version) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::IN, limit)?;
                }
                received => return received,
            }
        }
    }

    fn wait(&self, events: PollFlags, limit: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut polled = [PollFd::new(&self.socket, events)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The same link for a task of the present runtime.
    pub(super) fn watched(&self) -> io::Result<WatchedLink> {
        let socket = self.socket.try_clone()?;
        #[allow(deprecated, reason = "an `OwnedFd` never replaces its descriptor")]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(WatchedLink {
            socket,
            version: self.version,
        })
    }

    /// Ends the link in both directions. Messages that have arrived can still be read.
    pub(super) fn hang_up(&self) {
        // It fails if the other end is closed already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// A link whose messages a task awaits.
pub(super) struct WatchedLink {
    socket: AsyncFd<OwnedFd>,
    version: u8,
}

impl WatchedLink {
    /// The next message.
    pub(super) async fn receive(&self) -> io::Result<Received> {
        let version = self.version;
        self.socket
            .async_io(Interest::READABLE, |socket| receive(socket, version))
            .await
    }
}

fn send(socket: impl AsFd, bytes: &[u8], passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed: Vec<_> = passed.into_iter().collect();
    if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&passed)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Sends bytes and a socket on a Unix stream.
pub(crate) fn send_on_stream(
    stream: impl AsFd,
    bytes: &[u8],
    passed: BorrowedFd<'_>,
) -> io::Result<()> {
    send(stream, bytes, Some(passed))
}

fn receive(socket: impl AsFd, version: u8) -> io::Result<Received> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let (len, passed) = receive_bytes(socket, &mut bytes, RecvFlags::DONTWAIT)?;
    let message = match len {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        len => Message::decode(bytes.get(..len).unwrap_or_default(), version)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
    };
    bytes.zeroize();
    Ok((message?, passed))
}

/// Receives bytes, and a socket if there is one.
pub(super) fn receive_bytes(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | flags;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut passed = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sockets) = message {
            passed = sockets.into_iter().next();
        }
    }
    let is_cut = received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    match is_cut {
        // Without a free descriptor the kernel drops the socket.
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message of a take-over is cut: is the limit of open files reached?",
        )),
        false => Ok((received.bytes, passed)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn a_socket_travels_with_its_message() {
        let (ours, theirs) = offer(1).unwrap();
        let theirs = Link::new(theirs, 1);
        let (mut near, far) = UnixStream::pair().unwrap();
        ours.send_within(&Message::Listener(None), Some(far.as_fd()), SOON)
            .unwrap();
        ours.send_within(&Message::Prepare, None, SOON).unwrap();
        drop(far);
        let (message, socket) = theirs.receive_within(SOON).unwrap();
        assert_eq!(message, Message::Listener(None));
        let mut far = UnixStream::from(socket.unwrap());
        far.write_all(b"x").unwrap();
        let mut byte = [0];
        near.read_exact(&mut byte).unwrap();
        let (message, socket) = theirs.receive_within(SOON).unwrap();
        assert_eq!(message, Message::Prepare);
        assert!(socket.is_none());
    }

    #[test]
    fn what_was_sent_before_the_end_of_a_link_arrives_and_nothing_after_it() {
        let (ours, theirs) = offer(1).unwrap();
        let theirs = Link::new(theirs, 1);
        theirs
            .send_within(&Message::Taken { id: 1 }, None, SOON)
            .unwrap();
        ours.hang_up();
        let late = theirs.send_within(&Message::Taken { id: 2 }, None, SOON);
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let (message, _) = ours.receive_within(SOON).unwrap();
        assert_eq!(message, Message::Taken { id: 1 });
        let end = ours.receive_within(SOON).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn nonsense_and_silence_are_told_apart() {
        let (ours, theirs) = offer(1).unwrap();
        let silent = ours.receive_within(Duration::from_millis(10)).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        send(&theirs, b"nonsense", None).unwrap();
        let nonsense = ours.receive_within(SOON).unwrap_err();
        assert_eq!(nonsense.kind(), io::ErrorKind::InvalidData);
    }
}
