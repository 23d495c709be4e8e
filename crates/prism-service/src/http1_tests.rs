#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs::File;
use std::time::Instant;

use prism_http::{Limits, ResponseHead};

use super::*;
use crate::{BodySource, Input};

/// A client that has sent `sent`, and then is silent or gone.
#[derive(Default)]
struct Client {
    sent: Vec<u8>,
    /// Bytes of it that were read.
    seen: usize,
    is_silent: bool,
    told: Vec<u8>,
    writes: usize,
}

impl Input for Client {
    fn buffered(&self) -> &[u8] {
        &self.sent[..self.seen]
    }

    fn consume(&mut self, n: usize) {
        self.sent.drain(..n);
        self.seen -= n;
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let more = (self.sent.len() - self.seen).min(7);
        self.seen += more;
        match more == 0 && self.is_silent {
            true => std::future::pending().await,
            false => Ok(more),
        }
    }
}

impl Io for Client {
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.told.extend_from_slice(bytes);
        self.writes += 1;
        Ok(())
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await
    }

    async fn send_file(&mut self, _: &File, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A request with its client, which has sent `body` behind the head.
fn sent(start: &str, fields: &str, body: &[u8]) -> (RequestHead, Client) {
    let text = format!("{start}\r\nHost: h\r\n{fields}\r\n");
    let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
    let (head, _) = parsed.unwrap().unwrap();
    let client = Client {
        sent: [text.as_bytes(), body].concat(),
        seen: text.len(),
        ..Client::default()
    };
    (head, client)
}

fn put(fields: &str, body: &[u8]) -> (RequestHead, Client) {
    sent("PUT /b/k HTTP/1.1", fields, body)
}

fn exchange<'c>(client: &'c mut Client, head: &RequestHead) -> Http1<'c, Client> {
    let parts = Http1Parts {
        id: 7,
        head_bytes: client.seen,
        ..Http1Parts::default()
    };
    Http1::new(client, head, parts)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap().block_on(work)
}

