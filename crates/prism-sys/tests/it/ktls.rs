//! Records that the kernel makes, read by a peer that knows the keys, and connections that move
//! within them. Without TLS in the kernel, each test says so and passes.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::common::{self, DOWN, Net, bytes, eventually, privileged};
use crate::peer::{Peer, SUITES, Suite};
use prism_sys::tcp::ktls::{self, KtlsError, Offered, ProbeError};
use prism_sys::tcp::{Freezer, Paused};

/// The sequence number of a record within a session, which cannot be guessed.
const FIRST: u64 = 0x1_0000_00fe;
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// Moves with full queues, and the most of them until one has found bytes that were not sent.
const MOVES: usize = 3;
const MOST_MOVES: usize = 12;

/// Whether the kernel does TLS, and the test may move connections.
fn possible() -> bool {
    if !privileged() {
        return false;
    }
    if !has_tls() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: this kernel has no TLS");
    }
    has_tls()
}

/// Only the kernel's TLS refuses a socket for want of a connection.
fn has_tls() -> bool {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    !matches!(ktls::attach(socket.as_fd()), Err(KtlsError::NoTls))
}

/// The sender: a socket whose output the kernel encrypts, and what it was given.
struct Sender {
    fd: OwnedFd,
    suite: Suite,
    /// Plaintext written so far.
    written: u64,
    /// The plaintext, TCP's bytes and the sequence number when the keys were set.
    since: (u64, u64, u64),
}

impl Sender {
    fn start(fd: OwnedFd, suite: Suite, sequence: u64, written: u64) -> Self {
        ktls::attach(fd.as_fd()).unwrap();
        let queued = ktls::queued_bytes(fd.as_fd()).unwrap();
        ktls::set_tx(fd.as_fd(), &suite.info(sequence)).unwrap();
        Self {
            fd,
            suite,
            written,
            since: (written, queued, sequence),
        }
    }

    /// Writes up to `length` bytes once; returns whether any was taken.
    fn write(&mut self, length: usize) -> bool {
        let mut stream = TcpStream::from(self.fd.try_clone().unwrap());
        match stream.write(&bytes(DOWN, self.written, length)) {
            Ok(length) => self.written += length as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("write: {error}"),
        }
        true
    }

    fn write_all(&mut self, length: usize) {
        let end = self.written + length as u64;
        eventually("all is written", 20, || {
            while self.written < end && self.write((end - self.written) as usize) {}
            self.written == end
        });
    }

    /// The bytes that the kernel keeps: the ciphertext that TCP should have, less that it has.
    fn kept_bytes(&self) -> u64 {
        let (written, queued, sequence) = self.since;
        // Read first: a record that TCP gets in between counts as kept, and not as too much.
        let given = ktls::queued_bytes(self.fd.as_fd()).unwrap() - queued;
        let records = ktls::tx_sequence(self.fd.as_fd()).unwrap() - sequence;
        let overhead = self.suite.overhead_bytes();
        let expected = self.written - written + records * overhead;
        expected - given
    }

    /// Moves to `host`, once TCP has every record.
    fn hand_off(self, net: &Net, host: usize) -> (Self, usize) {
        eventually("TCP has every record", 20, || self.kept_bytes() == 0);
        let sequence = ktls::tx_sequence(self.fd.as_fd()).unwrap();
        let (live, state) = net.hand_off(self.fd, host);
        let owed = state.unsent.len();
        // This is ciphertext, which has to be in the queue before the keys are set.
        let mut stream = TcpStream::from(live.fd);
        let mut output = &live.output[..];
        eventually("what is owed is written", 20, || {
            while !output.is_empty() {
                match stream.write(output) {
                    Ok(length) => output = &output[length..],
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        return false;
                    }
                }
            }
            true
        });
        (
            Self::start(stream.into(), self.suite, sequence, self.written),
            owed,
        )
    }
}

fn client(stream: &TcpStream, suite: Suite) -> Peer {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    Peer::new(stream.try_clone().unwrap(), suite, DOWN, FIRST)
}

/// A file that holds this part of the stream, after some bytes of another kind.
fn file(skip: usize, offset: u64, length: usize) -> File {
    let mut file = tempfile();
    file.write_all(&vec![0xff; skip]).unwrap();
    file.write_all(&bytes(DOWN, offset, length)).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

/// Sends up to `count` bytes of `file` from `offset`.
fn send_file(socket: &OwnedFd, file: &File, mut offset: u64, count: usize) -> io::Result<usize> {
    let sent = rustix::fs::sendfile(socket, file, Some(&mut offset), count)?;
    Ok(sent)
}

fn tempfile() -> File {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(std::env::temp_dir())
        .unwrap()
}

#[test]
fn bytes_are_counted_exactly_while_they_are_acknowledged() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let reading = std::thread::spawn(move || {
        std::io::copy(&mut receiver, &mut std::io::sink()).unwrap();
    });
    let queued = ktls::queued_bytes(sender.as_fd()).unwrap();
    let mut written = 0;
    for _ in 0..20_000 {
        written += sender.write(&[0; 3_000]).unwrap() as u64;
        let now = ktls::queued_bytes(sender.as_fd()).unwrap();
        assert_eq!(now - queued, written);
    }
    drop(sender);
    reading.join().unwrap();
}

