//! The answer of a server on its way to the client, with the rest of the request on its way to the
//! server.

use std::io;
use std::time::Duration;

use prism_http::{
    BodyError, BodyReader, Exchange, HeadError, Headers, Method, ResponseFraming, ResponseHead,
    write_chunk, write_last_chunk,
};
use prism_service::Io;

use crate::exchange::{Fault, Step, Transfer};
use crate::private;
use crate::retry::Failure;
use crate::server::Server;

/// The longest wait for the end of an answer of unknown length that may be short.
const SHORT_WAIT: Duration = Duration::from_millis(10);
/// If less of a body is left, it is copied: a pipe would cost more.
const SPLICE_BYTES: u64 = 32 << 10;

/// The head of an answer without the fields of the server's connection, and what these said. Fields
/// that are added go to the client, whatever the server names in `Connection`.
pub(crate) struct Answer {
    head: ResponseHead,
    framing: ResponseFraming,
    /// The length that the head declares, also if no body follows.
    body_bytes: Option<u64>,
    /// Whether the server's connection may have another request.
    server_stays: bool,
    /// The protocol of an answer that switches.
    upgrade: Option<Box<[u8]>>,
    /// Whether it offers to authenticate the server's connection.
    pub(crate) offers_login: bool,
}

impl Answer {
    /// The answer of this head to a request of this method.
    ///
    /// # Errors
    /// The head is ambiguous about its body.
    pub(crate) fn new(mut head: ResponseHead, method: &Method) -> Result<Self, HeadError> {
        let framing = head.framing(method)?;
        let body_bytes = head.declared_length()?;
        let server_stays = head.keep_alive() && framing != ResponseFraming::UntilClose;
        let upgrade = head.headers().get("upgrade").map(Into::into);
        let offers_login = private::is_offered(&head);
        head.remove_hop_by_hop();
        Ok(Self {
            head,
            framing,
            body_bytes,
            server_stays,
            upgrade,
            offers_login,
        })
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.status()
    }

    /// The fields for the client.
    pub(crate) fn headers_mut(&mut self) -> &mut Headers {
        self.head.headers_mut()
    }

