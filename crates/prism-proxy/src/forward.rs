//! One request on its way, until the head of its answer has come. The body goes on also behind the
//! beginning of the answer.

use std::io;
use std::time::Duration;

use prism_common::input::Unread;
use prism_http::{
    BodyError, HeadError, Limits, PROCESSING, PlainAnswer, ResponseHead, write_chunk,
    write_last_chunk,
};
use prism_proto::facts::Form;
use prism_proto::relay::{ANSWER_AT_WORK, ANSWER_FIELD, HAND_OVER};
use prism_service::{BodyFailure, Exchange};
use tokio::time::{Instant, timeout_at};

use crate::at_work::AtWork;
use crate::connection::ServerStream;
use crate::pump::{PIECE_BYTES, Passage};

/// The longest beginning of a body that is kept to be sent again.
const MAX_REPLAY_BYTES: usize = 64 << 10;

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection ended before the first byte of an answer.
    Ended {
        /// Whether it had an earlier request, so that the other side may have ended it at its own
        /// time.
        was_used: bool,
        /// Whether the other side ended it in order: it has not read the request.
        in_order: bool,
        /// Whether no byte of the request has reached the other side.
        is_unsent: bool,
    },
    /// The other side was silent for too long.
    Silent,
    /// The answer is malformed, or ended in its head.
    Malformed,
}

/// The reason why a request failed.
#[derive(Debug)]
pub enum Fault {
    /// There is no answer, with the connection's error. The client has got nothing.
    NoAnswer(Failure, io::Error),
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
    fn from(error: HeadError) -> Self {
        Self::NoAnswer(Failure::Malformed, io::Error::other(error))
    }
}

impl Fault {
    /// The other side was silent.
    pub(crate) fn silent() -> Self {
        Self::NoAnswer(Failure::Silent, io::ErrorKind::TimedOut.into())
    }

    /// The answer means nothing, for this reason.
    pub fn malformed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::NoAnswer(Failure::Malformed, io::Error::other(why))
    }
}

/// A step of a request.
pub(crate) enum Progress {
    /// Bytes came from the client, or went to either side.
    Moved,
    /// Bytes came from the other side.
    Came,
    /// The other side has ended its direction.
    Ended,
    /// The other side has reset the connection, or cannot be reached any more.
    Broken(io::Error),
    /// The other side was silent for long enough.
    Silent,
}

/// A request as it goes on.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Its head, and what precedes that.
    pub head: Vec<u8>,
    /// The beginning of its body, from an earlier try: see [`Forward::into_replay`].
    pub replay: Vec<u8>,
    /// The body stays with the client: the request goes on without it.
    pub leaves_body: bool,
    /// Whether the head asks for an invitation to send the body.
    pub asks: bool,
    /// The longest wait for the invitation, after which the body is sent nevertheless; `None` to
    /// wait for an answer.
    pub invited_within: Option<Duration>,
    /// The longest silence of the other side; `None` if the connection has a limit of its own.
    pub timeout: Option<Duration>,
    /// The answer comes from a node, which writes what this one would write. So it may go on
    /// unchanged, but for what the node says for itself.
    pub to_node: Option<Form>,
}

/// The head of an answer.
#[derive(Debug)]
pub enum AnswerHead {
    /// It can go on unchanged, and is not consumed.
    Plain(PlainAnswer),
    /// It was parsed and consumed.
    Parsed(ResponseHead),
}

/// A request under way.
pub struct Forward<'f, X, S> {
    pub(crate) exchange: &'f mut X,
    pub(crate) server: &'f mut S,
    pub(crate) timeout: Option<Duration>,
    /// For a relaying node, until the answer begins.
    at_work: Option<AtWork>,
    pub(crate) to_server: Unread,
    /// Whether the body is none of the other side's.
    leaves_body: bool,
    /// Whether the other side gets the body now.
    sends_body: bool,
    /// Whether the other side takes no more bytes.
    pub(crate) is_deaf: bool,
    invited_within: Option<Duration>,
    to_node: Option<Form>,
    /// Bytes of the request that were written.
    pub(crate) written_bytes: usize,
    /// The beginning of the body, in the form in which it goes on, while it may be sent again.
    replay: Option<Vec<u8>>,
}

impl<'f, X: Exchange, S: ServerStream> Forward<'f, X, S> {
    /// The request of `exchange`, for `server`.
    pub fn new(exchange: &'f mut X, server: &'f mut S, outgoing: Outgoing) -> Self {
        let mut to_server = Unread::new(outgoing.head);
        to_server.bytes_mut().extend_from_slice(&outgoing.replay);
        Self {
            to_server,
            replay: server.was_used().then_some(outgoing.replay),
            leaves_body: outgoing.leaves_body,
            sends_body: !outgoing.asks && !outgoing.leaves_body && !exchange.is_done(),
            invited_within: outgoing.invited_within,
            to_node: outgoing.to_node,
            ..Self::begun(exchange, server, outgoing.timeout)
        }
    }

