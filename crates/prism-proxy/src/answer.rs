//! The answer of a server on its way to the client, with the rest of the request on its way to the
//! server.

use std::io;
use std::time::Duration;

use prism_http::{
    BodyError, BodyReader, HeadError, Headers, Method, PlainAnswer, ResponseFraming, ResponseHead,
    take_body,
};
use prism_service::{EndedBy, Exchange};

use crate::connection::ServerStream;
use crate::forward::{Fault, Forward, Progress};

/// The longest wait for the end of an answer of unknown length that may be short.
const SHORT_WAIT: Duration = Duration::from_millis(10);
/// The longest answer that is read to its end to be dropped.
const MAX_DROPPED_BYTES: u64 = 64 << 10;
/// The longest wait for its end.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// If less of a body is left, it is copied: a pipe would cost more.
const SPLICE_BYTES: u64 = 32 << 10;

/// The head of an answer without the fields of the server's connection, and what these said. Fields
/// that are added go to the client, whatever the server names in `Connection`.
#[derive(Debug)]
pub struct Answer {
    pub(crate) head: ResponseHead,
    framing: ResponseFraming,
    /// The length that the head declares, also if no body follows.
    body_bytes: Option<u64>,
    /// Whether the server's connection may have another request.
    server_stays: bool,
    /// The time after which the server ends an idle connection, if it says so.
    idle_for: Option<Duration>,
    /// The protocol of an answer that switches.
    pub(crate) upgrade: Option<Box<[u8]>>,
}

