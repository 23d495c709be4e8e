//! The answer of a server on its way to the client.

use std::io;
use std::time::Duration;

use prism_http::{
    BodyReader, Exchange, Method, ResponseFraming, ResponseHead, write_chunk, write_last_chunk,
};
use prism_service::Io;

use crate::exchange::{Fault, Step, Transfer};
use crate::retry::Failure;
use crate::server::Server;

/// The longest wait for the end of an answer of unknown length that may be short.
const SHORT_WAIT: Duration = Duration::from_millis(10);
/// If less of a body is left, it is copied: a pipe would cost more.
const SPLICE_BYTES: u64 = 32 << 10;
/// The longest body that leaves with its head in one write.
const SHORT_BYTES: usize = 16 << 10;

/// An answer that was sent to the client.
pub(crate) struct Passed {
    /// Whether the client's connection may live on.
    pub(crate) keep_alive: bool,
    /// Whether the server's connection may have another request.
    pub(crate) is_reusable: bool,
}

impl<I: Io> Transfer<'_, I> {
    /// Whether the body of an answer whose head has come has at most `max_bytes`. An answer of
    /// unknown length is short if it ends at once.
    pub(crate) async fn is_short(
        &mut self,
        answer: &ResponseHead,
        method: &Method,
        max_bytes: u32,
    ) -> Result<bool, Fault> {
        let framing = answer.framing(method)?;
        match framing {
            ResponseFraming::None => return Ok(true),
            ResponseFraming::Length(bytes) => return Ok(bytes <= max_bytes.into()),
            ResponseFraming::Chunked | ResponseFraming::UntilClose => {}
        }
        let Server { stream, input, .. } = &mut *self.server;
        let deadline = tokio::time::Instant::now() + SHORT_WAIT;
        loop {
            match ends_within(input.buffered(), framing, max_bytes) {
                Some(ends) => return Ok(ends),
                None => {
                    let filled = tokio::time::timeout_at(deadline, input.fill(stream)).await;
                    match filled {
                        Ok(Ok(1..)) => {}
                        // The next read finds the end again.
                        Ok(Ok(0)) => return Ok(framing == ResponseFraming::UntilClose),
                        Ok(Err(_)) | Err(_) => return Ok(false),
                    }
                }
            }
        }
    }

    /// Sends the client an answer whose head has come, and the server the rest of the body.
    pub(crate) async fn pass(
        &mut self,
        mut answer: ResponseHead,
        exchange: &Exchange<'_>,
    ) -> Result<Passed, Fault> {
        let (status, framing) = (answer.status(), answer.framing(exchange.method)?);
        let body_bytes = answer.declared_length()?;
        let server_stays = answer.keep_alive() && framing != ResponseFraming::UntilClose;
        let keep_alive = exchange.keep_alive && self.body.can_skip_rest(self.io).await;
        // The server's own, if it has sent one.
        let date = answer.headers().get_str("date").map(str::to_owned);
        let exchange = Exchange {
            keep_alive,
            date: date.as_deref().unwrap_or(exchange.date),
            ..*exchange
        };
        answer.remove_hop_by_hop();
        let mut head = Vec::with_capacity(512);
        let written = answer.write_to(&exchange, body_bytes, &mut head);
        let mut reader = BodyReader::new(framing, u64::MAX);
        let short = self.take_short(&mut reader, &mut head)?;
        let follows_at_once = !reader.is_done() && !self.server.input.buffered().is_empty();
        let sent = match follows_at_once {
            true => self.io.write_more(&head).await,
            false => self.io.write_all(&head).await,
        };
        sent.map_err(Fault::Connection)?;
        let passed_bytes = self.pass_body(&mut reader, written.framing).await;
        let passed_bytes = short + passed_bytes.map_err(broken_off)?;
        if let Some(noted) = exchange.noted {
            noted.set_answer(status, passed_bytes);
        }
        let is_whole = self.is_request_sent();
        Ok(Passed {
            keep_alive: written.keep_alive,
            is_reusable: server_stays && reader.is_done() && is_whole,
        })
    }

    /// Adds a short body of known length that has come to the head, so that one write sends both.
    /// Returns its bytes.
    fn take_short(&mut self, reader: &mut BodyReader, head: &mut Vec<u8>) -> Result<u64, Fault> {
        let input = &mut self.server.input;
        let left = reader.left().and_then(|left| usize::try_from(left).ok());
        let Some(left) = left.filter(|left| *left <= input.buffered().len().min(SHORT_BYTES))
        else {
            return Ok(0);
        };
        let step = reader.consume(input.buffered())?;
        head.extend_from_slice(input.buffered().get(step.data).unwrap_or_default());
        input.consume(step.consumed);
        Ok(left as u64)
    }

    /// Returns the number of bytes.
    async fn pass_body(
        &mut self,
        reader: &mut BodyReader,
        to_client: ResponseFraming,
    ) -> Result<u64, Fault> {
        let (mut chunk, mut passed_bytes) = (Vec::new(), 0);
        let is_chunked = to_client == ResponseFraming::Chunked;
        let mut may_splice = true;
        while !reader.is_done() {
            let is_request_sent = self.is_request_sent();
            let input = &mut self.server.input;
            if input.buffered().is_empty() {
                let left = reader.left().filter(|left| *left >= SPLICE_BYTES);
                if let Some(left) = left.filter(|_| may_splice && is_request_sent) {
                    let stream = &self.server.stream;
                    let sent = self.io.send_stream(stream, left, self.timeout).await;
                    let sent = sent.map_err(Fault::Connection)?;
                    reader.skip(sent);
                    passed_bytes += sent;
                    may_splice = sent > 0;
                    continue;
                }
                match self.step().await? {
                    Step::Sent | Step::Came => continue,
                    Step::Ended => {
                        reader.end_of_input()?;
                        break;
                    }
                    Step::Silent => return Err(Fault::Server(Failure::Silent)),
                }
            }
            let step = reader.consume(input.buffered())?;
            let data = input.buffered().get(step.data).unwrap_or_default();
            passed_bytes += data.len() as u64;
            let sent = match is_chunked {
                true => {
                    chunk.clear();
                    write_chunk(data, &mut chunk);
                    self.io.write_all(&chunk).await
                }
                false => self.io.write_all(data).await,
            };
            sent.map_err(Fault::Connection)?;
            input.consume(step.consumed);
        }
        if is_chunked {
            chunk.clear();
            write_last_chunk(reader.trailers(), &mut chunk);
            let sent = self.io.write_all(&chunk).await;
            sent.map_err(Fault::Connection)?;
        }
        Ok(passed_bytes)
    }
}

/// Whether a body ends within `max_bytes`; `None` if its end has not come.
fn ends_within(mut bytes: &[u8], framing: ResponseFraming, max_bytes: u32) -> Option<bool> {
    let mut reader = BodyReader::new(framing, max_bytes.into());
    while !bytes.is_empty() && !reader.is_done() {
        let Ok(step) = reader.consume(bytes) else {
            return Some(false);
        };
        bytes = bytes.get(step.consumed..).unwrap_or_default();
    }
    reader.is_done().then_some(true)
}

/// The client has got a part of the answer, so its connection ends.
fn broken_off(fault: Fault) -> Fault {
    match fault {
        Fault::Connection(error) => Fault::Connection(error),
        fault => Fault::Connection(io::Error::other(format!("the answer broke off: {fault:?}"))),
    }
}
