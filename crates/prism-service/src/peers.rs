//! Requests to other nodes: this node's own, and those of clients that it relays. They travel on
//! pooled streams, after a preamble (`prism_proto::relay`).

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use prism_handoff::{Handle, PeerError, RelayStream};
use prism_http::{
    AnswerError, BodyError, BodyFraming, HeadError, Headers, Limits, RequestHead, ResponseHead,
    read_answer, read_body,
};
use prism_proto::facts::{Facts, Form};
use prism_proto::relay::{
    ANSWER_ELSEWHERE, ANSWER_FIELD, ANSWER_FINAL, ANSWER_PARKED, ANSWER_REDIRECT, HAND_OVER,
    Preamble, STATUS_FIELD,
};

use crate::Io;

/// The reason why another node did not answer a request. The client has got no byte of an answer,
/// except where a variant says so.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The node is out of reach.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The stream broke before the answer began. The node may have carried the request out.
    #[error("the node broke off: {0}")]
    Broken(#[source] io::Error),
    /// The node has closed an idle stream without reading the request.
    #[error("the node ended the connection")]
    NotRead,
    /// The node's answer is malformed.
    #[error("the node's answer is malformed: {0}")]
    Answer(#[from] HeadError),
    /// The client's body is malformed.
    #[error("the request's body is malformed: {0}")]
    Body(#[from] BodyError),
    /// The answer is longer than the preamble allows. The client's connection is unchanged.
    #[error("the answer is too long to be relayed")]
    TooLong,
    /// The node has carried the request out, and its answer waits there for the client's
    /// connection, which is unchanged.
    #[error("the answer waits for the connection")]
    Parked,
    /// Other nodes answer the request, by that node's view of the cluster. The client's connection
    /// is unchanged, except for bytes that were read of a body.
    #[error("the node is not one that answers this")]
    Elsewhere,
    /// The server's answer is an internal redirect: its status, and the fields that say where to.
    /// The client's connection is unchanged, except for bytes that were read of a body.
    #[error("the answer is an internal redirect")]
    Redirected(Box<ResponseHead>),
    /// The client's connection broke, or the answer did in its middle. The connection cannot go
    /// on.
    #[error("the connection broke: {0}")]
    Connection(#[source] io::Error),
}

impl From<AnswerError> for RelayError {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::None => Self::NotRead,
            AnswerError::Broken(error) => Self::Broken(error),
            AnswerError::Head(error) => Self::Answer(error),
            AnswerError::Body(error) => Self::Body(error),
        }
    }
}

impl RelayError {
    /// Whether the node lives, and has said nothing for too long. It may still be at work.
    pub fn is_silence(&self) -> bool {
        match self {
            // The kernel's own error is that of a peer which answers no probe.
            Self::Broken(error) => {
                error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
            }
            _ => false,
        }
    }
}

/// A request to another node.
pub struct PeerRequest<'r> {
    /// Its head.
    pub head: &'r RequestHead,
    /// The preamble, with what this node has verified.
    pub preamble: Preamble,
    /// Whether two answers have the same effect as one.
    pub is_repeatable: bool,
}

impl<'r> PeerRequest<'r> {
    /// A request of this node itself, on behalf of nobody. It may be repeated.
    #[must_use]
    pub fn for_node(head: &'r RequestHead) -> Self {
        Self {
            head,
            preamble: Preamble {
                alone: true,
                facts: Facts::of_anonymous(0),
                most_bytes: None,
            },
            is_repeatable: true,
        }
    }
}

impl PeerRequest<'_> {
    /// The meaning of an answer of the other node that asks for the connection; `None` for an
    /// answer that is for the client.
    pub fn refused(&self, answer: &ResponseHead) -> Option<RelayError> {
        let told = answer.headers().get_str(ANSWER_FIELD);
        match (answer.status(), told, self.preamble.most_bytes) {
            (HAND_OVER, Some(ANSWER_FINAL), _) => None,
            (HAND_OVER, Some(ANSWER_PARKED), _) => Some(RelayError::Parked),
            (HAND_OVER, Some(ANSWER_ELSEWHERE), _) => Some(RelayError::Elsewhere),
            (HAND_OVER, Some(ANSWER_REDIRECT), _) => Some(RelayError::Redirected(redirect(answer))),
            (HAND_OVER, _, Some(_)) => Some(RelayError::TooLong),
            (HAND_OVER, _, None) => Some(RelayError::Elsewhere),
            _ => None,
        }
    }

    /// Whether the request may be sent again after `error`, if no byte of its body is lost.
    pub fn may_follow(&self, error: &RelayError) -> bool {
        match error {
            RelayError::NotRead => true,
            RelayError::Broken(_) => self.is_repeatable && !error.is_silence(),
            _ => false,
        }
    }
}

/// The answer of a server in that of a node which asks to follow it.
fn redirect(answer: &ResponseHead) -> Box<ResponseHead> {
    let status = answer.headers().get_str(STATUS_FIELD);
    let status = status.and_then(|status| status.parse().ok());
    let mut head = ResponseHead::new(status.unwrap_or_default());
    *head.headers_mut() = answer.headers().clone();
    Box::new(head)
}

/// One thread's streams to other nodes.
pub struct Peers {
    /// `None` in tests of a single node.
    handle: Option<Handle>,
    stall_timeout: Duration,
}

impl Peers {
    /// `stall_timeout`: a stream on which no byte moves for this time has failed.
    pub fn new(handle: Handle, stall_timeout: Duration) -> Self {
        Self {
            handle: Some(handle),
            stall_timeout,
        }
    }