    /// A request whose answer has begun.
    pub fn begun(exchange: &'f mut X, server: &'f mut S, timeout: Option<Duration>) -> Self {
        Self {
            exchange,
            server,
            timeout,
            at_work: None,
            to_server: Unread::default(),
            leaves_body: false,
            sends_body: true,
            is_deaf: false,
            invited_within: None,
            to_node: None,
            written_bytes: 0,
            replay: None,
        }
    }

    /// Tells a relaying node, which gives up after `silence`, that the request is worked on.
    #[must_use]
    pub fn for_relaying_node(mut self, silence: Duration) -> Self {
        self.at_work = Some(AtWork::new(silence));
        self
    }

    /// Sends the request until the final answer begins, and returns its head.
    ///
    /// # Errors
    /// See [`Fault`].
    pub async fn answer(&mut self) -> Result<AnswerHead, Fault> {
        // A body that is malformed from the beginning reaches nobody.
        if !self.leaves_body
            && let Err(error) = self.exchange.check_body()
        {
            self.exchange.close_after();
            return Err(error.into());
        }
        if self.sends_body {
            self.invite().await?;
            if self.at_work.is_some() {
                self.await_body().await?;
            }
        }
        let limits = match self.to_node {
            Some(_) => &Limits::ANSWER,
            None => &Limits::DEFAULT,
        };
        let mut has_begun = false;
        loop {
            if let Some(plain) = self.plain_answer() {
                return Ok(AnswerHead::Plain(plain));
            }
            let parsed = ResponseHead::parse(self.server.buffered(), limits)?;
            if let Some((head, len)) = parsed {
                self.server.consume(len);
                has_begun = true;
                match head.status() {
                    100 if self.leaves_body => {}
                    100 => self.invite().await?,
                    102..=199 => self.pass_interim(head).await?,
                    _ => {
                        self.at_work = None;
                        return Ok(AnswerHead::Parsed(head));
                    }
                }
                continue;
            }
            let is_asking = !self.sends_body && !self.has_whole_body() && self.to_server.is_empty();
            let invited_within = self.invited_within.filter(|_| is_asking);
            let limit = [invited_within, self.timeout].into_iter().flatten().min();
            match self.step(limit).await? {
                Progress::Moved => {}
                Progress::Came => has_begun = true,
                Progress::Ended => {
                    return Err(self.ended(has_begun, None));
                }
                Progress::Broken(error) => return Err(self.ended(has_begun, Some(error))),
                Progress::Silent if invited_within.is_some() => self.invite().await?,
                Progress::Silent => return Err(Fault::silent()),
            }
        }
    }

    /// The fault of a connection that has ended in front of the end of the answer's head.
    fn ended(&self, has_begun: bool, error: Option<io::Error>) -> Fault {
        let in_order = error.is_none();
        let error = error.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
        let failure = if is_silence(&error) {
            Failure::Silent
        } else if has_begun {
            Failure::Malformed
        } else {
            Failure::Ended {
                was_used: self.server.was_used(),
                in_order,
                is_unsent: self.is_unsent(in_order),
            }
        };
        Fault::NoAnswer(failure, error)
    }

    /// The beginning of the body, if it can be sent again behind the head. Only an idle connection
    /// ends at its own time, so none is kept for a new one.
    pub fn into_replay(self) -> Option<Vec<u8>> {
        self.replay
    }

    /// Whether the other side has got no byte of the request. A FIN acknowledges all that the
    /// kernel of its sender has (RFC 9293, section 3.4). So if all of the request is still
    /// unacknowledged behind one, the other side had ended the connection before.
    fn is_unsent(&self, in_order: bool) -> bool {
        let unacknowledged = || self.server.unacknowledged_bytes();
        let is_behind_end = || unacknowledged().is_some_and(|bytes| bytes >= self.written_bytes);
        self.written_bytes == 0 || in_order && is_behind_end()
    }

    /// The answer that has come, if it can go on unchanged.
    fn plain_answer(&self) -> Option<PlainAnswer> {
        if self.to_node.is_none() || !self.exchange.takes_unchanged() {
            return None;
        }
        let plain = PlainAnswer::find(self.server.buffered(), &Limits::ANSWER);
        // The node may ask for the connection.
        plain.filter(|plain| plain.status != HAND_OVER)
    }