impl Answer {
    /// The answer of this head to a request of this method.
    ///
    /// # Errors
    /// The head is ambiguous about its body.
    pub fn new(mut head: ResponseHead, method: &Method) -> Result<Self, HeadError> {
        let framing = head.framing(method)?;
        let body_bytes = head.declared_length()?;
        let server_stays = head.keep_alive() && framing != ResponseFraming::UntilClose;
        let idle_for = announced_idle_time(head.headers());
        let upgrade = head.headers().get("upgrade").map(Into::into);
        head.remove_hop_by_hop();
        Ok(Self {
            head,
            framing,
            body_bytes,
            server_stays,
            idle_for,
            upgrade,
        })
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// The fields for the client.
    pub fn headers_mut(&mut self) -> &mut Headers {
        self.head.headers_mut()
    }

    /// The length of the body, if the head declares it.
    pub fn declared_bytes(&self) -> Option<u64> {
        match self.framing {
            ResponseFraming::Length(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Whether the answer has no body, and its connection may have another request.
    pub fn is_only_a_head(&self) -> bool {
        self.framing == ResponseFraming::Length(0) && self.server_stays
    }
}

/// An answer that was sent to the client.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// Whether the other side's connection may have another request.
    pub is_reusable: bool,
    /// The time after which the other side ends an idle connection, if it says so.
    pub idle_for: Option<Duration>,
}

impl Passed {
    /// The connection has no other request.
    pub const LAST: Self = Self {
        is_reusable: false,
        idle_for: None,
    };
}

/// The body of an answer that nobody gets. It is read, so that the other side's connection may have
/// another request.
#[derive(Debug)]
pub struct DroppedBody {
    reader: BodyReader,
    server_stays: bool,
    idle_for: Option<Duration>,
}

impl DroppedBody {
    /// Reads past what has come. Returns the outcome, if no more has to come.
    pub fn read_past(&mut self, server: &mut impl ServerStream) -> Option<Passed> {
        if !self.server_stays || take_body(server, &mut self.reader, |_| {}).is_err() {
            return Some(Passed::LAST);
        }
        self.reader.is_done().then_some(Passed {
            is_reusable: true,
            idle_for: self.idle_for,
        })
    }

    /// Reads to the end, if that comes soon.
    pub async fn read_to_end(mut self, server: &mut impl ServerStream) -> Passed {
        let deadline = tokio::time::Instant::now() + DROP_WAIT;
        loop {
            if let Some(passed) = self.read_past(server) {
                return passed;
            }
            let filled = tokio::time::timeout_at(deadline, server.fill()).await;
            if !matches!(filled, Ok(Ok(1..))) {
                return Passed::LAST;
            }
        }
    }
}

impl<X: Exchange, S: ServerStream> Forward<'_, X, S> {
    /// Whether the body of an answer whose head has come has at most `max_bytes`. An answer of
    /// unknown length is short if it ends at once.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn is_short(&mut self, answer: &Answer, max_bytes: u32) -> Result<bool, Fault> {
        let framing = answer.framing;
        match framing {
            ResponseFraming::None => return Ok(true),
            ResponseFraming::Length(bytes) => return Ok(bytes <= max_bytes.into()),
            ResponseFraming::Chunked | ResponseFraming::UntilClose => {}
        }
        let deadline = tokio::time::Instant::now() + SHORT_WAIT;
        loop {
            let mut reader = BodyReader::new(framing, max_bytes.into());
            if reader.read_past(self.server.buffered()).is_err() {
                return Ok(false);
            }
            if reader.is_done() {
                return Ok(true);
            }
            match tokio::time::timeout_at(deadline, self.server.fill()).await {
                Ok(Ok(1..)) => {}
                // The next read finds the end again.
                Ok(Ok(0)) => return Ok(framing == ResponseFraming::UntilClose),
                // Full.
                Ok(Err(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
                    return Ok(false);
                }
                // The next read would find an end in order.
                Ok(Err(error)) => return Err(Fault::malformed(error)),
                Err(_) => return Ok(false),
            }
        }
    }

    /// Ends the exchange with an answer that the client does not get, behind its head.
    pub fn drop_answer(&self, answer: &Answer) -> DroppedBody {
        let is_short = answer
            .declared_bytes()
            .is_none_or(|bytes| bytes <= MAX_DROPPED_BYTES);
        DroppedBody {
            reader: BodyReader::new(answer.framing, MAX_DROPPED_BYTES),
            server_stays: answer.server_stays && is_short && self.is_request_sent(),
            idle_for: answer.idle_for,
        }
    }

    /// Sends the client an answer whose head has come, and the other side the rest of the body.
    ///
    /// # Errors
    /// See [`Fault`].
    pub async fn pass(&mut self, answer: Answer) -> Result<Passed, Fault> {
        let Answer {
            head,
            framing,
            body_bytes,
            server_stays,
            idle_for,
            ..
        } = answer;
        let mut reader = BodyReader::new(framing, u64::MAX);
        // A body that is malformed from the beginning reaches no client.
        let here = self.server.buffered();
        reader.clone().read_past(here).map_err(Fault::malformed)?;
        self.exchange.begin(&head, None, body_bytes);
        // The bytes of the body that have come leave with the head.
        self.take_pieces(&mut reader).map_err(Fault::malformed)?;
        self.pass_body(&mut reader).await.map_err(broken_off)?;
        let is_reusable = server_stays && reader.is_done() && self.is_request_sent();
        self.end(&reader).await?;
        Ok(Passed {
            is_reusable,
            idle_for,
        })
    }

    /// Sends the client an answer as it came, in one write if all of it is here.
    ///
    /// # Errors
    /// See [`Fault`].
    pub async fn pass_unchanged(&mut self, answer: PlainAnswer) -> Result<Passed, Fault> {
        let mut reader = BodyReader::new(ResponseFraming::Length(answer.body_bytes), u64::MAX);
        let here = self.server.buffered();
        let body_here = here.len().saturating_sub(answer.head_bytes);
        let body_here = (body_here as u64).min(answer.body_bytes);
        let taken = answer.head_bytes + usize::try_from(body_here).unwrap_or_default();
        let piece = here.get(..taken).unwrap_or_default();
        let begun = self.exchange.begin_unchanged(&answer, piece).await;
        begun.map_err(Fault::Connection)?;
        self.server.consume(taken);
        reader.skip(body_here);
        self.pass_body(&mut reader).await.map_err(broken_off)?;
        let is_reusable = reader.is_done() && self.is_request_sent();
        self.end(&reader).await?;
        Ok(Passed {
            is_reusable,
            idle_for: None,
        })
    }

    /// Notes that the answer has no end because of the other side.
    pub(crate) fn note_end_by_server(&mut self) {
        self.exchange.record_mut().ended_by = Some(EndedBy::Server);
    }

    async fn end(&mut self, reader: &BodyReader) -> Result<(), Fault> {
        let ended = self.exchange.end(reader.trailers()).await;
        ended.map_err(Fault::Connection)
    }

    /// Queues all that has come of the body for the client.
    fn take_pieces(&mut self, reader: &mut BodyReader) -> Result<(), BodyError> {
        take_body(self.server, reader, |piece| self.exchange.put(piece))
    }

    /// Sends what is queued for the client, and the rest of the body.
    async fn pass_body(&mut self, reader: &mut BodyReader) -> Result<(), Fault> {
        let is_plain = !matches!(reader, BodyReader::Chunked(_));
        let mut may_splice = true;
        while !reader.is_done() {
            self.send().await?;
            let goes_on = self.goes_on();
            let has_come = !self.server.buffered().is_empty();
            let long = reader.left().filter(|left| *left >= SPLICE_BYTES);
            if has_come && is_plain && !goes_on {
                self.pass_piece(reader).await?;
            } else if has_come {
                self.take_pieces(reader)?;
            } else if let Some(left) = long.filter(|_| may_splice && !goes_on)
                && let Some(socket) = self.server.socket()
                && let Some(silence) = self.timeout
            {
                let sent = self.exchange.stream(socket, left, silence).await;
                let sent = sent.map_err(Fault::Connection)?;
                reader.skip(sent);
                may_splice = sent > 0;
            } else {
                match self.step(self.timeout).await? {
                    Progress::Moved | Progress::Came => {}
                    Progress::Ended => {
                        reader
                            .end_of_input()
                            .inspect_err(|_| self.note_end_by_server())?;
                        break;
                    }
                    Progress::Broken(error) => {
                        self.note_end_by_server();
                        return Err(Fault::Connection(error));
                    }
                    Progress::Silent => {
                        self.note_end_by_server();
                        return Err(Fault::silent());
                    }
                }
            }
        }
        // The end of the answer leaves with what is queued.
        while self.exchange.has_queued() && self.goes_on() {
            self.step(self.timeout).await?;
        }
        Ok(())
    }

    /// Passes what has come of a body without chunks, and copies nothing for that.
    async fn pass_piece(&mut self, reader: &mut BodyReader) -> Result<(), Fault> {
        let step = reader.consume(self.server.buffered())?;
        let data = self.server.buffered().get(step.data).unwrap_or_default();
        let sent = self.exchange.data(data).await;
        sent.map_err(Fault::Connection)?;
        self.server.consume(step.consumed);
        Ok(())
    }

    /// Sends what is queued for the client, while the body of the request goes on.
    async fn send(&mut self) -> Result<(), Fault> {
        while self.exchange.has_queued() {
            if self.goes_on() {
                self.step(self.timeout).await?;
            } else {
                self.exchange.flush().await.map_err(Fault::Connection)?;
            }
        }
        Ok(())
    }
}

/// The `timeout` parameter of `Keep-Alive` (RFC 2068, section 19.7.1.1, as servers write it).
fn announced_idle_time(headers: &Headers) -> Option<Duration> {
    let parameters = headers.get_str("keep-alive")?.split(',');
    let mut values = parameters.filter_map(|one| one.trim().split_once('='));
    let (_, seconds) = values.find(|(name, _)| name.trim().eq_ignore_ascii_case("timeout"))?;
    Some(Duration::from_secs(
        seconds.trim().parse::<u32>().ok()?.into(),
    ))
}

/// The client has got a part of the answer, so its connection ends.
pub(crate) fn broken_off(fault: Fault) -> Fault {
    match fault {
        Fault::Connection(error) => Fault::Connection(error),
        fault => Fault::Connection(io::Error::other(format!("the answer broke off: {fault:?}"))),
    }
}
