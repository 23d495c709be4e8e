//! One request's exchange with its sender: the body that comes, and the answer that goes.
//!
//! A service knows neither how a body is framed nor how an answer is written.
//! [`Http1`](crate::Http1) is the exchange of HTTP/1.1.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use prism_handoff::{Companion, Moved};
use prism_http::{BodyError, Headers, PlainAnswer, ResponseHead};
use tokio::net::TcpStream;

use crate::{BodyFailure, BodySource, RequestBody};

/// The side that ended an exchange before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The client has gone, or sent or took no byte in time.
    Client,
    /// The server, or the node that answers, broke off or was silent.
    Server,
}

impl EndedBy {
    /// The word for it in logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// The answer of an exchange as far as it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerRecord {
    /// The final status, or 101; `None` before there is one.
    pub status: Option<u16>,
    /// Bytes of the body that were given.
    pub body_bytes: u64,
    /// Bytes of the request's body that were read.
    pub received_bytes: u64,
    /// The service's code for the error that the answer reports.
    pub error: Option<&'static str>,
    /// The node whose answer is relayed; `None` for an answer that is made here.
    pub peer: Option<Box<str>>,
    /// How often a server has got the request and has given no answer, at other nodes too.
    pub retries: u8,
    /// The internal redirects that have led to the request.
    pub redirects: u8,
    /// The server of this node that the request went to last.
    pub server: Option<SocketAddr>,
    /// The side that ended it early; `None` for a whole answer.
    pub ended_by: Option<EndedBy>,
}

impl AnswerRecord {
    /// Notes that a server may have got the request, and gives no answer.
    pub fn add_retry(&mut self) {
        self.retries = self.retries.saturating_add(1);
    }
}

/// The exchange of one request. Its body is read by [`BodySource::read`], or by
/// [`Exchange::take_body`] where the answer goes on at the same time.
///
/// An answer is begun once, gets its body, and is ended. Methods without `async` only queue bytes.
/// Errors of the others are those of the connection, which can have no further request.
pub trait Exchange: BodySource {
    /// The identifier of the request, which its sender sees too.
    fn request_id(&self) -> u64;

    /// Whether its connection is as it was when the request's head was read, so that it can move.
    fn is_untouched(&self) -> bool;

    /// The unread part of the body.
    fn body(&self) -> &RequestBody;

    /// Bounds the body if it comes in chunks, before any of it is read.
    fn limit_body(&mut self, max_bytes: u64);

    /// Whether the sender waits for `100 Continue`.
    fn is_held_back(&self) -> bool;

    /// Lets a sender that waits for `100 Continue` send the body.
    async fn invite(&mut self) -> io::Result<()>;

    /// Whether bytes behind those that were read have come.
    fn has_come(&self) -> bool;

    /// Reads more bytes, for [`Self::take_body`]; 0 at the end of the sender's direction. May be
    /// cancelled without loss.
    async fn fill(&mut self) -> io::Result<usize>;

    /// Checks the part of the body that has come, if it is in chunks.
    ///
    /// # Errors
    /// It is malformed.
    fn check_body(&self) -> Result<(), BodyError>;

    /// Passes what has come of the body, at most some `max_bytes`, to `take`. Behind a body in a
    /// tunnel that is all that comes.
    ///
    /// # Errors
    /// The body is malformed or too long.
    fn take_body(&mut self, max_bytes: usize, take: impl FnMut(&[u8])) -> Result<(), BodyError>;

    /// Reads past the rest of the body, in bounded time. If it is too long, the connection ends
    /// with the answer.
    async fn skip_body(&mut self);

    /// Reads the body to its end, after an invitation.
    ///
    /// # Errors
    /// The body is longer than `max_bytes`, malformed, or breaks off.
    async fn read_to_end(&mut self, max_bytes: u64) -> Result<Vec<u8>, BodyFailure> {
        if self.left_bytes().is_some_and(|left| left > max_bytes) {
            return Err(BodyFailure::TooLong);
        }
        self.invite().await?;
        let mut bytes = Vec::new();
        while !BodySource::is_done(self) {
            if !self.has_come() && self.fill().await? == 0 {
                return Err(BodyFailure::ended());
            }
            self.take_body(usize::MAX, |piece| bytes.extend_from_slice(piece))?;
            if bytes.len() as u64 > max_bytes {
                return Err(BodyFailure::TooLong);
            }
        }
        Ok(bytes)
    }

