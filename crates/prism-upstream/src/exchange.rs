//! One request and its answer between a client and a server: bytes in both directions at the same
//! time, with at most two buffers of 64 KiB.
//!
//! Not here: which server, and whether a request that failed is sent again (`service.rs`).

use std::io;
use std::time::Duration;

use prism_http::{
    BodyError, BodyFraming, BodyReader, Exchange, HeadError, Headers, Limits, Method,
    ResponseFraming, ResponseHead, Version, write_chunk, write_last_chunk,
};
use prism_service::{BodyFailure, Io, Request, RequestBody};

use crate::at_work::AtWork;
use crate::retry::Failure;
use crate::server::{Server, write_some};
use crate::service::Meaning;

/// The longest wait for `100 Continue`, after which the body is sent nevertheless: a server may
/// not know `Expect` (RFC 9110, section 10.1.1).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);
/// The longest wait for the end of an answer of unknown length that may be short.
const SHORT_WAIT: Duration = Duration::from_millis(10);
/// If less of a body is left, it is copied: a pipe would cost more.
const SPLICE_BYTES: u64 = 32 << 10;
/// The longest body that leaves with its head in one write.
const SHORT_BYTES: usize = 16 << 10;
/// Body bytes that are taken from the client at once.
const PIECE_BYTES: usize = 64 << 10;

/// The reason why an exchange failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The server did not answer. The client has got nothing.
    Server(Failure),
    /// The body of the request is malformed or too long. The client has got nothing.
    Body(BodyFailure),
    /// The connection to the client broke, or the answer broke off.
    Connection(io::Error),
}

impl From<BodyError> for Fault {
    fn from(error: BodyError) -> Self {
        Self::Body(error.into())
    }
}

impl From<HeadError> for Fault {
    fn from(_: HeadError) -> Self {
        Self::Server(Failure::Malformed)
    }
}

/// A step of an exchange.
enum Step {
    /// Bytes went to the server, or came from the client.
    Sent,
    /// Bytes came from the server.
    Came,
    /// The server has ended its direction.
    Ended,
    /// The server was silent for long enough.
    Silent,
}

/// An answer that was sent to the client.
pub(crate) struct Passed {
    /// Whether the client's connection may live on.
    pub(crate) keep_alive: bool,
    /// Whether the server's connection may have another request.
    pub(crate) is_reusable: bool,
}

/// An exchange under way.
pub(crate) struct Transfer<'t, I> {
    pub(crate) io: &'t mut I,
    pub(crate) server: &'t mut Server,
    pub(crate) body: &'t mut RequestBody,
    /// The longest silence of the server.
    pub(crate) timeout: Duration,
    /// For a relaying node, until the answer begins.
    pub(crate) at_work: Option<AtWork>,
    /// Bytes for the server, of which the first `sent` have left.
    waiting: Vec<u8>,
    sent: usize,
    /// Whether the server gets the body now.
    sends_body: bool,
    /// Whether the server takes no more bytes.
    is_deaf: bool,
}

impl<'t, I: Io> Transfer<'t, I> {
    /// An exchange of `request` with `server`.
    pub(crate) fn new(
        io: &'t mut I,
        server: &'t mut Server,
        body: &'t mut RequestBody,
        request: &Request<Meaning>,
        timeout: Duration,
    ) -> Self {
        let head = &request.head;
        // A relaying node holds every body back, and its client need not wait for the server.
        let asks = head.expects_continue() && !request.is_relayed && io.buffered().is_empty();
        let asks = asks && !body.is_done();
        let mut extra = Headers::new();
        if asks {
            // Never an error: name and value are well-formed.
            let _ = extra.append("Expect", "100-continue");
        }
        // A relayed connection would not become a tunnel.
        if let Some(protocol) = request
            .meaning
            .upgrade
            .as_ref()
            .filter(|_| !request.is_relayed)
        {
            let _ = extra.append("Connection", "upgrade");
            let _ = extra.append("Upgrade", protocol.as_bytes());
        }
        let mut waiting = std::mem::take(&mut server.preface);
        waiting.reserve(1024);
        head.write_forward(head.framing(), &extra, &mut waiting);
        Self {
            waiting,
            sends_body: !asks && head.framing() != BodyFraming::None,
            ..Self::begun(io, server, body, timeout)
        }
    }

