//! The body of a request, and its rest when the request is answered before the body's end.
//!
//! A body has one owner from the end of its head on. A refusal in the middle of a body reads on
//! where the owner stopped, and so finds the next request.

use std::io;
use std::time::Duration;

use prism_http::{BodyError, BodyReader, CONTINUE, Headers, RequestHead};

use crate::io::{Input, Io};

/// Longest rest of a refused body that is skipped, so that the connection lives on. A longer rest
/// costs more than a new connection.
pub const MAX_SKIP_BYTES: u64 = 256 << 10;
/// Time for the rest to arrive: 256 KiB at 0.5 Mbit/s.
const MAX_SKIP_TIME: Duration = Duration::from_secs(4);

/// The reason why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyFailure {
    /// It is longer than it may be.
    #[error("the body is too long")]
    TooLong,
    /// Its framing is malformed.
    #[error(transparent)]
    Malformed(#[from] BodyError),
    /// The connection broke.
    #[error(transparent)]
    Connection(#[from] io::Error),
}

/// The unread part of a request's body.
#[derive(Debug)]
pub struct RequestBody {
    reader: BodyReader,
    /// The client may wait for `100 Continue` before it sends.
    expects_continue: bool,
    /// Whether a byte of it was read or asked for.
    has_begun: bool,
}

impl RequestBody {
    /// The whole body after `head`; of a chunked one at most `max_bytes`.
    pub fn new(head: &RequestHead, max_bytes: u64) -> Self {
        Self {
            reader: BodyReader::new(head.framing().into(), max_bytes),
            expects_continue: head.expects_continue(),
            has_begun: false,
        }
    }

    /// A body of which an unknown part was read. No request can be found after it.
    pub fn unknown() -> Self {
        Self {
            reader: BodyReader::UntilClose { left: 0 },
            expects_continue: false,
            has_begun: true,
        }
    }

    /// The number of unread bytes, if it is known.
    pub fn left(&self) -> Option<u64> {
        self.reader.left()
    }

    /// Whether the body was read to its end.
    pub fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    /// Whether another owner would miss a part of it.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether it comes in chunks, without a declared length.
    pub fn is_chunked(&self) -> bool {
        matches!(self.reader, BodyReader::Chunked(_))
    }

    /// The trailers of a chunked body that has ended.
    pub fn trailers(&self) -> Option<&Headers> {
        self.reader.trailers()
    }

    /// The reader, which parses the next bytes of the connection.
    pub fn reader(&mut self) -> &mut BodyReader {
        self.has_begun = true;
        &mut self.reader
    }

    /// Sends `100 Continue`, if the client waits for that.
    pub async fn invite(&mut self, io: &mut impl Io) -> io::Result<()> {
        match self.is_held_back(io) {
            true => {
                (self.expects_continue, self.has_begun) = (false, true);
                io.write_all(CONTINUE).await
            }
            false => Ok(()),
        }
    }

    /// Reads the body to its end. Sends `100 Continue` first, if the client waits for that.
    ///
    /// # Errors
    /// The body is longer than `max_bytes`, malformed, or breaks off.
    pub async fn read_to_end(
        &mut self,
        io: &mut impl Io,
        max_bytes: u64,
    ) -> Result<Vec<u8>, BodyFailure> {
        if self.left().is_some_and(|left| left > max_bytes) {
            return Err(BodyFailure::TooLong);
        }
        self.invite(io).await?;
        let mut bytes = Vec::new();
        while !self.is_done() {
            let step = self.reader().consume(io.buffered())?;
            bytes.extend_from_slice(io.buffered().get(step.data).unwrap_or_default());
            io.consume(step.consumed);
            if bytes.len() as u64 > max_bytes {
                return Err(BodyFailure::TooLong);
            }
            if !self.is_done() && io.buffered().is_empty() && io.fill().await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(bytes)
    }

    /// Whether the client waits for `100 Continue`.
    fn is_held_back(&self, io: &impl Input) -> bool {
        self.expects_continue && !self.has_begun && io.buffered().is_empty()
    }

    /// Whether the connection can live on after an answer that does not wait for the rest. After
    /// the answer, [`Self::skip_rest`] has to find the end.
    pub async fn can_skip_rest(&mut self, io: &mut impl Io) -> bool {
        if self.is_done() {
            // An empty body may be expected too: see `RequestHead::expects_continue`.
            return self.invite(io).await.is_ok();
        }
        // A client that was not invited may send its body or its next request.
        let may_be_short = match self.left() {
            Some(left) => left <= MAX_SKIP_BYTES,
            None => self.is_chunked() && !self.reader.is_broken(),
        };
        may_be_short && !self.is_held_back(io)
    }

    /// Skips the rest, in bounded time. Returns whether the next bytes are another request.
    pub async fn skip_rest(&mut self, io: &mut impl Io) -> bool {
        if !self.can_skip_rest(io).await {
            return false;
        }
        let skipping = tokio::time::timeout(MAX_SKIP_TIME, self.skip(io));
        matches!(skipping.await, Ok(true))
    }

    /// Skips the rest after an answer. `answered` and the result: whether the connection lives on.
    pub async fn skip_behind(
        mut self,
        io: &mut impl Io,
        answered: io::Result<bool>,
    ) -> io::Result<bool> {
        Ok(answered? && self.skip_rest(io).await)
    }

    async fn skip(&mut self, io: &mut impl Io) -> bool {
        let mut seen = 0;
        while !self.is_done() {
            if io.buffered().is_empty() && !matches!(io.fill().await, Ok(1..)) {
                return false;
            }
            let Ok(step) = self.reader.consume(io.buffered()) else {
                return false;
            };
            io.consume(step.consumed);
            seen += step.consumed as u64;
            if seen > MAX_SKIP_BYTES {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]

    use std::fs::File;
    use std::time::Instant;

    use super::*;

    /// A client that has sent `sent`, and then is silent or gone.
    #[derive(Default)]
    struct Client {
        sent: Vec<u8>,
        /// Bytes of it that were read.
        seen: usize,
        is_silent: bool,
        told: Vec<u8>,
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
            Ok(())
        }

        async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.write_all(bytes).await
        }

        async fn send_file(&mut self, _: &File, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// A PUT with these header fields, and what its client has sent behind the head.
    fn put(fields: &str, sent: &[u8]) -> (RequestBody, Client) {
        let text = format!("PUT /b/k HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let limits = prism_http::Limits::DEFAULT;
        let (head, _) = RequestHead::parse(text.as_bytes(), &limits)
            .unwrap()
            .unwrap();
        let client = Client {
            sent: sent.to_vec(),
            ..Client::default()
        };
        (RequestBody::new(&head, u64::MAX), client)
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().unwrap().block_on(work)
    }

    /// Reads some of a body as its owner does.
    async fn read_some(body: &mut RequestBody, client: &mut Client) {
        assert!(matches!(client.fill().await, Ok(1..)));
        let step = body.reader().consume(client.buffered()).unwrap();
        client.consume(step.consumed);
    }

    #[test]
    fn the_next_request_is_found_behind_a_body_that_was_read_in_part() {
        let chunked = "Transfer-Encoding: chunked\r\n";
        for (fields, sent) in [
            ("Content-Length: 20\r\n", &b"01234567890123456789GET /"[..]),
            (chunked, b"5\r\n01234\r\n1\r\n5\r\n0\r\n\r\nGET /"),
        ] {
            for times_read in 0..3 {
                let (mut body, mut client) = put(fields, sent);
                block_on(async {
                    for _ in 0..times_read {
                        read_some(&mut body, &mut client).await;
                    }
                    assert!(body.can_skip_rest(&mut client).await);
                    assert!(body.skip_rest(&mut client).await);
                });
                assert_eq!(client.sent, b"GET /", "{fields}, {times_read}");
                assert!(client.told.is_empty());
            }
        }
    }

    #[test]
    fn a_rest_that_is_long_malformed_or_cut_ends_the_connection() {
        for (fields, sent, answers_first) in [
            ("Content-Length: 300000\r\n", &b"0123"[..], false),
            (
                "Content-Length: 300000\r\nConnection: close\r\n",
                b"",
                false,
            ),
            ("Transfer-Encoding: chunked\r\n", b"3\r\n012GET /", true),
        ] {
            let (mut body, mut client) = put(fields, sent);
            block_on(async {
                assert_eq!(body.can_skip_rest(&mut client).await, answers_first);
                assert!(!body.skip_rest(&mut client).await, "{fields}");
                // And does not change its mind.
                client.sent.extend_from_slice(b"\r\n0\r\n\r\n");
                assert!(!body.skip_rest(&mut client).await, "{fields}");
            });
        }
        let (mut cut, mut client) = put("Content-Length: 9\r\n", b"0123");
        assert!(!block_on(cut.skip_rest(&mut client)));
        let (mut chunked, mut client) = put("Transfer-Encoding: chunked\r\n", b"");
        client.sent = b"1\r\n0\r\n".repeat(60_000);
        client.sent.extend_from_slice(b"0\r\n\r\n");
        block_on(async {
            assert!(!chunked.skip_rest(&mut client).await);
            assert!(!RequestBody::unknown().skip_rest(&mut client).await);
        });
    }

    #[test]
    fn a_client_that_stops_in_the_middle_of_its_body_is_not_waited_for_long() {
        let (mut body, mut client) = put("Content-Length: 9\r\n", b"0123");
        client.is_silent = true;
        let begun = Instant::now();
        assert!(!block_on(body.skip_rest(&mut client)));
        assert!(begun.elapsed() < 2 * MAX_SKIP_TIME);
    }

    #[test]
    fn a_client_is_told_to_continue_once_and_not_for_a_refusal() {
        let expects = "Content-Length: 4\r\nExpect: 100-continue\r\n";
        block_on(async {
            let (mut body, mut client) = put(expects, b"");
            assert!(!body.can_skip_rest(&mut client).await);
            assert!(client.told.is_empty());
            body.invite(&mut client).await.unwrap();
            body.invite(&mut client).await.unwrap();
            assert_eq!(client.told, CONTINUE);
            client.sent.extend_from_slice(b"0123GET /");
            assert!(body.skip_rest(&mut client).await);
            assert_eq!(client.told, CONTINUE);
            // Sent unasked, and read behind the answer's head: nobody waits for an invitation.
            let (mut body, mut client) = put(expects, b"0123");
            assert!(client.fill().await.is_ok() && body.can_skip_rest(&mut client).await);
            let step = body.reader().consume(client.buffered()).unwrap();
            client.consume(step.consumed);
            assert!(body.is_done() && body.skip_rest(&mut client).await);
            assert!(client.told.is_empty());
            // For nothing: see `RequestHead::expects_continue`.
            let nothing = "Content-Length: 0\r\nExpect: 100-continue\r\n";
            let (mut body, mut client) = put(nothing, b"");
            assert!(body.can_skip_rest(&mut client).await);
            assert!(body.skip_rest(&mut client).await);
            assert_eq!(client.told, CONTINUE);
        });
    }
}