    /// Passes an interim answer, unless a node says by it that it is at work.
    async fn pass_interim(&mut self, mut head: ResponseHead) -> Result<(), Fault> {
        let is_of_node = match self.to_node {
            // The former release does not mark it.
            Some(Form::Former) => head.status() == PROCESSING,
            Some(Form::Entries) => head.headers().get_str(ANSWER_FIELD) == Some(ANSWER_AT_WORK),
            None => false,
        };
        if is_of_node {
            return Ok(());
        }
        head.remove_hop_by_hop();
        head.headers_mut().remove(ANSWER_FIELD);
        let sent = self.exchange.interim(&head).await;
        sent.map_err(Fault::Connection)
    }

    /// Waits for the body to begin. Before that, a relaying node that hears nothing may send the
    /// request again, and a server may begin with the head alone.
    async fn await_body(&mut self) -> Result<(), Fault> {
        if self.exchange.is_done() || self.exchange.has_come() {
            return Ok(());
        }
        match self.exchange.fill().await {
            Ok(1..) => Ok(()),
            Ok(0) => Err(Fault::Connection(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(Fault::Connection(error)),
        }
    }

    /// Lets the client send its body.
    async fn invite(&mut self) -> Result<(), Fault> {
        self.sends_body = true;
        let invited = self.exchange.invite().await;
        invited.map_err(Fault::Connection)
    }

    /// Whether the other side has all of the request.
    pub(crate) fn is_request_sent(&self) -> bool {
        self.has_whole_body() && self.to_server.is_empty() && !self.is_deaf
    }

    /// Whether no more of the body is read for the other side.
    fn has_whole_body(&self) -> bool {
        self.leaves_body || self.exchange.is_done()
    }

    /// Whether the other side gets more of the body.
    fn wants_body(&self) -> bool {
        self.sends_body && !self.is_deaf && !self.has_whole_body()
    }

    /// Whether bytes may go to the other side.
    pub(crate) fn goes_on(&self) -> bool {
        self.wants_body() || !self.to_server.is_empty()
    }

    /// Waits until bytes can go on in one direction, and moves them. The other side may be silent
    /// for `limit`.
    pub(crate) async fn step(&mut self, limit: Option<Duration>) -> Result<Progress, Fault> {
        let reads = self.wants_body() && self.to_server.is_empty();
        if reads && self.exchange.has_come() {
            self.take_body()?;
            return Ok(Progress::Moved);
        }
        // The client's own timeout applies to what it sends and takes.
        let moved = if reads || self.exchange.has_queued() {
            Some(self.move_some(reads).await)
        } else {
            self.move_within(limit).await.map_err(Fault::Connection)?
        };
        let Some(moved) = moved else {
            return Ok(Progress::Silent);
        };
        Ok(match moved.map_err(Fault::Connection)? {
            Passage::FromServer(Ok(0)) => Progress::Ended,
            Passage::FromServer(Ok(_)) => Progress::Came,
            Passage::FromServer(Err(error)) => Progress::Broken(error),
            Passage::FromClient(0) => return Err(BodyError::Truncated.into()),
            Passage::ToServer | Passage::FromClient(_) | Passage::ToClient => Progress::Moved,
        })
    }

    /// Waits for the other side for `limit`, and tells a relaying node meanwhile that it is at
    /// work.
    async fn move_within(
        &mut self,
        limit: Option<Duration>,
    ) -> io::Result<Option<io::Result<Passage>>> {
        let Some(limit) = limit else {
            return Ok(Some(self.move_some(false).await));
        };
        let ends = Instant::now() + limit;
        loop {
            let at_work = self.at_work.as_ref().filter(|_| self.has_whole_body());
            let until = at_work.map_or(ends, |at_work| at_work.next().min(ends));
            match timeout_at(until, self.move_some(false)).await {
                Ok(moved) => return Ok(Some(moved)),
                Err(_) if until == ends => return Ok(None),
                Err(_) => {}
            }
            if let Some(at_work) = &mut self.at_work {
                at_work.tell(self.exchange).await?;
            }
        }
    }

    /// Takes what has come of the body from the client, at most one piece.
    pub(crate) fn take_body(&mut self) -> Result<(), Fault> {
        let is_chunked = self.exchange.body().is_chunked();
        let out = self.to_server.bytes_mut();
        let before_bytes = out.len();
        let room = PIECE_BYTES.saturating_sub(before_bytes);
        self.exchange.take_body(room, |data| {
            if is_chunked {
                write_chunk(data, out);
            } else {
                out.extend_from_slice(data);
            }
        })?;
        if is_chunked && self.exchange.is_done() {
            write_last_chunk(self.exchange.body().trailers(), out);
        }
        if let Some(replay) = &mut self.replay {
            let taken = out.get(before_bytes..).unwrap_or_default();
            replay.extend_from_slice(taken);
            if replay.len() > MAX_REPLAY_BYTES {
                self.replay = None;
            }
        }
        Ok(())
    }
}

/// Whether the other side lives, and has said nothing for too long. The kernel's own error is that
/// of a peer which answers no probe.
fn is_silence(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}