    /// An exchange whose answer has begun.
    pub(crate) fn begun(
        io: &'t mut I,
        server: &'t mut Server,
        body: &'t mut RequestBody,
        timeout: Duration,
    ) -> Self {
        Self {
            io,
            server,
            body,
            timeout,
            at_work: None,
            waiting: Vec::new(),
            sent: 0,
            sends_body: true,
            is_deaf: false,
        }
    }

    /// Sends the request until the final answer begins, and returns its head.
    pub(crate) async fn answer(&mut self, exchange: &Exchange<'_>) -> Result<ResponseHead, Fault> {
        if self.body.is_chunked() && !self.body.has_begun() {
            // A body that is malformed from the beginning reaches no server.
            check_chunks(self.io.buffered())?;
        }
        if self.sends_body {
            self.invite().await?;
        }
        let mut has_begun = false;
        loop {
            let parsed = ResponseHead::parse(self.server.input.buffered(), &Limits::ANSWER)?;
            if let Some((head, len)) = parsed {
                self.server.input.consume(len);
                has_begun = true;
                match head.status() {
                    100 => self.invite().await?,
                    102..=199 => self.pass_interim(head, exchange).await?,
                    _ => {
                        self.at_work = None;
                        return Ok(head);
                    }
                }
                continue;
            }
            match self.step().await? {
                Step::Sent => {}
                Step::Came => has_begun = true,
                Step::Ended if has_begun => return Err(Fault::Server(Failure::Malformed)),
                Step::Ended => {
                    let was_idle = self.server.was_idle;
                    return Err(Fault::Server(Failure::Ended { was_idle }));
                }
                Step::Silent if self.sends_body || self.body.is_done() => {
                    return Err(Fault::Server(Failure::Silent));
                }
                Step::Silent => self.invite().await?,
            }
        }
    }

    /// Lets the client send its body.
    async fn invite(&mut self) -> Result<(), Fault> {
        self.sends_body = true;
        let invited = self.body.invite(self.io).await;
        invited.map_err(Fault::Connection)
    }

    async fn pass_interim(
        &mut self,
        mut head: ResponseHead,
        exchange: &Exchange<'_>,
    ) -> Result<(), Fault> {
        if exchange.version == Version::Http10 {
            return Ok(());
        }
        head.remove_hop_by_hop();
        let mut bytes = Vec::with_capacity(256);
        let _ = head.write_to(exchange, None, &mut bytes);
        let sent = self.io.write_all(&bytes).await;
        sent.map_err(Fault::Connection)
    }

    /// Whether the body of an answer whose head has come has at most `max_bytes`. An answer of
    /// unknown length is short if it ends at once.
    pub(crate) async fn is_short(
        &mut self,
        answer: &ResponseHead,
        method: &Method,
        max_bytes: u32,
    ) -> Result<bool, Fault> {
        let framing = answer.framing(method)?;
        match framing {
            ResponseFraming::None => return Ok(true),
            ResponseFraming::Length(bytes) => return Ok(bytes <= max_bytes.into()),
            ResponseFraming::Chunked | ResponseFraming::UntilClose => {}
        }
        let Server { stream, input, .. } = &mut *self.server;
        let deadline = tokio::time::Instant::now() + SHORT_WAIT;
        loop {
            match ends_within(input.buffered(), framing, max_bytes) {
                Some(ends) => return Ok(ends),
                None => {
                    let filled = tokio::time::timeout_at(deadline, input.fill(stream)).await;
                    match filled {
                        Ok(Ok(1..)) => {}
                        // The next read finds the end again.
                        Ok(Ok(0)) => return Ok(framing == ResponseFraming::UntilClose),
                        Ok(Err(_)) | Err(_) => return Ok(false),
                    }
                }
            }
        }
    }