/// Answers 200 without a body, and returns whether the connection lives on.
async fn answer(exchange: &mut Http1<'_, Client>) -> bool {
    exchange.begin(&ResponseHead::new(200), None, Some(0));
    exchange.end(None).await.unwrap();
    exchange.is_open()
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn the_next_request_is_found_behind_a_body_that_was_read_in_part() {
    for (fields, body) in [
        ("Content-Length: 20\r\n", &b"01234567890123456789GET /"[..]),
        (
            "Transfer-Encoding: chunked\r\n",
            b"5\r\n01234\r\n1\r\n5\r\n0\r\n\r\nGET /",
        ),
    ] {
        for times_read in 0..3 {
            let (head, mut client) = put(fields, body);
            block_on(async {
                let mut exchange = exchange(&mut client, &head);
                assert!(exchange.is_untouched());
                for _ in 0..times_read {
                    assert!(exchange.read(&mut [0; 5]).await.is_ok());
                    assert!(!exchange.is_untouched());
                }
                assert!(answer(&mut exchange).await, "{fields}, {times_read}");
            });
            assert_eq!(client.sent, b"GET /", "{fields}, {times_read}");
            assert_eq!(client.told, ANSWER);
        }
    }
}

#[test]
fn a_rest_that_is_long_malformed_or_cut_ends_the_connection() {
    let long = [&b"1\r\n0\r\n".repeat(60_000)[..], b"0\r\n\r\n"].concat();
    for (fields, body, says_close) in [
        ("Content-Length: 300000\r\n", &b"0123"[..], true),
        ("Content-Length: 9\r\nConnection: close\r\n", b"", true),
        ("Content-Length: 9\r\n", b"0123", false),
        ("Transfer-Encoding: chunked\r\n", b"3\r\n012GET /", false),
        ("Transfer-Encoding: chunked\r\n", &long, false),
    ] {
        let (head, mut client) = put(fields, body);
        assert!(!block_on(answer(&mut exchange(&mut client, &head))));
        let told = String::from_utf8(client.told).unwrap();
        assert_eq!(told.contains("Connection: close"), says_close, "{fields}");
    }
    let mut client = Client::default();
    let mut unread = Http1::without_head(&mut client, Http1Parts::default());
    assert!(!block_on(answer(&mut unread)));
}

#[test]
fn a_client_that_stops_in_the_middle_of_its_body_is_not_waited_for_long() {
    let (head, mut client) = put("Content-Length: 9\r\n", b"0123");
    client.is_silent = true;
    let begun = Instant::now();
    assert!(!block_on(answer(&mut exchange(&mut client, &head))));
    assert!(begun.elapsed() < 2 * MAX_SKIP_TIME);
}

#[test]
fn a_client_is_told_to_continue_once_and_not_for_a_refusal() {
    let expects = "Content-Length: 4\r\nExpect: 100-continue\r\n";
    block_on(async {
        let (head, mut client) = put(expects, b"");
        assert!(!answer(&mut exchange(&mut client, &head)).await);
        assert!(!client.told.starts_with(CONTINUE));
        let (head, mut client) = put(expects, b"");
        let mut invited = exchange(&mut client, &head);
        invited.invite().await.unwrap();
        invited.invite().await.unwrap();
        invited.io.sent.extend_from_slice(b"0123GET /");
        assert!(answer(&mut invited).await);
        assert_eq!(client.told, [CONTINUE, ANSWER].concat());
        // Sent unasked, and read behind the head: nobody waits for an invitation.
        let (head, mut client) = put(expects, b"0123");
        client.seen += 4;
        client.sent.extend_from_slice(b"GET /");
        let mut unasked = exchange(&mut client, &head);
        unasked.head_bytes -= 4;
        assert!(answer(&mut unasked).await);
        assert_eq!(client.told, ANSWER);
        // For nothing: see `RequestHead::expects_continue`.
        let (head, mut client) = put("Content-Length: 0\r\nExpect: 100-continue\r\n", b"");
        assert!(answer(&mut exchange(&mut client, &head)).await);
        assert_eq!(client.told, [CONTINUE, ANSWER].concat());
    });
}

#[test]
fn an_answer_is_framed_as_its_client_can_read_it_and_recorded() {
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    for (start, length, text, is_open, body_bytes) in [
        (
            "GET / HTTP/1.1",
            Some(5),
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
            true,
            5,
        ),
        ("GET / HTTP/1.1", None, chunked, true, 5),
        (
            "GET / HTTP/1.0",
            None,
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde",
            false,
            5,
        ),
        (
            "HEAD / HTTP/1.1",
            Some(5),
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            true,
            0,
        ),
        // The body ends before its declared length.
        (
            "GET / HTTP/1.1",
            Some(6),
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcde",
            false,
            5,
        ),
    ] {
        let (head, mut client) = sent(start, "", b"");
        let (open, record) = block_on(async {
            let mut exchange = exchange(&mut client, &head);
            exchange.begin(&ResponseHead::new(200), None, length);
            exchange.put(b"abc");
            exchange.data(b"de").await.unwrap();
            exchange.end(None).await.unwrap();
            (exchange.is_open(), exchange.end_exchange().0)
        });
        assert_eq!(String::from_utf8(client.told).unwrap(), text);
        assert_eq!((open, record.body_bytes), (is_open, body_bytes), "{text}");
        assert_eq!(record.status, Some(200));
    }
}

#[test]
fn a_tunnel_has_no_form_behind_the_body() {
    let (head, mut client) = sent("GET / HTTP/1.1", "Content-Length: 2\r\n", b"01raw");
    block_on(async {
        let mut exchange = exchange(&mut client, &head);
        exchange.begin_tunnel(&ResponseHead::new(101), b"a/1");
        exchange.put(b"x");
        exchange.flush().await.unwrap();
        assert_eq!(exchange.fill().await.unwrap(), 5);
        let mut taken = Vec::new();
        for _ in 0..2 {
            let took = exchange.take_body(2, |piece| taken.push(piece.to_vec()));
            took.unwrap();
        }
        assert_eq!(taken, [&b"01"[..], b"ra"]);
        assert!(!exchange.is_open());
    });
    let expected =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: a/1\r\n\r\nx";
    assert_eq!(String::from_utf8(client.told).unwrap(), expected);
}
