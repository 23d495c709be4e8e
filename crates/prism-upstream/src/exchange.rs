//! One request and its answer between a client and a server: bytes in both directions at the same
//! time, with at most two buffers of 64 KiB.
//!
//! Not here: which server, and whether a request that failed is sent again (`service.rs`).

use std::io;
use std::time::Duration;

use prism_http::{
    BodyError, BodyFraming, BodyReader, Exchange, HeadError, Headers, Limits, ResponseFraming,
    ResponseHead, Version, write_chunk, write_last_chunk,
};
use prism_service::{BodyFailure, Io, Request, RequestBody};

use crate::retry::Failure;
use crate::server::{Server, write_some};
use crate::service::Meaning;

/// The longest wait for `100 Continue`, after which the body is sent nevertheless: a server may
/// not know `Expect` (RFC 9110, section 10.1.1).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);
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
pub(crate) enum Step {
    /// Bytes went to the server, or came from the client.
    Sent,
    /// Bytes came from the server.
    Came,
    /// The server has ended its direction.
    Ended,
    /// The server was silent for long enough.
    Silent,
}

/// An exchange under way.
pub(crate) struct Transfer<'t, I> {
    pub(crate) io: &'t mut I,
    pub(crate) server: &'t mut Server,
    pub(crate) body: &'t mut RequestBody,
    /// The longest silence of the server.
    pub(crate) timeout: Duration,
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
                    _ => return Ok(head),
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

    /// Whether the server has all of the request.
    pub(crate) fn is_request_sent(&self) -> bool {
        self.body.is_done() && self.sent == self.waiting.len() && !self.is_deaf
    }

    /// Waits until bytes can go on in one direction, and moves them.
    pub(crate) async fn step(&mut self) -> Result<Step, Fault> {
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
        match tokio::time::timeout(limit, moved).await {
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

/// The step that a read from the server has made. A reset after bytes of an answer ends it too.
fn came(filled: io::Result<usize>) -> Step {
    match filled {
        Ok(1..) => Step::Came,
        Ok(0) | Err(_) => Step::Ended,
    }
}