#[test]
fn files_heads_and_alerts_leave_as_records_of_every_suite() {
    if !possible() {
        return;
    }
    for suite in SUITES {
        let net = Net::new(&common::IPV4);
        let (stream, server) = net.connect();
        let mut peer = client(&stream, suite);
        let mut sender = Sender::start(server, suite, FIRST, 0);
        assert_eq!(ktls::tx_sequence(sender.fd.as_fd()).unwrap(), FIRST);
        let head = bytes(DOWN, 0, 100);
        let socket = socket2::SockRef::from(&sender.fd);
        let sent = socket.send_with_flags(&head, libc::MSG_MORE).unwrap();
        assert_eq!(sent, 100);
        let (skip, length) = (1234, 200_000);
        let file = file(skip, 100, length);
        let mut at = 0;
        eventually("the file is sent", 20, || {
            let from = (skip + at) as u64;
            match send_file(&sender.fd, &file, from, length - at) {
                Ok(sent) => at += sent,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if at < length {
                peer.read_record();
            }
            at == length
        });
        sender.written = (100 + length) as u64;
        eventually("the alert is sent", 20, || {
            match ktls::send_alert(sender.fd.as_fd(), &CLOSE_NOTIFY) {
                Ok(sent) => assert_eq!(sent, CLOSE_NOTIFY.len()),
                Err(error) => {
                    // The queue is full of the file.
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    peer.read_record();
                    return false;
                }
            }
            true
        });
        sender.written += CLOSE_NOTIFY.len() as u64;
        peer.read_until_alert();
        assert_eq!(peer.last, CLOSE_NOTIFY);
        assert_eq!(peer.plaintext, (100 + length) as u64, "{suite:?}");
        // Full records but for the last and the alert.
        let records = peer.sequence - FIRST;
        assert!((14..=16).contains(&records), "{records} records, {suite:?}");
        assert_eq!(ktls::tx_sequence(sender.fd.as_fd()).unwrap(), peer.sequence);
        assert_eq!(sender.kept_bytes(), 0, "{suite:?}");
    }
}

#[test]
fn records_go_on_after_each_hand_off() {
    if !possible() {
        return;
    }
    for suite in SUITES {
        let net = Net::new(&common::IPV4);
        let (stream, server) = net.connect();
        let mut peer = client(&stream, suite);
        let mut sender = Sender::start(server, suite, FIRST, 0);
        for round in 0..6 {
            sender.write_all(40_000);
            let file = file(0, sender.written, 5_000);
            let sent = send_file(&sender.fd, &file, 0, 5_000).unwrap();
            sender.written += sent as u64;
            peer.read_plaintext(sender.written);
            (sender, _) = sender.hand_off(&net, (round + 1) % 2);
        }
        sender.write_all(1);
        peer.read_plaintext(sender.written);
        assert_eq!(net.counts().resets + net.counts().fins, 0);
    }
}

#[test]
fn records_in_every_queue_survive_a_hand_off() {
    if !possible() {
        return;
    }
    for suite in SUITES {
        let net = Net::new(&common::IPV4);
        let (stream, server) = net.connect();
        let mut peer = client(&stream, suite);
        let mut sender = Sender::start(server, suite, FIRST, 0);
        // The client does not read, so in the end no byte is taken.
        while sender.write(100_000) {}
        let (mut kept, mut owed) = (0, 0);
        for (moves, host) in [1, 0].into_iter().cycle().enumerate() {
            // On a slow machine the client may read all before a move.
            if moves >= MOVES && (owed > 0 || moves == MOST_MOVES) {
                break;
            }
            kept = kept.max(sender.kept_bytes());
            let records = peer.sequence;
            eventually("TCP has every record", 20, || {
                if sender.kept_bytes() > 0 {
                    peer.read_record();
                }
                sender.kept_bytes() == 0
            });
            let more;
            (sender, more) = hand_off_while_reading(sender, &net, host, &mut peer);
            owed = owed.max(more);
            assert!(peer.sequence >= records);
            while sender.write(100_000) {}
        }
        let _ = writeln!(
            std::io::stderr(),
            "    {suite:?}: kept by TLS {kept}, owed {owed} bytes"
        );
        assert!(owed > 0, "nothing was queued");
        peer.read_plaintext(sender.written);
        eventually("TCP has every record", 20, || sender.kept_bytes() == 0);
        assert_eq!(ktls::tx_sequence(sender.fd.as_fd()).unwrap(), peer.sequence);
    }
}

/// The target writes the owed bytes while the client reads.
fn hand_off_while_reading(
    sender: Sender,
    net: &Net,
    host: usize,
    peer: &mut Peer,
) -> (Sender, usize) {
    let enough = sender.written;
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| sender.hand_off(net, host));
        while peer.plaintext < enough && !moving.is_finished() {
            peer.read_record();
        }
        moving.join().unwrap()
    })
}

