//! Relaying: a request is answered by another node, and its bytes pass through
//! this one, as at an ordinary proxy. For answers too small to be worth a
//! hand-off, and for every hand-off that could not be.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use prism_handoff::{Connection, PeerError, RelayStream};
use prism_http::{
    BodyError, BodyFraming, BodyReader, CONTINUE, Exchange, HeadError, Headers, Method,
    PlainAnswer, RequestHead, ResponseFraming, ResponseHead, Version, Written,
};
use prism_proto::relay::{HAND_OVER, Preamble};
use prism_s3::Principal;

use super::Worker;
use super::io::Io;

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

/// The head of an answer, as it came from the other node.
enum Head {
    /// The client can have it as it is; it is not consumed.
    Plain(PlainAnswer),
    Parsed(ResponseHead),
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
        let answer = match answer {
            Head::Plain(plain) => {
                return self.pass_on(client, (peer, upstream), request, plain).await;
            }
            Head::Parsed(answer) => answer,
        };
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
        let written = write_head(client, answer, &exchange, framing).await?;
        let mut answer_body = BodyReader::new(framing, u64::MAX);
        copy_answer(&mut upstream, client, &mut answer_body, written.framing).await?;
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
        let is_refusal = request.preamble.most_bytes.is_some() && status == HAND_OVER;
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
            return Err(RelayError::TooLong);
        }
        Ok(Answered {
            keep_alive: true,
            body_bytes: Some(body_bytes),
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
    ) -> Result<(RelayStream, Head), RelayError> {
        let (mut upstream, used) = self.begin(peer, request).await?;
        if request.head.expects_continue() && client.buffered().is_empty() {
            client
                .write_all(CONTINUE)
                .await
                .map_err(RelayError::Connection)?;
        }
        let may_repeat = used && body.is_done();
        let answer = match is_simple(request.head) {
            true => read_plain(&mut upstream).await,
            false => {
                let answer = send_body(&mut upstream, client, body).await;
                answer.map(Head::Parsed)
            }
        };
        match answer {
            Err(RelayError::Broken(_)) if may_repeat => {
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
    /// before. One that the peer is seen to have closed is replaced, where a body follows:
    /// without one the whole request can be repeated.
    pub(super) async fn begin(
        &self,
        peer: &str,
        request: &Relayed<'_>,
    ) -> Result<(RelayStream, bool), RelayError> {
        let head = encode_head(request);
        let (stream, used) = self.handle.relay(peer).await?;
        let mut upstream = self.in_time(stream);
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
    ) -> Result<(RelayStream, ResponseHead), RelayError> {
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
    ) -> Result<(RelayStream, ResponseHead), RelayError> {
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
    upstream: &mut RelayStream,
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
async fn is_closed(upstream: &mut RelayStream) -> bool {
    let mut filled = pin!(upstream.fill());
    // The runtime's clock knows milliseconds: no time would be one of them.
    let looked = poll_fn(|cx| Poll::Ready(filled.as_mut().poll(cx))).await;
    matches!(looked, Poll::Ready(Ok(0) | Err(_)))
}

/// Passes the body on until it ends or the answer begins, whichever is first.
async fn send_body(
    upstream: &mut RelayStream,
    client: &mut Connection,
    body: &mut BodyReader,
) -> Result<ResponseHead, RelayError> {
    let mut chunks = Vec::new();
    let is_chunked = matches!(body, BodyReader::Chunked(_));
    while !body.is_done() {
        if client.buffered().is_empty() {
            // The client may take its time.
            if upstream.flush().await.is_err() {
                return read_answer(upstream).await;
            }
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
    // As above.
    let _ = upstream.flush().await;
    read_answer(upstream).await
}

/// Whether a plain answer means the same to the client as to this node.
fn is_simple(head: &RequestHead) -> bool {
    head.framing() == BodyFraming::None
        && head.version() == Version::Http11
        && head.keep_alive()
        && *head.method() != Method::Head
}

/// The head of the final answer, as it is if the client can have it so.
async fn read_plain(upstream: &mut RelayStream) -> Result<Head, RelayError> {
    let is_empty = upstream.buffered().is_empty();
    if is_empty && upstream.fill().await.map_err(RelayError::Broken)? == 0 {
        return Err(RelayError::Broken(io::ErrorKind::UnexpectedEof.into()));
    }
    match PlainAnswer::find(upstream.buffered(), &prism_http::Limits::DEFAULT) {
        Some(plain) => Ok(Head::Plain(plain)),
        None => read_answer(upstream).await.map(Head::Parsed),
    }
}

/// The head of the final answer.
pub(super) async fn read_answer(upstream: &mut RelayStream) -> Result<ResponseHead, RelayError> {
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

async fn write_head(
    client: &mut Connection,
    mut answer: ResponseHead,
    exchange: &Exchange<'_>,
    framing: ResponseFraming,
) -> Result<Written, RelayError> {
    use prism_http::AnswerBody;
    let body = match (framing, answer.declared_length()?) {
        (_, Some(n)) => AnswerBody::Length(n),
        (ResponseFraming::None, None) => AnswerBody::Empty,
        _ => AnswerBody::Unknown,
    };
    answer.remove_hop_by_hop();
    let mut bytes = Vec::with_capacity(512);
    let written = answer.write_to(exchange, body, &mut bytes);
    let sent = match written.framing {
        ResponseFraming::None | ResponseFraming::Length(0) => client.write_all(&bytes).await,
        _ => client.write_more(&bytes).await,
    };
    sent.map_err(RelayError::Connection)?;
    Ok(written)
}

async fn copy_answer(
    upstream: &mut RelayStream,
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
