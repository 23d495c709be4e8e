//! Copies the bytes of a relayed request, piece by piece: its body to the node that answers, the
//! answer's head and body to the client.

use std::io;

use prism_handoff::{Connection, RelayStream};
use prism_http::{
    BodyError, BodyFraming, BodyReader, Exchange, Method, PlainAnswer, RequestHead,
    ResponseFraming, ResponseHead, Version, Written,
};
use prism_proto::relay::HAND_OVER;
use prism_service::{Io as _, RelayError, RequestBody, read_answer, read_any_answer};

/// Body bytes on their way in one direction.
const PIECE_BYTES: usize = 64 << 10;

/// The head of an answer, as it came from the other node.
pub(crate) enum Head {
    /// An unconsumed head that the client gets as it is.
    Plain(PlainAnswer),
    Parsed(ResponseHead),
}

/// Waits until the peer wants the body. Returns the final answer, if the peer sends that instead.
pub(crate) async fn invitation(
    upstream: &mut RelayStream,
) -> Result<Option<ResponseHead>, RelayError> {
    loop {
        let head = read_any_answer(upstream).await?;
        match head.status() {
            100 => return Ok(None),
            200.. => return Ok(Some(head)),
            _ => {}
        }
    }
}

/// Sends the body until it ends or the answer begins, whichever is first.
pub(crate) async fn send_body(
    upstream: &mut RelayStream,
    client: &mut Connection,
    body: &mut RequestBody,
) -> Result<ResponseHead, RelayError> {
    let mut chunks = Vec::new();
    let is_chunked = body.is_chunked();
    while !body.is_done() {
        if client.buffered().is_empty() {
            // The client may be slow, so what it has sent leaves now.
            if upstream.flush().await.is_err() {
                return read_answer(upstream).await;
            }
            // The peer may refuse before the end of the body.
            tokio::select! {
                read = client.fill() => {
                    if read.map_err(RelayError::Connection)? == 0 {
                        body.reader().end_of_input()?;
                    }
                }
                read = upstream.fill() => {
                    return match read {
                        Ok(_) => read_answer(upstream).await,
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
        let step = body.reader().consume(piece)?;
        let data = piece.get(step.data).unwrap_or_default();
        let sent = if is_chunked {
            chunks.clear();
            if !data.is_empty() {
                prism_http::write_chunk(data, &mut chunks);
            }
            if step.done {
                prism_http::write_last_chunk(body.trailers(), &mut chunks);
            }
            upstream.write_more(&chunks).await
        } else {
            upstream.write_more(data).await
        };
        client.consume(step.consumed);
        if sent.is_err() {
            // The peer may have answered before it stopped reading.
            return read_answer(upstream).await;
        }
    }
    // After an error here the peer may have answered too.
    let _ = upstream.flush().await;
    read_answer(upstream).await
}

/// Whether a plain answer means the same to the client as to this node.
pub(crate) fn is_simple(head: &RequestHead) -> bool {
    head.framing() == BodyFraming::None
        && head.version() == Version::Http11
        && head.keep_alive()
        && *head.method() != Method::Head
}

/// Reads the head of the final answer; unparsed, if the client can get it as it is.
pub(crate) async fn read_plain(upstream: &mut RelayStream) -> Result<Head, RelayError> {
    let is_empty = upstream.buffered().is_empty();
    if is_empty && upstream.fill().await.map_err(RelayError::Broken)? == 0 {
        return Err(RelayError::NotRead);
    }
    match PlainAnswer::find(upstream.buffered(), &prism_http::Limits::ANSWER) {
        Some(plain) if plain.status != HAND_OVER => Ok(Head::Plain(plain)),
        _ => read_answer(upstream).await.map(Head::Parsed),
    }
}

pub(crate) async fn write_head(
    client: &mut Connection,
    mut answer: ResponseHead,
    exchange: &Exchange<'_>,
) -> Result<Written, RelayError> {
    let body_bytes = answer.declared_length()?;
    answer.remove_hop_by_hop();
    let mut bytes = Vec::with_capacity(512);
    let written = answer.write_to(exchange, body_bytes, &mut bytes);
    let sent = match written.framing {
        ResponseFraming::None | ResponseFraming::Length(0) => client.write_all(&bytes).await,
        _ => client.write_more(&bytes).await,
    };
    sent.map_err(RelayError::Connection)?;
    Ok(written)
}

pub(crate) async fn copy_answer(
    upstream: &mut RelayStream,
    client: &mut Connection,
    body: &mut BodyReader,
    to_client: ResponseFraming,
) -> Result<(), RelayError> {
    let breaks_off = |error: BodyError| RelayError::Connection(io::Error::other(error));
    let mut chunks = Vec::new();
    while !body.is_done() {
        if upstream.buffered().is_empty() {
            let filled = upstream.fill().await.map_err(RelayError::Connection)?;
            if filled == 0 {
                body.end_of_input().map_err(breaks_off)?;
                break;
            }
        }
        let step = body.consume(upstream.buffered()).map_err(breaks_off)?;
        let data = upstream.buffered().get(step.data).unwrap_or_default();
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
        chunks.clear();
        prism_http::write_last_chunk(body.trailers(), &mut chunks);
        let sent = client.write_all(&chunks).await;
        sent.map_err(RelayError::Connection)?;
    }
    Ok(())
}
