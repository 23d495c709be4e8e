//! A process that pretends to be a successor, and dies at a chosen step.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use prism_proto::succession::{MAX_MESSAGE_BYTES, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};

/// The last step before the death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has got the listeners.
    Listeners,
    /// It was told to start. A store is closed then.
    Go,
    /// It has said that it is ready, and has got connections.
    Ready,
    /// It sends a message without meaning.
    Nonsense,
}

impl Step {
    pub const ALL: [Self; 4] = [Self::Listeners, Self::Go, Self::Ready, Self::Nonsense];
}

/// Takes the node with this admin socket over as far as `step`. The link ends when the result is
/// dropped. It also offers versions that no release speaks yet.
pub fn take_over_until(step: Step, admin: &Path) -> OwnedFd {
    let mut stream = UnixStream::connect(admin).unwrap();
    stream.write_all(b"take-over 251 250 1\n").unwrap();
    let (answer, link) = receive(&stream);
    assert_eq!(answer, b"{\"take_over\":1}\n");
    let link = link.unwrap();
    let tell = |message: Message| {
        send(&link, &message.encode(1), SendFlags::NOSIGNAL).unwrap();
    };
    while message(&link) != Message::Prepare {}
    if step == Step::Listeners {
        return link;
    }
    if step == Step::Nonsense {
        send(&link, b"nonsense", SendFlags::NOSIGNAL).unwrap();
        return link;
    }
    tell(Message::Prepared);
    assert_eq!(message(&link), Message::Go);
    if step == Step::Ready {
        tell(Message::Ready);
        let received = message(&link);
        let is_connection = matches!(received, Message::Connection { .. });
        assert!(is_connection, "{received:?}");
    }
    link
}

fn message(link: &OwnedFd) -> Message {
    Message::decode(&receive(link).0, 1).unwrap()
}

fn receive(socket: impl AsFd) -> (Vec<u8>, Option<OwnedFd>) {
    let timeout = Timespec {
        tv_sec: Duration::from_secs(30).as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout));
    assert_eq!(ready.unwrap(), 1, "the predecessor is silent");
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    bytes.truncate(received.bytes);
    (bytes, passed)
}
