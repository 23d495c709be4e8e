//! Clients that send much before they read, clients that leave, and bodies in many chunks.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use prism_http::{BodyReader, ResponseFraming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream as ClientStream;

use crate::bed::{Bed, Served, Server, act, read, write};

/// More than the buffers of all kernels hold.
const LEN: usize = 12 << 20;
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

fn letters(len: usize) -> Vec<u8> {
    (0..len).map(|n| b'a' + (n * 7 % 26) as u8).collect()
}

/// `data` in chunks of `bytes`, with the last one.
fn chunked(data: &[u8], bytes: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for chunk in data.chunks(bytes) {
        prism_http::write_chunk(chunk, &mut body);
    }
    [&body, &LAST_CHUNK[2..]].concat()
}

/// The data of a whole body in chunks.
fn data_of(mut body: &[u8]) -> Vec<u8> {
    let mut reader = BodyReader::new(ResponseFraming::Chunked, u64::MAX);
    let mut data = Vec::new();
    while !reader.is_done() {
        let step = reader.consume(body).unwrap();
        data.extend_from_slice(&body[step.data]);
        body = &body[step.consumed..];
    }
    data
}

/// Reads until the end of the stream or a last chunk, and gives each piece to `take`.
fn read_pieces(mut stream: &TcpStream, mut take: impl FnMut(&[u8])) {
    let (mut piece, mut tail) = (vec![0; 64 << 10], Vec::new());
    while !tail.ends_with(LAST_CHUNK) {
        let read = stream.read(&mut piece).unwrap();
        if read == 0 {
            return;
        }
        take(&piece[..read]);
        tail.drain(..tail.len().saturating_sub(LAST_CHUNK.len()));
        tail.extend_from_slice(&piece[read.saturating_sub(LAST_CHUNK.len())..read]);
    }
}

/// Sends back all that comes, and reads on while nobody takes it.
fn echo(mut stream: &TcpStream) {
    let (sender, receiver) = mpsc::channel::<Vec<u8>>();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            for piece in receiver {
                // The other side may have left.
                if stream.write_all(&piece).is_err() {
                    return;
                }
            }
        });
        read_pieces(stream, |piece| drop(sender.send(piece.to_vec())));
        drop(sender);
    });
}

/// Sends everything, and reads everything then.
async fn send_and_read(mut client: ClientStream, parts: &[&[u8]]) -> Vec<u8> {
    let mut got = Vec::new();
    for part in parts {
        // If the connection ends early, what was got shows it.
        if client.write_all(part).await.is_err() {
            break;
        }
    }
    let _ = client.shutdown().await;
    let _ = client.read_to_end(&mut got).await;
    got
}

/// The body behind a head.
fn body_of(answer: &[u8]) -> &[u8] {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    &answer[head.unwrap() + 4..]
}

#[test]
fn a_client_of_a_tunnel_may_send_everything_before_it_reads() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        write(stream, b"HTTP/1.1 101 \r\nUpgrade: echo\r\n\r\n", 1);
        echo(stream);
    })]);
    let bed = Bed::new(server.address, 1, |upstream| upstream.answer_timeout_s = 20);
    let head = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let sent = letters(LEN);
    let (got, served) = bed.with_client(async |client| send_and_read(client, &[head, &sent]).await);
    assert_eq!(served.unwrap(), Served::Closed);
    assert!(body_of(&got) == sent, "{} bytes", got.len());
    server.join();
}

#[test]
fn a_request_with_a_body_may_become_a_tunnel_behind_it() {
    let body = b"{\"Tty\":false}";
    let in_chunks = chunked(body, 5);
    for (framing, body, is_early) in [
        (format!("Content-Length: {}", body.len()), &body[..], false),
        (format!("Content-Length: {}", body.len()), body, true),
        ("Content-Length: 0".into(), b"", false),
        ("Transfer-Encoding: chunked".into(), &in_chunks, false),
        ("Transfer-Encoding: chunked".into(), &in_chunks, true),
    ] {
        let (sent, behind) = (body.to_vec(), b"stdin of the process".to_vec());
        let expected = [sent.clone(), behind.clone()].concat();
        let server = Server::new(vec![act(move |stream| {
            read(stream, 0);
            let consent = b"HTTP/1.1 101 \r\nUpgrade: tcp\r\n\r\n";
            if is_early {
                write(stream, consent, 1);
            }
            let mut came = vec![0; expected.len()];
            stream.read_exact(&mut came[..sent.len()]).unwrap();
            if !is_early {
                write(stream, consent, 1);
            }
            stream.read_exact(&mut came[sent.len()..]).unwrap();
            assert_eq!(came, expected);
            write(stream, b"stdout", 1);
        })]);
        let bed = Bed::new(server.address, 1, |_| {});
        let head = format!(
            "POST /exec HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n{framing}\r\n\r\n"
        );
        let parts = [head.as_bytes(), body, &behind];
        let (got, served) = bed.with_client(async |client| send_and_read(client, &parts).await);
        assert_eq!(served.unwrap(), Served::Closed);
        assert_eq!(body_of(&got), b"stdout", "{framing}");
        server.join();
    }
}

#[test]
fn a_client_may_send_its_whole_body_while_the_answer_has_begun() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        write(stream, head, 1);
        echo(stream);
    })]);
    let bed = Bed::new(server.address, 1, |upstream| upstream.answer_timeout_s = 20);
    let head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let sent = letters(LEN);
    let body = chunked(&sent, 8_000);
    let (got, served) = bed.with_client(async |client| send_and_read(client, &[head, &body]).await);
    assert_eq!(served.unwrap(), Served::Open);
    assert!(data_of(body_of(&got)) == sent, "{} bytes", got.len());
    server.join();
}

#[test]
fn chunks_that_come_together_leave_together() {
    let sent = letters(30_000);
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        let mut body = Vec::new();
        read_pieces(stream, |piece| body.extend_from_slice(piece));
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let answer = [&head[..], &chunked(&data_of(&body), 1)].concat();
        stream.write_all(&answer).unwrap();
    })]);
    let bed = Bed::new(server.address, 1, |_| {});
    let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked";
    let end = bed.ask(head, &chunked(&sent, 1));
    server.join();
    assert_eq!(end.served.unwrap(), Served::Open);
    assert_eq!(data_of(body_of(&end.client.got)), sent);
    let (writes, waits) = (end.client.writes, end.client.waits);
    assert!(writes < 1_000 && waits < 1_000, "{writes}, {waits}");
}

#[test]
fn a_client_that_has_reset_its_connection_is_not_answered() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        let limit = Some(Duration::from_secs(5));
        stream.set_read_timeout(limit).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    })]);
    let bed = Bed::new(server.address, 1, |upstream| upstream.answer_timeout_s = 30);
    let ((), served) = bed.with_client(async |mut client| {
        client.write_all(GET).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.set_zero_linger().unwrap();
    });
    assert!(served.is_err());
    server.join();
}

#[test]
fn a_client_that_has_ended_its_direction_is_answered() {
    let server = Server::new(vec![act(|stream| {
        read(stream, 0);
        std::thread::sleep(Duration::from_millis(200));
        write(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 1);
    })]);
    let bed = Bed::new(server.address, 1, |_| {});
    let (got, served) = bed.with_client(async |client| send_and_read(client, &[GET]).await);
    assert_eq!(served.unwrap(), Served::Open);
    assert_eq!(body_of(&got), b"hi");
    server.join();
}
