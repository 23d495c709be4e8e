//! Relay streams over connections on loopback: the bytes that are written are read, in whatever
//! pieces they arrive, and idle streams hold no buffers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

use std::future::poll_fn;
use std::io::Write;
use std::pin::pin;
use std::task::Poll;

use prism_tls::{DirectionKeys, Event, Secret, Session, SessionKeys, Suite};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;

/// Both ends of one session.
fn sessions() -> (Session, Session) {
    let direction = |seed| DirectionKeys::Tls13 {
        secret: Secret::new(&[seed; 32]).unwrap(),
        sequence: 0,
    };
    let session = |read, write| {
        Session::new(SessionKeys {
            suite: Suite::Aes128Gcm,
            read: direction(read),
            write: direction(write),
        })
        .unwrap()
    };
    (session(1, 2), session(2, 1))
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(connecting, listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

fn stream(tcp: TcpStream, session: Session, spare: &Rc<Spare>) -> RelayStream {
    let secured = Secured {
        tcp,
        session,
        sealed: Vec::new(),
        has_passes: false,
        form: Form::Entries,
        admitted: None,
    };
    RelayStream::new(secured, spare.clone(), None)
}

async fn streams() -> (RelayStream, RelayStream) {
    let ((a, b), (near, far), spare) = (sockets().await, sessions(), Rc::default());
    (stream(a, near, &spare), stream(b, far, &spare))
}

/// A stream, and a bare connection at its other end.
async fn half() -> (RelayStream, TcpStream, Session) {
    let ((a, b), (near, far)) = (sockets().await, sessions());
    (stream(a, near, &Rc::default()), b, far)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

async fn read_exactly(from: &mut RelayStream, len: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < len {
        if from.buffered().is_empty() {
            assert!(from.fill().await.unwrap() > 0);
        }
        let part = &from.buffered()[..from.buffered().len().min(len - read.len())];
        read.extend_from_slice(part);
        let part_bytes = part.len();
        from.consume(part_bytes);
    }
    read
}

#[tokio::test]
async fn what_is_written_is_read_and_nothing_is_kept() {
    let (mut near, mut far) = streams().await;
    for len in [0, 1, 100, 16_384, 16_385, 65_536, 131_073, 1 << 20] {
        let sent = bytes(len);
        let writing = async {
            near.write(&sent).await.unwrap();
            near.flush().await.unwrap();
        };
        let (read, ()) = tokio::join!(read_exactly(&mut far, len), writing);
        assert!(read == sent, "{len}");
        for stream in [&near, &far] {
            assert!(stream.is_clean());
            let wire = &stream.0.wire;
            assert_eq!(wire.input.capacity() + wire.output.capacity(), 0, "{len}");
        }
        // The other direction.
        far.write(b"ok").await.unwrap();
        far.flush().await.unwrap();
        assert_eq!(read_exactly(&mut near, 2).await, b"ok");
    }
}

#[tokio::test]
async fn a_part_of_a_file_is_sent_behind_what_was_written() {
    let (mut near, mut far) = streams().await;
    let (sent, mut file) = (bytes(300_000), tempfile::tempfile().unwrap());
    file.write_all(&sent).unwrap();
    let writing = async {
        near.write(b"head").await.unwrap();
        near.send_file(&file, 1_000, 290_000).await.unwrap();
    };
    let (read, ()) = tokio::join!(read_exactly(&mut far, 290_004), writing);
    assert!(read[..4] == *b"head" && read[4..] == sent[1_000..291_000]);
    let past = near.send_file(&file, 299_999, 2).await;
    assert_eq!(past.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn records_may_come_in_pieces_and_many_at_once() {
    let (mut stream, mut other, mut session) = half().await;
    let (mut sealed, sent) = (Vec::new(), bytes(40_000));
    for part in sent.chunks(777) {
        session.seal(part, &mut sealed).unwrap();
    }
    let writing = async {
        // The cuts are within headers, within bodies, and between records.
        let mut rest = &sealed[..];
        for n in (1..).take_while(|n| *n < 400) {
            let (piece, behind) = rest.split_at(rest.len().min(n % 97 + 1));
            tokio::io::AsyncWriteExt::write_all(&mut other, piece)
                .await
                .unwrap();
            rest = behind;
            tokio::task::yield_now().await;
        }
        tokio::io::AsyncWriteExt::write_all(&mut other, rest)
            .await
            .unwrap();
    };
    let reading = async {
        // Nothing is consumed until all has arrived, so it is in one piece.
        while stream.buffered().len() < sent.len() {
            assert!(stream.fill().await.unwrap() > 0);
        }
        assert!(stream.buffered() == sent);
        stream.consume(1);
        assert!(stream.buffered() == &sent[1..]);
        stream.consume(usize::MAX - 1);
        assert!(stream.is_clean());
    };
    tokio::join!(writing, reading);
}

#[tokio::test]
async fn a_read_that_was_given_up_has_lost_nothing() {
    let (mut stream, mut other, mut session) = half().await;
    let mut sealed = Vec::new();
    session.seal(b"hello", &mut sealed).unwrap();
    for byte in &sealed {
        {
            let mut reading = pin!(stream.fill());
            let once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
            assert!(once.is_pending());
        }
        tokio::io::AsyncWriteExt::write_all(&mut other, &[*byte])
            .await
            .unwrap();
        stream.0.wire.tcp.readable().await.unwrap();
    }
    assert_eq!(stream.fill().await.unwrap(), 5);
    assert_eq!(stream.buffered(), b"hello");
}

#[tokio::test]
async fn the_end_of_the_session_is_told_from_that_of_the_connection() {
    let (mut stream, mut other, mut session) = half().await;
    let mut sealed = Vec::new();
    session.seal(b"last", &mut sealed).unwrap();
    session.seal_close_notify(&mut sealed).unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut other, &sealed)
        .await
        .unwrap();
    assert_eq!(read_exactly(&mut stream, 4).await, b"last");
    assert_eq!(stream.fill().await.unwrap(), 0);
    assert!(!stream.is_clean());

    let (mut stream, other, _) = half().await;
    drop(other);
    let ended = stream.fill().await.unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_record_that_was_changed_ends_the_stream_and_the_peer_is_told() {
    let (mut stream, mut other, mut session) = half().await;
    let mut sealed = Vec::new();
    session.seal(b"hello", &mut sealed).unwrap();
    *sealed.last_mut().unwrap() ^= 1;
    tokio::io::AsyncWriteExt::write_all(&mut other, &sealed)
        .await
        .unwrap();
    let refused = stream.fill().await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    let mut alert = vec![0; 100];
    let len = other.read(&mut alert).await.unwrap();
    let opened = session.open(&mut alert[..len]).unwrap();
    assert!(matches!(opened.event, Event::Aborted(_)), "{opened:?}");
    assert!(stream.fill().await.is_err());
}

#[tokio::test]
async fn silence_and_a_peer_that_takes_nothing_end_in_time() {
    let (mut near, _far) = streams().await;
    near.set_io_timeout(Duration::from_millis(50));
    let read = near.fill().await.unwrap_err();
    assert_eq!(read.kind(), io::ErrorKind::TimedOut);
    let written = near.write(&bytes(64 << 20)).await.unwrap_err();
    assert_eq!(written.kind(), io::ErrorKind::TimedOut);
}

/// Sends all of `sent` and reads as much. Each wait is given up once, and begun again.
async fn exchange(stream: &mut RelayStream, sent: &[u8]) -> Vec<u8> {
    let (mut rest, mut read) = (sent, Vec::new());
    let mut given_up = 0;
    while read.len() < sent.len() || !rest.is_empty() {
        let reads = read.len() < sent.len();
        let begun = poll_once(pin!(stream.write_or_fill(rest, reads))).await;
        let step = match begun {
            Poll::Ready(step) => step,
            Poll::Pending => {
                given_up += 1;
                stream.write_or_fill(rest, reads).await
            }
        };
        match step {
            RelayStep::Read(filled) => {
                assert!(filled.unwrap() > 0);
                let filled = stream.buffered().len();
                read.extend_from_slice(stream.buffered());
                stream.consume(filled);
            }
            RelayStep::Written(written) => rest = &rest[written.unwrap()..],
        }
    }
    assert!(given_up > 0, "no wait was given up");
    read
}

#[tokio::test]
async fn both_ends_send_more_than_the_network_holds_before_they_have_read() {
    let ((mut near, mut far), sent) = (streams().await, bytes(24 << 20));
    let both = async { tokio::join!(exchange(&mut near, &sent), exchange(&mut far, &sent)) };
    let (here, there) = tokio::time::timeout(Duration::from_secs(20), both)
        .await
        .unwrap();
    assert!(here == sent && there == sent);
    assert!(near.is_clean() && far.is_clean());
    near.set_io_timeout(Duration::from_millis(50));
    let step = near.write_or_fill(&[], true).await;
    let is_silent =
        |step| matches!(step, RelayStep::Read(Err(e)) if e.kind() == io::ErrorKind::TimedOut);
    assert!(is_silent(step));
}

#[tokio::test]
async fn a_write_goes_on_where_a_step_was_given_up() {
    let ((mut near, mut far), sent) = (streams().await, bytes(24 << 20));
    let mut rest = &sent[..];
    // Until the network holds no more.
    while let Poll::Ready(step) = poll_once(pin!(near.write_or_fill(rest, false))).await {
        match step {
            RelayStep::Written(written) => rest = &rest[written.unwrap()..],
            RelayStep::Read(_) => unreachable!(),
        }
    }
    assert!(!near.is_clean());
    let writing = async {
        near.write(rest).await.unwrap();
        near.flush().await.unwrap();
    };
    let ((), read) = tokio::join!(writing, read_exactly(&mut far, sent.len()));
    assert!(read == sent && near.is_clean());
}

#[tokio::test]
async fn a_stream_that_is_closed_says_so_and_one_that_is_dropped_does_not() {
    let (mut near, far) = streams().await;
    far.close().await;
    assert_eq!(near.fill().await.unwrap(), 0);
    let (mut near, far) = streams().await;
    drop(far);
    let cut = near.fill().await.map_err(|e| e.kind());
    assert_eq!(cut, Err(io::ErrorKind::UnexpectedEof));
}