    /// The peers of a node that has none: every request fails with [`PeerError::Unknown`].
    pub fn none() -> Self {
        Self {
            handle: None,
            stall_timeout: Duration::ZERO,
        }
    }

    /// Sends `peer` a request of this node itself, and returns the whole answer.
    ///
    /// # Errors
    /// The answer is missing, broken or malformed, or its body is longer than `max_bytes`.
    pub async fn ask(
        &self,
        peer: &str,
        request: &PeerRequest<'_>,
        body: &[u8],
        max_bytes: usize,
    ) -> Result<(ResponseHead, Vec<u8>), RelayError> {
        let (mut upstream, answer) = self.begin_asking(peer, request, body).await?;
        let framing = answer.framing(request.head.method())?;
        let bytes = read_body(&mut upstream, framing, max_bytes).await?;
        if answer.keep_alive() && upstream.is_clean() {
            self.keep(peer, upstream);
        }
        Ok((answer, bytes))
    }

    /// Sends `peer` a request of this node itself, and returns after the head of the answer. If a
    /// used stream has ended, the request is sent again on a fresh one.
    ///
    /// # Errors
    /// The head is missing or malformed.
    pub async fn begin_asking(
        &self,
        peer: &str,
        request: &PeerRequest<'_>,
        body: &[u8],
    ) -> Result<(RelayStream, ResponseHead), RelayError> {
        let mut upstream = self.stream(peer, request).await?;
        let mut answer = ask_on(&mut upstream, request, body).await;
        if let Err(error) = &answer
            && upstream.was_used()
            && request.may_follow(error)
        {
            upstream = self.fresh(peer).await?;
            answer = ask_on(&mut upstream, request, body).await;
        }
        Ok((upstream, answer?))
    }

    /// A stream for a request to `peer`.
    ///
    /// A used stream may have ended. If the request cannot be repeated whole, this is checked.
    ///
    /// # Errors
    /// The peer is out of reach.
    pub async fn stream(
        &self,
        peer: &str,
        request: &PeerRequest<'_>,
    ) -> Result<RelayStream, RelayError> {
        let mut upstream = self.handle(peer)?.relay(peer).await?;
        upstream.set_io_timeout(self.stall_timeout);
        let can_repeat = !has_body(request.head) && request.is_repeatable;
        if upstream.was_used() && !can_repeat && is_closed(&mut upstream).await {
            return self.fresh(peer).await;
        }
        Ok(upstream)
    }

    /// A stream that was not used before.
    ///
    /// # Errors
    /// The peer is out of reach.
    pub async fn fresh(&self, peer: &str) -> Result<RelayStream, RelayError> {
        let mut stream = self.handle(peer)?.fresh_relay(peer).await?;
        stream.set_io_timeout(self.stall_timeout);
        Ok(stream)
    }

    /// Keeps a stream that is between two requests for the next one.
    pub fn keep(&self, peer: &str, upstream: RelayStream) {
        if let Some(handle) = &self.handle {
            handle.keep_relay(peer, upstream);
        }
    }

    fn handle(&self, peer: &str) -> Result<&Handle, PeerError> {
        let handle = self.handle.as_ref();
        handle.ok_or_else(|| PeerError::Unknown(peer.to_owned()))
    }
}

/// Whether a body follows a request's head.
pub fn has_body(head: &RequestHead) -> bool {
    !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0))
}

/// The head of a request of this node itself with a body of `len` bytes.
///
/// # Errors
/// Never for a method of HTTP.
pub fn own_head(method: &str, len: u64) -> io::Result<RequestHead> {
    let text = format!("{method} / HTTP/1.1\r\nHost: prism\r\nContent-Length: {len}\r\n\r\n");
    parse_own_head(text.as_bytes())
}

/// Parses the head of a request of this node itself, whose text this node wrote.
///
/// # Errors
/// The text is no whole head.
pub fn parse_own_head(text: &[u8]) -> io::Result<RequestHead> {
    match RequestHead::parse(text, &Limits::DEFAULT) {
        Ok(Some((head, _))) => Ok(head),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A request's preamble and head as they travel to a node that reads this form.
pub fn encode_head(request: &PeerRequest<'_>, form: Form) -> Vec<u8> {
    let mut head = Vec::with_capacity(1024);
    request.preamble.encode(form, &mut head);
    let mut extra = Headers::new();
    // A node that sends the request back does so before the body is read.
    if !request.preamble.alone && has_body(request.head) {
        // Never an error: name and value are well-formed.
        let _ = extra.append("Expect", "100-continue");
    }
    let framing = request.head.framing();
    request.head.write_forward(framing, &extra, &mut head);
    head
}

/// Sends a request of this node itself, and reads the head of the answer.
async fn ask_on(
    upstream: &mut RelayStream,
    request: &PeerRequest<'_>,
    body: &[u8],
) -> Result<ResponseHead, RelayError> {
    let head = encode_head(request, upstream.form());
    match upstream.write_all(&head).await {
        // Without the whole head the node does not answer.
        Err(_) if upstream.was_used() => return Err(RelayError::NotRead),
        sent => sent.map_err(RelayError::Broken)?,
    }
    let sent = upstream.write_all(body).await;
    sent.map_err(RelayError::Broken)?;
    Ok(read_answer(upstream, &Limits::ANSWER).await?)
}

/// Whether the peer has closed an idle stream.
async fn is_closed(upstream: &mut RelayStream) -> bool {
    let mut filled = pin!(upstream.fill());
    // A timeout of zero would wait a millisecond, the resolution of the runtime's clock.
    let looked = poll_fn(|cx| Poll::Ready(filled.as_mut().poll(cx))).await;
    matches!(looked, Poll::Ready(Ok(0) | Err(_)))
}