    /// Adds header fields to the answer, an error included.
    fn add_fields(&mut self, fields: Option<Headers>);

    /// Whether [`Self::add_fields`] has added some.
    fn has_fields(&self) -> bool;

    /// Gives the answer these header fields in the place of its own of the same names. Of an answer
    /// that is no resource only cookies are replaced.
    fn replace_fields(&mut self, fields: Option<Headers>);

    /// Ends the connection with the answer.
    fn close_after(&mut self);

    /// The answer so far.
    fn record(&self) -> &AnswerRecord;

    /// The answer so far, to note an error or the node that made it.
    fn record_mut(&mut self) -> &mut AnswerRecord;

    /// Sends an interim answer (1xx), if the sender knows them.
    async fn interim(&mut self, head: &ResponseHead) -> io::Result<()>;

    /// Begins the final answer: its head, with the fields of `more`. `body_bytes`: the length of
    /// its body, if it is known. Returns whether a body may follow.
    fn begin(
        &mut self,
        head: &ResponseHead,
        more: Option<&Headers>,
        body_bytes: Option<u64>,
    ) -> bool;

    /// Whether [`Self::begin_unchanged`] is possible.
    fn takes_unchanged(&self) -> bool;

    /// Begins an answer as it came from another node: `bytes` are its head and what has come of its
    /// body.
    async fn begin_unchanged(&mut self, answer: &PlainAnswer, bytes: &[u8]) -> io::Result<()>;

    /// Agrees to go on with another protocol. From then on data has no form, and neither has what
    /// comes behind the body.
    fn begin_tunnel(&mut self, head: &ResponseHead, protocol: &[u8]);

    /// Queues bytes of the answer's body.
    fn put(&mut self, data: &[u8]);

    /// Whether bytes are queued.
    fn has_queued(&self) -> bool;

    /// Sends what is queued. If this is cancelled, the answer cannot go on.
    async fn flush(&mut self) -> io::Result<()>;

    /// Sends bytes of the answer's body at once. They are copied only if that is needed.
    async fn data(&mut self, data: &[u8]) -> io::Result<()>;

    /// Sends `len` bytes of a file from `offset` on.
    async fn file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()>;

    /// Sends `len` bytes that come from `source`, which may be silent for `silence`, if they need
    /// not be copied for that. Returns how many were sent: 0 if they must be copied.
    async fn stream(&mut self, source: &TcpStream, len: u64, silence: Duration) -> io::Result<u64>;

    /// Sends some of what is queued, or reads more if `reads` is set, whichever can be done first.
    /// With neither it waits until the connection breaks. May be cancelled without loss.
    /// `Written(0)`: only [`Self::flush`] can send what is queued now. It must not be cancelled.
    async fn write_or_fill(&mut self, reads: bool) -> io::Result<Moved>;

    /// Ends the answer, and then reads past the rest of the body if the connection may live on.
    async fn end(&mut self, trailers: Option<&Headers>) -> io::Result<()>;

    /// Whether the answer has ended, and the connection lives on.
    fn is_open(&self) -> bool;

    /// The place for what a service keeps beside a client's connection. It is dropped when the
    /// connection ends or leaves this process. A relaying node's stream has no such place: its
    /// requests come from many clients.
    fn companion(&mut self) -> Option<&mut Companion>;
}

/// Sends a whole answer.
///
/// # Errors
/// Fails with the errors of the connection, which then can have no further request.
pub async fn send(
    exchange: &mut impl Exchange,
    mut head: ResponseHead,
    body: &[u8],
) -> io::Result<()> {
    set(&mut head, "Server", "Prism")?;
    if exchange.begin(&head, None, Some(body.len() as u64)) {
        exchange.put(body);
    }
    exchange.end(None).await
}

/// Sets a header field.
///
/// # Errors
/// The value is not allowed in a header. The caller should have checked it.
pub fn set(head: &mut ResponseHead, name: &str, value: impl AsRef<[u8]>) -> io::Result<()> {
    head.headers_mut()
        .set(name, value)
        .map_err(io::Error::other)
}