    /// The head of an answer that switches, with its protocol.
    pub(crate) fn write_switch(&self, exchange: &Exchange<'_>, out: &mut Vec<u8>) {
        let _ = self.head.write_to(exchange, None, out);
        // The writer leaves these two out, and ends with an empty line.
        out.truncate(out.len().saturating_sub(2));
        out.extend_from_slice(b"Connection: upgrade\r\nUpgrade: ");
        out.extend_from_slice(self.upgrade.as_deref().unwrap_or_default());
        out.extend_from_slice(b"\r\n\r\n");
    }
}

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
        answer: &Answer,
        max_bytes: u32,
    ) -> Result<bool, Fault> {
        let framing = answer.framing;
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
                        // Full.
                        Ok(Err(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
                            return Ok(false);
                        }
                        // The next read would find an end in order.
                        Ok(Err(_)) => return Err(Fault::Server(Failure::Malformed)),
                        Err(_) => return Ok(false),
                    }
                }
            }
        }
    }

    /// Sends the client an answer whose head has come, and the server the rest of the body.
    pub(crate) async fn pass(
        &mut self,
        answer: Answer,
        exchange: &Exchange<'_>,
    ) -> Result<Passed, Fault> {
        let Answer {
            head,
            framing,
            body_bytes,
            server_stays,
            ..
        } = answer;
        let keep_alive = exchange.keep_alive && self.body.can_skip_rest(self.io).await;
        // The server's own, if it has sent one.
        let date = head.headers().get_str("date").map(str::to_owned);
        let exchange = Exchange {
            keep_alive,
            date: date.as_deref().unwrap_or(exchange.date),
            ..*exchange
        };
        let written = head.write_to(&exchange, body_bytes, self.to_client.bytes_mut());
        let mut reader = BodyReader::new(framing, u64::MAX);
        let is_chunked = written.framing == ResponseFraming::Chunked;
        // The bytes of the body that have come leave with the head.
        let first = self.take_pieces(&mut reader, is_chunked);
        let first = first.map_err(|_| Fault::Server(Failure::Malformed))?;
        let rest = self.pass_body(&mut reader, is_chunked).await;
        let passed_bytes = first + rest.map_err(broken_off)?;
        if let Some(noted) = exchange.noted {
            noted.set_answer(head.status(), passed_bytes);
        }
        let is_whole = self.is_request_sent();
        Ok(Passed {
            keep_alive: written.keep_alive,
            is_reusable: server_stays && reader.is_done() && is_whole,
        })
    }

    /// Takes all that has come of the body for the client. Returns the number of its bytes.
    fn take_pieces(&mut self, reader: &mut BodyReader, is_chunked: bool) -> Result<u64, BodyError> {
        let (input, out) = (&mut self.server.input, self.to_client.bytes_mut());
        let mut taken_bytes = 0;
        while !reader.is_done() && !input.buffered().is_empty() {
            let step = reader.consume(input.buffered())?;
            let data = input.buffered().get(step.data).unwrap_or_default();
            taken_bytes += data.len() as u64;
            match is_chunked {
                true => write_chunk(data, out),
                false => out.extend_from_slice(data),
            }
            input.consume(step.consumed);
        }
        Ok(taken_bytes)
    }

    /// Sends what waits for the client, and the rest of the body. Returns the number of its bytes.
    async fn pass_body(&mut self, reader: &mut BodyReader, is_chunked: bool) -> Result<u64, Fault> {
        let is_plain = !is_chunked && !matches!(reader, BodyReader::Chunked(_));
        let (mut passed_bytes, mut may_splice) = (0, true);
        while !reader.is_done() {
            self.send().await?;
            let goes_on = self.goes_on();
            let has_come = !self.server.input.buffered().is_empty();
            let long = reader.left().filter(|left| *left >= SPLICE_BYTES);
            if has_come && is_plain && !goes_on {
                passed_bytes += self.pass_piece(reader).await?;
            } else if has_come {
                passed_bytes += self.take_pieces(reader, is_chunked)?;
            } else if let Some(left) = long.filter(|_| may_splice && !goes_on) {
                let stream = &self.server.stream;
                let sent = self.io.send_stream(stream, left, self.timeout).await;
                let sent = sent.map_err(Fault::Connection)?;
                reader.skip(sent);
                passed_bytes += sent;
                may_splice = sent > 0;
            } else {
                match self.step(self.timeout).await? {
                    Step::Moved | Step::Came => {}
                    Step::Ended => {
                        reader.end_of_input()?;
                        break;
                    }
                    Step::Broken(error) => return Err(Fault::Connection(error)),
                    Step::Silent => return Err(Fault::Server(Failure::Silent)),
                }
            }
        }
        if is_chunked {
            write_last_chunk(reader.trailers(), self.to_client.bytes_mut());
        }
        self.send().await?;
        Ok(passed_bytes)
    }

    /// Passes what has come of a body without chunks, and copies nothing for that.
    async fn pass_piece(&mut self, reader: &mut BodyReader) -> Result<u64, Fault> {
        let input = &mut self.server.input;
        let step = reader.consume(input.buffered())?;
        let data = input.buffered().get(step.data).unwrap_or_default();
        let sent = self.io.write_all(data).await;
        sent.map_err(Fault::Connection)?;
        input.consume(step.consumed);
        Ok(step.consumed as u64)
    }

    /// Sends what waits for the client, while the body of the request goes on.
    async fn send(&mut self) -> Result<(), Fault> {
        while !self.to_client.is_empty() {
            if self.goes_on() {
                self.step(self.timeout).await?;
            } else {
                self.send_all().await.map_err(Fault::Connection)?;
            }
        }
        Ok(())
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
pub(crate) fn broken_off(fault: Fault) -> Fault {
    match fault {
        Fault::Connection(error) => Fault::Connection(error),
        fault => Fault::Connection(io::Error::other(format!("the answer broke off: {fault:?}"))),
    }
}