    /// Sends the client an answer whose head has come, and the server the rest of the body.
    pub(crate) async fn pass(
        &mut self,
        mut answer: ResponseHead,
        exchange: &Exchange<'_>,
    ) -> Result<Passed, Fault> {
        let (status, framing) = (answer.status(), answer.framing(exchange.method)?);
        let body_bytes = answer.declared_length()?;
        let server_stays = answer.keep_alive() && framing != ResponseFraming::UntilClose;
        let keep_alive = exchange.keep_alive && self.body.can_skip_rest(self.io).await;
        // The server's own, if it has sent one.
        let date = answer.headers().get_str("date").map(str::to_owned);
        let exchange = Exchange {
            keep_alive,
            date: date.as_deref().unwrap_or(exchange.date),
            ..*exchange
        };
        answer.remove_hop_by_hop();
        let mut head = Vec::with_capacity(512);
        let written = answer.write_to(&exchange, body_bytes, &mut head);
        let mut reader = BodyReader::new(framing, u64::MAX);
        let short = self.take_short(&mut reader, &mut head)?;
        let follows_at_once = !reader.is_done() && !self.server.input.buffered().is_empty();
        let sent = match follows_at_once {
            true => self.io.write_more(&head).await,
            false => self.io.write_all(&head).await,
        };
        sent.map_err(Fault::Connection)?;
        let passed_bytes = self.pass_body(&mut reader, written.framing).await;
        let passed_bytes = short + passed_bytes.map_err(broken_off)?;
        if let Some(noted) = exchange.noted {
            noted.set_answer(status, passed_bytes);
        }
        let is_whole = self.is_request_sent();
        Ok(Passed {
            keep_alive: written.keep_alive,
            is_reusable: server_stays && reader.is_done() && is_whole,
        })
    }

    /// Adds a short body of known length that has come to the head, so that one write sends both.
    /// Returns its bytes.
    fn take_short(&mut self, reader: &mut BodyReader, head: &mut Vec<u8>) -> Result<u64, Fault> {
        let input = &mut self.server.input;
        let left = reader.left().and_then(|left| usize::try_from(left).ok());
        let Some(left) = left.filter(|left| *left <= input.buffered().len().min(SHORT_BYTES))
        else {
            return Ok(0);
        };
        let step = reader.consume(input.buffered())?;
        head.extend_from_slice(input.buffered().get(step.data).unwrap_or_default());
        input.consume(step.consumed);
        Ok(left as u64)
    }

    /// Returns the number of bytes.
    async fn pass_body(
        &mut self,
        reader: &mut BodyReader,
        to_client: ResponseFraming,
    ) -> Result<u64, Fault> {
        let (mut chunk, mut passed_bytes) = (Vec::new(), 0);
        let is_chunked = to_client == ResponseFraming::Chunked;
        let mut may_splice = true;
        while !reader.is_done() {
            let is_request_sent = self.is_request_sent();
            let input = &mut self.server.input;
            if input.buffered().is_empty() {
                let left = reader.left().filter(|left| *left >= SPLICE_BYTES);
                if let Some(left) = left.filter(|_| may_splice && is_request_sent) {
                    let stream = &self.server.stream;
                    let sent = self.io.send_stream(stream, left, self.timeout).await;
                    let sent = sent.map_err(Fault::Connection)?;
                    reader.skip(sent);
                    passed_bytes += sent;
                    may_splice = sent > 0;
                    continue;
                }
                match self.step().await? {
                    Step::Sent | Step::Came => continue,
                    Step::Ended => {
                        reader.end_of_input()?;
                        break;
                    }
                    Step::Silent => return Err(Fault::Server(Failure::Silent)),
                }
            }
            let step = reader.consume(input.buffered())?;
            let data = input.buffered().get(step.data).unwrap_or_default();
            passed_bytes += data.len() as u64;
            let sent = match is_chunked {
                true => {
                    chunk.clear();
                    write_chunk(data, &mut chunk);
                    self.io.write_all(&chunk).await
                }
                false => self.io.write_all(data).await,
            };
            sent.map_err(Fault::Connection)?;
            input.consume(step.consumed);
        }
        if is_chunked {
            chunk.clear();
            write_last_chunk(reader.trailers(), &mut chunk);
            let sent = self.io.write_all(&chunk).await;
            sent.map_err(Fault::Connection)?;
        }
        Ok(passed_bytes)
    }

    /// Whether the server has all of the request.
    fn is_request_sent(&self) -> bool {
        self.body.is_done() && self.sent == self.waiting.len() && !self.is_deaf
    }

