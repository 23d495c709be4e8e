//! One request to a server, until its answer begins. The body goes on to the server also behind the
//! beginning of the answer.
//!
//! Not here: which server, and whether a request that failed is sent again (`service.rs`).

use std::io;
use std::time::Duration;

use prism_http::{
    BodyError, BodyFraming, BodyReader, Exchange, HeadError, Headers, Limits, ResponseFraming,
    ResponseHead, Version, write_chunk, write_last_chunk,
};
use prism_service::{BodyFailure, Io, Request, RequestBody};
use tokio::time::{Instant, timeout_at};

use crate::at_work::AtWork;
use crate::pump::{Moved, PIECE_BYTES, Queue};
use crate::retry::Failure;
use crate::server::Server;
use crate::service::Meaning;

/// The longest wait for `100 Continue`, after which the body is sent nevertheless: a server may
/// not know `Expect` (RFC 9110, section 10.1.1).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

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
    /// Bytes came from the client, or went to either side.
    Moved,
    /// Bytes came from the server.
    Came,
    /// The server has ended its direction.
    Ended,
    /// The server has reset the connection, or cannot be reached any more.
    Broken(io::Error),
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
    /// For a relaying node, until the answer begins.
    pub(crate) at_work: Option<AtWork>,
    pub(crate) to_client: Queue,
    pub(crate) to_server: Queue,
    /// Whether the server gets the body now.
    sends_body: bool,
    /// Whether the server takes no more bytes.
    pub(crate) is_deaf: bool,
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
        let mut bytes = std::mem::take(&mut server.preface);
        bytes.reserve(1024);
        head.write_forward(head.framing(), &extra, &mut bytes);
        let mut transfer = Self::begun(io, server, body, timeout);
        *transfer.to_server.bytes_mut() = bytes;
        transfer.sends_body = !asks && head.framing() != BodyFraming::None;
        transfer
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
            to_client: Queue::default(),
            to_server: Queue::default(),
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
            if self.at_work.is_some() {
                self.await_body().await?;
            }
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
            let is_asking = !self.sends_body && !self.body.is_done() && self.to_server.is_empty();
            let limit = match is_asking {
                true => CONTINUE_WAIT.min(self.timeout),
                false => self.timeout,
            };
            match self.step(limit).await? {
                Step::Moved => {}
                Step::Came => has_begun = true,
                Step::Ended | Step::Broken(_) if has_begun => {
                    return Err(Fault::Server(Failure::Malformed));
                }
                Step::Ended | Step::Broken(_) => {
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

    /// Waits for the body to begin. Before that, a relaying node that hears nothing may send the
    /// request again, and a server may begin with the head alone.
    async fn await_body(&mut self) -> Result<(), Fault> {
        if self.body.is_done() || !self.io.buffered().is_empty() {
            return Ok(());
        }
        match self.io.fill().await {
            Ok(1..) => Ok(()),
            Ok(0) => Err(Fault::Connection(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(Fault::Connection(error)),
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
        self.body.is_done() && self.to_server.is_empty() && !self.is_deaf
    }

    /// Whether the server gets more of the body.
    fn wants_body(&self) -> bool {
        self.sends_body && !self.is_deaf && !self.body.is_done()
    }

    /// Whether bytes may go to the server.
    pub(crate) fn goes_on(&self) -> bool {
        self.wants_body() || !self.to_server.is_empty()
    }

    /// Waits until bytes can go on in one direction, and moves them. The server may be silent for
    /// `limit`.
    pub(crate) async fn step(&mut self, limit: Duration) -> Result<Step, Fault> {
        let reads = self.wants_body() && self.to_server.is_empty();
        if reads && !self.io.buffered().is_empty() {
            self.take_body()?;
            return Ok(Step::Moved);
        }
        // The client's own timeout applies to what it sends and takes.
        let is_for_client = reads || !self.to_client.is_empty();
        let moved = match is_for_client {
            true => Some(self.move_some(reads).await),
            false => self.move_within(limit).await.map_err(Fault::Connection)?,
        };
        let Some(moved) = moved else {
            return Ok(Step::Silent);
        };
        Ok(match moved.map_err(Fault::Connection)? {
            Moved::FromServer(Ok(0)) => Step::Ended,
            Moved::FromServer(Ok(_)) => Step::Came,
            Moved::FromServer(Err(error)) => Step::Broken(error),
            Moved::FromClient(0) => {
                return Err(Fault::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
            Moved::ToServer | Moved::FromClient(_) | Moved::ToClient => Step::Moved,
        })
    }

    /// Waits for the server for `limit`, and tells a relaying node meanwhile that it is at work.
    async fn move_within(&mut self, limit: Duration) -> io::Result<Option<io::Result<Moved>>> {
        let ends = Instant::now() + limit;
        loop {
            let at_work = self.at_work.as_ref().filter(|_| self.body.is_done());
            let until = at_work.map_or(ends, |at_work| at_work.next().min(ends));
            match timeout_at(until, self.move_some(false)).await {
                Ok(moved) => return Ok(Some(moved)),
                Err(_) if until == ends => return Ok(None),
                Err(_) => {}
            }
            if let Some(at_work) = &mut self.at_work {
                at_work.tell(self.io).await?;
            }
        }
    }

    /// Takes what has come of the body from the client, at most one piece.
    pub(crate) fn take_body(&mut self) -> Result<(), Fault> {
        let is_chunked = self.body.is_chunked();
        let out = self.to_server.bytes_mut();
        while !self.body.is_done() && !self.io.buffered().is_empty() && out.len() < PIECE_BYTES {
            let piece = self.io.buffered();
            let room = PIECE_BYTES - out.len();
            let piece = piece.get(..room).unwrap_or(piece);
            let step = self.body.reader().consume(piece)?;
            let data = piece.get(step.data).unwrap_or_default();
            match is_chunked {
                true => write_chunk(data, out),
                false => out.extend_from_slice(data),
            }
            self.io.consume(step.consumed);
        }
        if is_chunked && self.body.is_done() {
            write_last_chunk(self.body.trailers(), out);
        }
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
