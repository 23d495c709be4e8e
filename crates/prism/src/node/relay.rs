//! Relaying: a request is answered by another node, and its bytes pass through
//! this one, as at an ordinary proxy. For answers too small to be worth a
//! hand-off, and for every hand-off that could not be.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use prism_handoff::{Connection, PeerError};
use prism_http::{
    BodyError, BodyFraming, BodyReader, CONTINUE, Exchange, HeadError, Headers, RequestHead,
    ResponseFraming, ResponseHead, Written,
};
use prism_proto::relay::{HAND_OVER, Preamble};
use prism_s3::Principal;
use tokio::io::AsyncWriteExt;

use super::Worker;
use super::io::{Input, Io, RelayIo};

/// Body bytes on their way in one direction.
const PIECE_BYTES: usize = 64 << 10;

/// Why a request was not answered by the other node. Nothing of the answer has
/// been written to the client, except where it says so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    /// The node is out of reach.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The node broke off before its answer began.
    #[error("the node broke off: {0}")]
    Broken(#[source] io::Error),
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
    /// The client broke off, or the answer did in its middle: the connection
    /// cannot go on.
    #[error("the connection broke: {0}")]
    Connection(#[source] io::Error),
}

/// What is to be relayed.
pub(crate) struct Relayed<'r> {
    pub(crate) head: &'r RequestHead,
    pub(crate) preamble: Preamble,
    /// Most bytes of a chunked body.
    pub(crate) max_body_bytes: u64,
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
    pub(crate) async fn relay(
        &self,
        client: &mut Connection,
        peer: &str,
        request: &Relayed<'_>,
    ) -> Result<Answered, RelayError> {
        self.node.counters.relayed.add_one();
        let mut body = BodyReader::new(request.head.framing().into(), request.max_body_bytes);
        let (mut upstream, answer) = self.exchange(client, peer, request, &mut body).await?;
        let framing = answer.framing(request.head.method())?;
        if request.preamble.most_bytes.is_some() && answer.status() == HAND_OVER {
            if framing == ResponseFraming::Length(0) && answer.keep_alive() && upstream.is_clean() {
                self.keep_relay(peer, upstream);
            }
            return Err(RelayError::TooLong);
        }
        // An answer before the end of the body: what follows is no request.
        let keep_alive = request.head.keep_alive() && body.is_done();
        let date = self.date();
        let exchange = Exchange {
            keep_alive,
            ..request.head.exchange(&date)
        };
        let upstream_stays = answer.keep_alive();
        let whole = whole_body(&upstream, framing);
        let written = write_head(client, answer, &exchange, (framing, whole)).await?;
        let whole_bytes = whole.map(<[u8]>::len);
        let mut answer_body = BodyReader::new(framing, u64::MAX);
        match whole_bytes {
            Some(bytes) => {
                upstream.consume(bytes);
                answer_body = BodyReader::new(ResponseFraming::None, u64::MAX);
            }
            None => copy_answer(&mut upstream, client, &mut answer_body, written.framing).await?,
        }
        if upstream_stays && body.is_done() && answer_body.is_done() && upstream.is_clean() {
            self.keep_relay(peer, upstream);
        }
        Ok(Answered {
            keep_alive: written.keep_alive,
            body_bytes: match framing {
                ResponseFraming::Length(bytes) => Some(bytes),
                _ => None,
            },
        })
    }

    /// Sends the request, and reads the head of the answer. A pooled stream may
    /// have been closed by the peer meanwhile: where no body can have been lost, a
    /// fresh one is tried.
    async fn exchange(
        &self,
        client: &mut Connection,
        peer: &str,
        request: &Relayed<'_>,
        body: &mut BodyReader,
    ) -> Result<(RelayIo, ResponseHead), RelayError> {
        let (mut upstream, used) = self.begin(peer, request).await?;
        if request.head.expects_continue() && client.buffered().is_empty() {
            client
                .write_all(CONTINUE)
                .await
                .map_err(RelayError::Connection)?;
        }
        let may_repeat = used && body.is_done();
        match send_body(&mut upstream, client, body).await {
            Err(RelayError::Broken(_)) if may_repeat => {
                let (mut upstream, head) = (self.fresh(peer).await?, encode_head(request));
                upstream
                    .write_all(&head)
                    .await
                    .map_err(RelayError::Broken)?;
                let answer = read_answer(&mut upstream).await?;
                Ok((upstream, answer))
            }
            answer => Ok((upstream, answer?)),
        }
    }

    /// Sends a request's head to `peer`, and says whether the stream was used
    /// before. One that the peer is seen to have closed is replaced, where a body follows:
    /// without one the whole request can be repeated.
    pub(super) async fn begin(
        &self,
        peer: &str,
        request: &Relayed<'_>,
    ) -> Result<(RelayIo, bool), RelayError> {
        let head = encode_head(request);
        let (stream, used) = self.handle.relay(peer).await?;
        let timeout = self.node.config.limits.stall_timeout();
        let mut upstream = RelayIo::with_room(stream, timeout, self.relay_rooms.take());
        let sent = upstream.write_all(&head).await;
        let has_body = !matches!(
            request.head.framing(),
            BodyFraming::None | BodyFraming::Length(0)
        );
        let is_lost = sent.is_err() || has_body && is_closed(&mut upstream).await;
        if used && is_lost {
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
    pub(super) fn keep_relay(&self, peer: &str, upstream: RelayIo) {
        let (stream, room) = upstream.into_parts();
        self.relay_rooms.leave(room);
        self.handle.keep_relay(peer, stream);
    }

    pub(super) async fn fresh(&self, peer: &str) -> Result<RelayIo, RelayError> {
        let stream = self.handle.fresh_relay(peer).await?;
        Ok(RelayIo::new(
            stream,
            self.node.config.limits.stall_timeout(),
        ))
    }

    /// Asks `peer` itself, not for a client: the whole answer, at most
    /// `max_bytes` of it. The request must be one that may be repeated.
    pub(crate) async fn ask(
        &self,
        peer: &str,
        request: &Relayed<'_>,
        body: &[u8],
        max_bytes: usize,
    ) -> Result<(ResponseHead, Vec<u8>), RelayError> {
        let (mut upstream, answer) = self.begin_asking(peer, request, body).await?;
        let framing = answer.framing(request.head.method())?;
        let bytes = read_all(&mut upstream, framing, max_bytes).await?;
        if answer.keep_alive() && upstream.is_clean() {
            self.keep_relay(peer, upstream);
        }
        Ok((answer, bytes))
    }

    /// Asks `peer` for an object, of which the head has been read then.
    pub(crate) async fn ask_for_object(
        &self,
        peer: &str,
        head: &RequestHead,
        principal: &Principal,
    ) -> Result<(RelayIo, ResponseHead), RelayError> {
        let request = Relayed {
            head,
            preamble: super::relayed::preamble(principal, true),
            max_body_bytes: 0,
        };
        self.begin_asking(peer, &request, &[]).await
    }

    pub(super) async fn begin_asking(
        &self,
        peer: &str,
        request: &Relayed<'_>,
        body: &[u8],
    ) -> Result<(RelayIo, ResponseHead), RelayError> {
        let (mut upstream, used) = self.begin(peer, request).await?;
        let sent = upstream.write_all(body).await;
        let answer = match sent {
            Ok(()) => read_answer(&mut upstream).await,
            Err(error) => Err(RelayError::Broken(error)),
        };
        match answer {
            Err(RelayError::Broken(_)) if used => {
                let mut upstream = self.fresh(peer).await?;
                let mut bytes = encode_head(request);
                bytes.extend_from_slice(body);
                upstream
                    .write_all(&bytes)
                    .await
                    .map_err(RelayError::Broken)?;
                let answer = read_answer(&mut upstream).await?;
                Ok((upstream, answer))
            }
            answer => Ok((upstream, answer?)),
        }
    }
}

/// The rest of an answer, at most `max_bytes`.
pub(crate) async fn read_all(
    upstream: &mut RelayIo,
    framing: ResponseFraming,
    max_bytes: usize,
) -> Result<Vec<u8>, RelayError> {
    let mut reader = BodyReader::new(framing, max_bytes as u64);
    let mut bytes = Vec::new();
    while !reader.is_done() {
        if upstream.buffered().is_empty() && upstream.fill().await.map_err(RelayError::Broken)? == 0
        {
            reader.end_of_input()?;
            break;
        }
        let step = reader.consume(upstream.buffered())?;
        bytes.extend_from_slice(upstream.buffered().get(step.data).unwrap_or_default());
        upstream.consume(step.consumed);
        if bytes.len() > max_bytes {
            return Err(RelayError::Body(BodyError::TooLong));
        }
    }
    Ok(bytes)
}

pub(super) fn encode_head(request: &Relayed<'_>) -> Vec<u8> {
    let mut head = Vec::with_capacity(1024);
    request.preamble.encode(&mut head);
    request
        .head
        .write_forward(request.head.framing(), &Headers::new(), &mut head);
    head
}

/// The peer has closed an idle stream: it says so before any answer.
async fn is_closed(upstream: &mut RelayIo) -> bool {
    let mut filled = pin!(upstream.fill());
    // The runtime's clock knows milliseconds: no time would be one of them.
    let looked = poll_fn(|cx| Poll::Ready(filled.as_mut().poll(cx))).await;
    matches!(looked, Poll::Ready(Ok(0) | Err(_)))
}

/// Passes the body on until it ends or the answer begins, whichever is first.
async fn send_body(
    upstream: &mut RelayIo,
    client: &mut Connection,
    body: &mut BodyReader,
) -> Result<ResponseHead, RelayError> {
    let mut chunks = Vec::new();
    let is_chunked = matches!(body, BodyReader::Chunked(_));
    while !body.is_done() {
        if client.buffered().is_empty() {
            // Both ways at once: a node that refuses early is heard.
            tokio::select! {
                read = client.fill() => {
                    if read.map_err(RelayError::Connection)? == 0 {
                        body.end_of_input()?;
                    }
                }
                read = upstream.fill() => {
                    return match read {
                        Ok(n) if n > 0 => read_answer(upstream).await,
                        Ok(_) => Err(RelayError::Broken(io::ErrorKind::UnexpectedEof.into())),
                        Err(error) => Err(RelayError::Broken(error)),
                    };
                }
            }
            continue;
        }
        let piece = client.buffered();
        let piece = piece
            .get(..piece.len().min(PIECE_BYTES))
            .unwrap_or_default();
        let step = body.consume(piece)?;
        let data = piece.get(step.data).unwrap_or_default();
        let sent = if is_chunked {
            chunks.clear();
            if !data.is_empty() {
                prism_http::write_chunk(data, &mut chunks);
            }
            if step.done {
                chunks.extend_from_slice(prism_http::LAST_CHUNK);
            }
            upstream.write_more(&chunks).await
        } else {
            upstream.write_more(data).await
        };
        client.consume(step.consumed);
        if sent.is_err() {
            // It may have answered before it stopped reading.
            return read_answer(upstream).await;
        }
    }
    let _ = upstream.stream.flush().await;
    read_answer(upstream).await
}

/// The head of the final answer.
pub(super) async fn read_answer(upstream: &mut RelayIo) -> Result<ResponseHead, RelayError> {
    loop {
        if let Some((head, len)) =
            ResponseHead::parse(upstream.buffered(), &prism_http::Limits::DEFAULT)?
        {
            upstream.consume(len);
            if head.status() >= 200 {
                return Ok(head);
            }
            continue;
        }
        match upstream.fill().await {
            Ok(0) => return Err(RelayError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(RelayError::Broken(error)),
        }
    }
}

/// The body of an answer, where all of it is here already.
fn whole_body(upstream: &RelayIo, framing: ResponseFraming) -> Option<&[u8]> {
    match framing {
        ResponseFraming::Length(bytes @ 1..) => {
            let bytes = usize::try_from(bytes).ok()?;
            upstream.buffered().get(..bytes)
        }
        _ => None,
    }
}

/// Writes the head of an answer; with its body behind it where that is `whole`.
async fn write_head(
    client: &mut Connection,
    mut answer: ResponseHead,
    exchange: &Exchange<'_>,
    (framing, whole): (ResponseFraming, Option<&[u8]>),
) -> Result<Written, RelayError> {
    use prism_http::AnswerBody;
    let body = match (framing, answer.declared_length()?) {
        (_, Some(n)) => AnswerBody::Length(n),
        (ResponseFraming::None, None) => AnswerBody::Empty,
        _ => AnswerBody::Unknown,
    };
    answer.remove_hop_by_hop();
    let whole = whole.unwrap_or_default();
    let mut bytes = Vec::with_capacity(512 + whole.len());
    let written = answer.write_to(exchange, body, &mut bytes);
    bytes.extend_from_slice(whole);
    let is_all = matches!(
        written.framing,
        ResponseFraming::None | ResponseFraming::Length(0)
    );
    let sent = match is_all || !whole.is_empty() {
        true => client.write_all(&bytes).await,
        false => client.write_more(&bytes).await,
    };
    sent.map_err(RelayError::Connection)?;
    Ok(written)
}

async fn copy_answer(
    upstream: &mut RelayIo,
    client: &mut Connection,
    body: &mut BodyReader,
    to_client: ResponseFraming,
) -> Result<(), RelayError> {
    let mut chunks = Vec::new();
    while !body.is_done() {
        if upstream.buffered().is_empty() {
            match upstream.fill().await {
                Ok(0) => {
                    let ended = body.end_of_input();
                    ended.map_err(|e| RelayError::Connection(io::Error::other(e)))?;
                    break;
                }
                Ok(_) => {}
                Err(error) => return Err(RelayError::Connection(error)),
            }
        }
        let step = body.consume(upstream.buffered());
        let step = step.map_err(|e| RelayError::Connection(io::Error::other(e)))?;
        let data = upstream
            .buffered()
            .get(step.data.clone())
            .unwrap_or_default();
        let sent = if to_client == ResponseFraming::Chunked && !data.is_empty() {
            chunks.clear();
            prism_http::write_chunk(data, &mut chunks);
            client.write_all(&chunks).await
        } else {
            client.write_all(data).await
        };
        sent.map_err(RelayError::Connection)?;
        upstream.consume(step.consumed);
    }
    if to_client == ResponseFraming::Chunked {
        client
            .write_all(prism_http::LAST_CHUNK)
            .await
            .map_err(RelayError::Connection)?;
    }
    Ok(())
}