    /// Waits until bytes can go on in one direction, and moves them.
    async fn step(&mut self) -> Result<Step, Fault> {
        let has_waiting = self.sent < self.waiting.len() && !self.is_deaf;
        let wants_body = self.sends_body && !self.is_deaf && !self.body.is_done();
        if !has_waiting && wants_body && !self.io.buffered().is_empty() {
            self.take_body()?;
            return Ok(Step::Sent);
        }
        let Server { stream, input, .. } = &mut *self.server;
        if !has_waiting && wants_body {
            // The client's own timeout applies.
            return tokio::select! {
                filled = input.fill(stream) => Ok(came(filled)),
                read = self.io.fill() => match read {
                    Ok(0) => Err(Fault::Connection(io::ErrorKind::UnexpectedEof.into())),
                    Ok(_) => Ok(Step::Sent),
                    Err(error) => Err(Fault::Connection(error)),
                },
            };
        }
        let is_asking = !self.sends_body && !self.body.is_done() && !has_waiting;
        let limit = match is_asking {
            true => CONTINUE_WAIT.min(self.timeout),
            false => self.timeout,
        };
        let unsent = self.waiting.get(self.sent..).unwrap_or_default();
        let moved = async {
            tokio::select! {
                filled = input.fill(stream) => Ok(filled),
                written = write_some(stream, unsent), if has_waiting => Err(written),
            }
        };
        let moved = tokio::time::timeout(limit, moved);
        let moved = match &mut self.at_work {
            Some(at_work) if self.body.is_done() => at_work.during(self.io, moved).await,
            _ => Ok(moved.await),
        };
        match moved.map_err(Fault::Connection)? {
            Err(_) => Ok(Step::Silent),
            Ok(Ok(filled)) => Ok(came(filled)),
            Ok(Err(Ok(written))) => {
                self.sent += written;
                Ok(Step::Sent)
            }
            Ok(Err(Err(_))) => {
                // It may have answered before it stopped reading.
                self.is_deaf = true;
                Ok(Step::Sent)
            }
        }
    }

    /// Takes the next piece of the body from the client.
    fn take_body(&mut self) -> Result<(), Fault> {
        self.waiting.clear();
        self.sent = 0;
        let is_chunked = self.body.is_chunked();
        let piece = self.io.buffered();
        let piece = piece.get(..piece.len().min(PIECE_BYTES));
        let piece = piece.unwrap_or_default();
        let step = self.body.reader().consume(piece)?;
        let data = piece.get(step.data).unwrap_or_default();
        match is_chunked {
            true => write_chunk(data, &mut self.waiting),
            false => self.waiting.extend_from_slice(data),
        }
        if is_chunked && step.done {
            write_last_chunk(self.body.trailers(), &mut self.waiting);
        }
        self.io.consume(step.consumed);
        Ok(())
    }
}

/// Refuses a malformed body in chunks of which these are the first bytes.
fn check_chunks(mut bytes: &[u8]) -> Result<(), BodyError> {
    let mut reader = BodyReader::new(ResponseFraming::Chunked, u64::MAX);
    while !bytes.is_empty() && !reader.is_done() {
        let consumed = reader.consume(bytes)?.consumed;
        if consumed == 0 {
            break;
        }
        bytes = bytes.get(consumed..).unwrap_or_default();
    }
    Ok(())
}

/// Whether a body ends within `max_bytes`; `None` if its end has not come.
fn ends_within(mut bytes: &[u8], framing: ResponseFraming, max_bytes: u32) -> Option<bool> {
    let mut reader = BodyReader::new(framing, max_bytes.into());
    while !bytes.is_empty() && !reader.is_done() {
        let Ok(step) = reader.consume(bytes) else {
            return Some(false);
        };
        bytes = bytes.get(step.consumed..).unwrap_or_default();
    }
    reader.is_done().then_some(true)
}

/// The step that a read from the server has made. A reset after bytes of an answer ends it too.
fn came(filled: io::Result<usize>) -> Step {
    match filled {
        Ok(1..) => Step::Came,
        Ok(0) | Err(_) => Step::Ended,
    }
}

/// The client has got a part of the answer, so its connection ends.
fn broken_off(fault: Fault) -> Fault {
    match fault {
        Fault::Connection(error) => Fault::Connection(error),
        fault => Fault::Connection(io::Error::other(format!("the answer broke off: {fault:?}"))),
    }
}
