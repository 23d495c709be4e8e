//! Relaying: a request is answered by another node, and its bytes pass through
//! this one, as at an ordinary proxy. For answers too small to be worth a
//! hand-off, and for every hand-off that could not be.

mod passing;

use std::io;

use prism_handoff::{Connection, PeerError, RelayStream};
use prism_http::{
    BodyError, BodyReader, Exchange, HeadError, Headers, PlainAnswer, RequestHead, ResponseFraming,
};
use prism_proto::relay::{HAND_OVER, Preamble};

use super::Worker;
use super::io::Io;
use super::request_body::RequestBody;

use passing::{
    Head, copy_answer, has_body, invitation, is_closed, is_simple, read_plain, send_body,
    write_head,
};

pub(super) use passing::read_answer;

/// Why a request was not answered by the other node. Nothing of the answer has
/// been written to the client, except where it says so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    /// The node is out of reach.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The node broke off before its answer began. It may have done what was asked.
    #[error("the node broke off: {0}")]
    Broken(#[source] io::Error),
    /// The node has ended an idle stream, and not read the request.
    #[error("the node ended the connection")]
    NotRead,
    /// The node's answer makes no sense.
    #[error("the node's answer is malformed: {0}")]
    Answer(#[from] HeadError),
    /// The client's body makes no sense.
    #[error("the request's body is malformed: {0}")]
    Body(#[from] BodyError),
    /// The answer would be longer than is to be relayed. The client's connection is
    /// as it was.
    #[error("the answer is too long to be relayed")]
    TooLong,
    /// The node is not one that answers this, as it sees the cluster. The client's
    /// connection is as it was, but for what was read of a body.
    #[error("the node is not one that answers this")]
    Elsewhere,
    /// The client broke off, or the answer did in its middle: the connection
    /// cannot go on.
    #[error("the connection broke: {0}")]
    Connection(#[source] io::Error),
}

/// What is to be relayed.
pub(crate) struct Relayed<'r> {
    pub(crate) head: &'r RequestHead,
    pub(crate) preamble: Preamble,
    /// Whether answering it twice has the same effect as once.
    pub(crate) is_repeatable: bool,
}

impl Relayed<'_> {
    /// The meaning of `421` from the other node.
    fn refused(&self) -> RelayError {
        match self.preamble.most_bytes {
            Some(_) => RelayError::TooLong,
            None => RelayError::Elsewhere,
        }
    }
}

/// An answer that was relayed.
pub(crate) struct Answered {
    /// Whether the client's connection lives on.
    pub(crate) keep_alive: bool,
    /// Length of its body, if it had said so.
    pub(crate) body_bytes: Option<u64>,
}

impl Worker {
    /// Relays one request of `client` to `peer` and its answer back.
    pub(super) async fn relay(
        &self,
        client: &mut Connection,
        peer: &str,
        request: &Relayed<'_>,
        body: &mut RequestBody,
    ) -> Result<Answered, RelayError> {
        self.node.counters.relayed.add_one();
        let (mut upstream, answer) = self.exchange(client, peer, request, body).await?;
        let answer = match answer {
            Head::Plain(plain) => {
                return self.pass_on(client, (peer, upstream), request, plain).await;
            }
            Head::Parsed(answer) => answer,
        };
        let framing = answer.framing(request.head.method())?;
        if answer.status() == HAND_OVER {
            if framing == ResponseFraming::Length(0) && answer.keep_alive() && upstream.is_clean() {
                self.keep_relay(peer, upstream);
            }
            return Err(request.refused());
        }
        let is_whole = body.is_done();
        let keep_alive = request.head.keep_alive() && body.can_skip_rest(client).await;
        let date = self.date();
        let exchange = Exchange {
            keep_alive,
            ..request.head.exchange(&date)
        };
        let upstream_stays = answer.keep_alive();
        let written = write_head(client, answer, &exchange, framing).await?;
        let mut answer_body = BodyReader::new(framing, u64::MAX);
        copy_answer(&mut upstream, client, &mut answer_body, written.framing).await?;
        if upstream_stays && is_whole && answer_body.is_done() && upstream.is_clean() {
            self.keep_relay(peer, upstream);
        }
        Ok(Answered {
            keep_alive: written.keep_alive && body.skip_rest(client).await,
            body_bytes: match framing {
                ResponseFraming::Length(bytes) => Some(bytes),
                _ => None,
            },
        })
    }

    /// Gives the client an answer as it came; in one piece, where all of it is here.
    async fn pass_on(
        &self,
        client: &mut Connection,
        (peer, mut upstream): (&str, RelayStream),
        request: &Relayed<'_>,
        answer: PlainAnswer,
    ) -> Result<Answered, RelayError> {
        let PlainAnswer {
            status,
            head_bytes,
            body_bytes,
        } = answer;
        let is_refusal = status == HAND_OVER;
        if is_refusal {
            upstream.consume(head_bytes);
        } else {
            let answer_bytes = usize::try_from(body_bytes).ok();
            let answer_bytes = answer_bytes.and_then(|bytes| bytes.checked_add(head_bytes));
            let whole = answer_bytes.and_then(|bytes| upstream.buffered().get(..bytes));
            if let Some(whole) = whole {
                let sent = client.write_all(whole).await;
                sent.map_err(RelayError::Connection)?;
                upstream.consume(whole.len());
            } else {
                let head = upstream.buffered().get(..head_bytes).unwrap_or_default();
                let sent = client.write_more(head).await;
                sent.map_err(RelayError::Connection)?;
                upstream.consume(head_bytes);
                let framing = ResponseFraming::Length(body_bytes);
                let mut body = BodyReader::new(framing, u64::MAX);
                copy_answer(&mut upstream, client, &mut body, framing).await?;
            }
        }
        if upstream.is_clean() {
            self.keep_relay(peer, upstream);
        }
        if is_refusal {
            return Err(request.refused());
        }
        Ok(Answered {
            keep_alive: true,
            body_bytes: Some(body_bytes),
        })
    }

    /// Sends the request, and reads the head of the answer. A pooled stream may end
    /// meanwhile: a fresh one is tried where nothing of the body is lost, and the request was
    /// certainly not read or may be answered twice.
    async fn exchange(
        &self,
        client: &mut Connection,
        peer: &str,
        request: &Relayed<'_>,
        body: &mut RequestBody,
    ) -> Result<(RelayStream, Head), RelayError> {
        let (mut upstream, used) = self.begin(peer, request).await?;
        if has_body(request.head) {
            let mut invited = invitation(&mut upstream).await;
            if used && matches!(invited, Err(RelayError::Broken(_) | RelayError::NotRead)) {
                upstream = self.fresh(peer).await?;
                let sent = upstream.write_all(&encode_head(request)).await;
                sent.map_err(RelayError::Broken)?;
                invited = invitation(&mut upstream).await;
            }
            if let Some(answer) = invited? {
                return Ok((upstream, Head::Parsed(answer)));
            }
        }
        body.invite(client).await.map_err(RelayError::Connection)?;
        let is_whole = used && body.is_done();
        let answer = match is_simple(request.head) {
            true => read_plain(&mut upstream).await,
            false => {
                let answer = send_body(&mut upstream, client, body).await;
                answer.map(Head::Parsed)
            }
        };
        match answer {
            Err(error) if is_whole && request.may_follow(&error) => {
                let (mut upstream, head) = (self.fresh(peer).await?, encode_head(request));
                upstream
                    .write_all(&head)
                    .await
                    .map_err(RelayError::Broken)?;
                let answer = read_answer(&mut upstream).await?;
                Ok((upstream, Head::Parsed(answer)))
            }
            answer => Ok((upstream, answer?)),
        }
    }

    /// Sends a request's head to `peer`, and says whether the stream was used
    /// before. A used one that is seen to have ended is replaced: before the head is sent where
    /// the request cannot be repeated whole, and where the head did not leave whole, as
    /// nobody answers a part of one.
    pub(super) async fn begin(
        &self,
        peer: &str,
        request: &Relayed<'_>,
    ) -> Result<(RelayStream, bool), RelayError> {
        let head = encode_head(request);
        let (stream, used) = self.handle.relay(peer).await?;
        let mut upstream = self.in_time(stream);
        let looks = used && (has_body(request.head) || !request.is_repeatable);
        let sent = match looks && is_closed(&mut upstream).await {
            true => Err(io::ErrorKind::NotConnected.into()),
            false => upstream.write_all(&head).await,
        };
        if used && sent.is_err() {
            upstream = self.fresh(peer).await?;
            upstream
                .write_all(&head)
                .await
                .map_err(RelayError::Broken)?;
            return Ok((upstream, false));
        }
        sent.map_err(RelayError::Broken)?;
        Ok((upstream, used))
    }

    /// Keeps a stream that is between two requests for the next.
    pub(super) fn keep_relay(&self, peer: &str, upstream: RelayStream) {
        self.handle.keep_relay(peer, upstream);
    }

    pub(super) async fn fresh(&self, peer: &str) -> Result<RelayStream, RelayError> {
        Ok(self.in_time(self.handle.fresh_relay(peer).await?))
    }

    fn in_time(&self, mut stream: RelayStream) -> RelayStream {
        stream.set_io_timeout(self.node.config.limits.stall_timeout());
        stream
    }
}

impl Relayed<'_> {
    /// Whether the request may be sent again after this, if nothing of its body is lost.
    pub(super) fn may_follow(&self, error: &RelayError) -> bool {
        match error {
            RelayError::NotRead => true,
            RelayError::Broken(_) => self.is_repeatable,
            _ => false,
        }
    }
}

pub(super) fn encode_head(request: &Relayed<'_>) -> Vec<u8> {
    let mut head = Vec::with_capacity(1024);
    request.preamble.encode(&mut head);
    let mut extra = Headers::new();
    // A node that does not answer this says so before anything of the body is gone.
    if !request.preamble.alone && has_body(request.head) {
        // Both are well-formed.
        let _ = extra.append("Expect", "100-continue");
    }
    let framing = request.head.framing();
    request.head.write_forward(framing, &extra, &mut head);
    head
}