#[test]
fn a_connection_with_keys_can_be_paused_and_taken_back() {
    if !possible() {
        return;
    }
    let suite = SUITES[0];
    let net = Net::new(&common::IPV4);
    let (stream, server) = net.connect();
    let mut peer = client(&stream, suite);
    let mut sender = Sender::start(server, suite, FIRST, 0);
    sender.write_all(1000);
    net.block();
    let paused = Paused::pause(sender.fd).unwrap();
    paused.save(net.service()).unwrap();
    sender.fd = paused.resume().unwrap();
    net.unblock();
    sender.write_all(1000);
    peer.read_plaintext(2000);
    assert_eq!(net.counts().resets + net.counts().fins, 0);
}

/// TLS's options are nobody's without TCP_ULP.
const NOT_ATTACHED: [Option<i32>; 2] = [Some(libc::ENOPROTOOPT), Some(libc::EOPNOTSUPP)];

/// The number of the kernel's error.
fn refused<T>(outcome: Result<T, KtlsError>) -> Option<i32> {
    match outcome {
        Err(KtlsError::Kernel(call)) => call.source.raw_os_error(),
        _ => None,
    }
}

#[test]
fn wrong_orders_are_refused_and_leave_the_connection_as_it_was() {
    if !possible() {
        return;
    }
    let suite = SUITES[0];
    let net = Net::new(&common::IPV4);
    let (mut stream, server) = net.connect();
    let fd = server.as_fd();
    let info = suite.info(FIRST);
    assert!(NOT_ATTACHED.contains(&refused(ktls::set_tx(fd, &info))));
    assert!(NOT_ATTACHED.contains(&refused(ktls::tx_sequence(fd))));
    let alert = ktls::send_alert(fd, &CLOSE_NOTIFY);
    assert_eq!(alert.unwrap_err().kind(), ErrorKind::InvalidInput);
    ktls::attach(fd).unwrap();
    assert_eq!(refused(ktls::attach(fd)), Some(libc::EEXIST));
    assert_eq!(refused(ktls::tx_sequence(fd)), Some(libc::EBUSY));
    TcpStream::from(server.try_clone().unwrap())
        .write_all(b"bare")
        .unwrap();
    let mut bare = [0; 4];
    stream.read_exact(&mut bare).unwrap();
    assert_eq!(&bare, b"bare");
    ktls::set_tx(fd, &info).unwrap();
    assert_eq!(refused(ktls::set_tx(fd, &info)), Some(libc::EBUSY));
    assert_eq!(ktls::tx_sequence(fd).unwrap(), FIRST);
}

/// A socket whose packets do not get out of the host sends the same bytes for the
/// first time again and again.
#[test]
fn bytes_are_counted_once_however_often_they_fail_to_leave() {
    if !privileged() {
        return;
    }
    let net = Net::new(&common::IPV4);
    let _freezer = net.hosts[0].run(|| Freezer::new().unwrap()).unwrap();
    let (mut stream, server) = net.connect();
    let mark = |mark| socket2::SockRef::from(&server).set_mark(mark).unwrap();
    let mut sender = TcpStream::from(server.try_clone().unwrap());
    let before = ktls::queued_bytes(server.as_fd()).unwrap();
    // Bytes that are acknowledged between the readings count too little, and none count twice.
    let assert_given = |bytes: u64| {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let given = ktls::queued_bytes(server.as_fd()).unwrap() - before;
            assert!(given <= bytes, "{given}");
            if given == bytes {
                return;
            }
            assert!(Instant::now() < end, "{given}");
        }
    };
    sender.write_all(&bytes(DOWN, 0, 1000)).unwrap();
    // The mark of frozen sockets.
    mark(0x5072_0000 | std::process::id() & 0xffff);
    sender.write_all(&bytes(DOWN, 1000, 5000)).unwrap();
    assert_given(6000);
    std::thread::sleep(Duration::from_millis(700));
    assert_given(6000);
    mark(0);
    let mut got = vec![0; 6000];
    stream.read_exact(&mut got).unwrap();
    assert!(got == bytes(DOWN, 0, 6000));
    assert_given(6000);
}

#[test]
fn a_kernel_without_tls_or_a_socket_without_a_connection_is_told_apart() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let attached = ktls::attach(socket.as_fd());
    let probed = Offered::probe();
    if has_tls() {
        assert_eq!(refused(attached), Some(libc::ENOTCONN));
        // The kernels of the tests have all of them.
        let offered = probed.unwrap();
        for suite in SUITES {
            assert!(offered.has(suite.version, suite.cipher), "{suite:?}");
        }
    } else {
        assert!(matches!(attached, Err(KtlsError::NoTls)), "{attached:?}");
        let wanted = ProbeError::Tls(KtlsError::NoTls);
        assert_eq!(probed.unwrap_err().to_string(), wanted.to_string());
    }
}
