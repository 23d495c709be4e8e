//! Copies the bytes of a relayed request, piece by piece: its body to the node that answers, the
//! answer's head and body to the client.

use std::io;

use prism_handoff::{Connection, RelayStep, RelayStream};
use prism_http::{
    BodyError, BodyFraming, BodyReader, Exchange, Limits, Method, PlainAnswer, RequestHead,
    ResponseFraming, ResponseHead, Version, Written, write_chunk, write_last_chunk,
};
use prism_proto::relay::HAND_OVER;
use prism_service::{Io as _, RelayError, RequestBody, read_answer, read_any_answer};

/// Body bytes that are sealed at once: fewer than those with which a stream waits until they leave.
const PIECE_BYTES: usize = 48 << 10;

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

/// The body of a request on its way to the node that answers.
pub(crate) struct Upload<'b> {
    pub(crate) body: &'b mut RequestBody,
    /// Whether the peer wants it, and takes it.
    is_wanted: bool,
}

impl<'b> Upload<'b> {
    /// A body that the peer does not want yet.
    pub(crate) fn new(body: &'b mut RequestBody) -> Self {
        Self {
            body,
            is_wanted: false,
        }
    }

    /// Lets the client send the body, which the peer wants.
    pub(crate) async fn invite(&mut self, client: &mut Connection) -> io::Result<()> {
        self.is_wanted = true;
        self.body.invite(client).await
    }

    /// Reads from the peer, and sends it the body meanwhile. Returns the number of bytes; 0 at the
    /// end of the stream.
    async fn fill(
        &mut self,
        upstream: &mut RelayStream,
        client: &mut Connection,
    ) -> Result<usize, RelayError> {
        loop {
            let is_sent = self.body.is_done() && !upstream.has_unsent();
            if is_sent || !self.is_wanted {
                return upstream.fill().await.map_err(RelayError::Broken);
            }
            let sends_more = !self.body.is_done() && !upstream.has_unsent();
            if sends_more && !client.buffered().is_empty() {
                self.send_piece(upstream, client).await?;
                continue;
            }
            tokio::select! {
                step = upstream.fill_or_flush() => match step {
                    RelayStep::Read(filled) => return filled.map_err(RelayError::Broken),
                    // The peer may have answered before it stopped reading.
                    RelayStep::Sent(sent) => self.is_wanted = sent.is_ok(),
                },
                read = client.fill(), if sends_more => {
                    if read.map_err(RelayError::Connection)? == 0 {
                        self.body.reader().end_of_input()?;
                    }
                }
            }
        }
    }

    /// Writes the next bytes of the body, which are buffered. They leave with the next fill.
    async fn send_piece(
        &mut self,
        upstream: &mut RelayStream,
        client: &mut Connection,
    ) -> Result<(), RelayError> {
        let is_chunked = self.body.is_chunked();
        let piece = client.buffered();
        let piece = piece.get(..piece.len().min(PIECE_BYTES));
        let piece = piece.unwrap_or_default();
        let step = self.body.reader().consume(piece)?;
        let data = piece.get(step.data).unwrap_or_default();
        let written = if is_chunked {
            let mut chunks = Vec::with_capacity(data.len() + 64);
            write_chunk(data, &mut chunks);
            if step.done {
                write_last_chunk(self.body.trailers(), &mut chunks);
            }
            upstream.write_more(&chunks).await
        } else {
            upstream.write_more(data).await
        };
        client.consume(step.consumed);
        self.is_wanted = written.is_ok();
        Ok(())
    }
}

/// Sends the body until the final answer begins. Interim answers are skipped.
pub(crate) async fn send_body(
    upstream: &mut RelayStream,
    client: &mut Connection,
    upload: &mut Upload<'_>,
) -> Result<ResponseHead, RelayError> {
    if upload.body.is_done() {
        return read_answer(upstream).await;
    }
    loop {
        if let Some((head, len)) = ResponseHead::parse(upstream.buffered(), &Limits::ANSWER)? {
            upstream.consume(len);
            if head.status() >= 200 {
                return Ok(head);
            }
        } else if upload.fill(upstream, client).await? == 0 {
            return Err(RelayError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
    }
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
    match PlainAnswer::find(upstream.buffered(), &Limits::ANSWER) {
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

/// Copies the body of the answer to the client, and the rest of the request's to the peer.
pub(crate) async fn copy_answer(
    upstream: &mut RelayStream,
    client: &mut Connection,
    upload: &mut Upload<'_>,
    body: &mut BodyReader,
    to_client: ResponseFraming,
) -> Result<(), RelayError> {
    let breaks_off = |error: BodyError| RelayError::Connection(io::Error::other(error));
    // The client has got a part of the answer.
    let ends = |error: RelayError| match error {
        RelayError::Broken(error) => RelayError::Connection(error),
        RelayError::Body(error) => breaks_off(error),
        error => error,
    };
    let mut chunks = Vec::new();
    while !body.is_done() {
        if upstream.buffered().is_empty() {
            let filled = upload.fill(upstream, client).await;
            if filled.map_err(ends)? == 0 {
                body.end_of_input().map_err(breaks_off)?;
                break;
            }
        }
        let step = body.consume(upstream.buffered()).map_err(breaks_off)?;
        let data = upstream.buffered().get(step.data).unwrap_or_default();
        let sent = if to_client == ResponseFraming::Chunked && !data.is_empty() {
            chunks.clear();
            write_chunk(data, &mut chunks);
            client.write_all(&chunks).await
        } else {
            client.write_all(data).await
        };
        sent.map_err(RelayError::Connection)?;
        upstream.consume(step.consumed);
    }
    if to_client == ResponseFraming::Chunked {
        chunks.clear();
        write_last_chunk(body.trailers(), &mut chunks);
        let sent = client.write_all(&chunks).await;
        sent.map_err(RelayError::Connection)?;
    }
    Ok(())
}
