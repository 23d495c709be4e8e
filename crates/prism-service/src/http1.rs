//! The exchange of HTTP/1.1 (RFC 9112): a request's body and its answer on one connection.
//!
//! The head of the request stays on the connection until the body or the answer is begun. So the
//! connection may leave this node until then ([`Exchange::is_untouched`]).

use std::io;
use std::rc::Rc;

use prism_common::input::Unread;
use prism_http::{AnswerForm, CONTINUE, Headers, Method, RequestHead, ResponseFraming, Version};

use crate::request_body::MAX_SKIP_TIME;
use crate::{AnswerRecord, Exchange, Io, MAX_SKIP_BYTES, RequestBody};

mod forms;

/// An exchange on the connection `I`.
#[derive(Debug)]
pub struct Http1<'c, I> {
    io: &'c mut I,
    id: u64,
    /// Bytes of the request's head that the connection still holds.
    head_bytes: usize,
    body: RequestBody,
    /// Whether an answer has no body, because it answers HEAD.
    is_head: bool,
    version: Version,
    /// The value of `Date`; empty for none.
    date: Rc<str>,
    /// Whether the connection may live on.
    keep_alive: bool,
    fields: Option<Headers>,
    /// Fields in the place of those of the answer's own head.
    replaced: Option<Headers>,
    queue: Unread,
    /// Bytes were written that leave with the next ones.
    has_unflushed: bool,
    framing: ResponseFraming,
    is_tunnel: bool,
    has_ended: bool,
    record: AnswerRecord,
}

/// The parts of an exchange that do not come from the request's head.
#[derive(Clone, Debug, Default)]
pub struct Http1Parts {
    /// The identifier of the request.
    pub id: u64,
    /// Bytes of the head that the connection still holds.
    pub head_bytes: usize,
    /// The value of `Date`, an IMF-fixdate; empty for none.
    pub date: Rc<str>,
    /// The node ends the connection with the answer.
    pub closes: bool,
    /// A buffer for the answer, which [`Http1::end_exchange`] returns.
    pub buffer: Vec<u8>,
}

impl<'c, I: Io> Http1<'c, I> {
    /// The exchange of the request with this head. Its body is bounded by its declared length, or
    /// by [`Exchange::limit_body`].
    pub fn new(io: &'c mut I, head: &RequestHead, parts: Http1Parts) -> Self {
        Self {
            body: RequestBody::new(head, MAX_SKIP_BYTES),
            is_head: *head.method() == Method::HEAD,
            version: head.version(),
            keep_alive: head.keep_alive() && !parts.closes,
            ..Self::without_head(io, parts)
        }
    }

    /// An exchange with a sender whose request cannot be read. It has no body, and the connection
    /// ends with the answer.
    pub fn without_head(io: &'c mut I, parts: Http1Parts) -> Self {
        let mut queue = Unread::new(parts.buffer);
        queue.clear();
        Self {
            io,
            id: parts.id,
            head_bytes: parts.head_bytes,
            body: RequestBody::unknown(),
            is_head: false,
            version: Version::Http11,
            date: parts.date,
            keep_alive: false,
            fields: None,
            replaced: None,
            queue,
            has_unflushed: false,
            framing: ResponseFraming::None,
            is_tunnel: false,
            has_ended: false,
            record: AnswerRecord::default(),
        }
    }

    /// Whether an answer has begun that the end of the connection would end, and has not ended.
    pub fn is_cut(&self) -> bool {
        self.framing == ResponseFraming::UntilClose && !self.has_ended
    }

    /// Bytes of the request's head that the connection still holds.
    pub fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// The record of the answer, and the buffer.
    pub fn end_exchange(mut self) -> (AnswerRecord, Vec<u8>) {
        (self.record, std::mem::take(self.queue.bytes_mut()))
    }

    /// Consumes the head of the request.
    fn touch(&mut self) {
        let head_bytes = std::mem::take(&mut self.head_bytes);
        if head_bytes > 0 {
            self.io.consume(head_bytes);
        }
    }

    /// The bytes behind those that were read.
    fn come(&self) -> &[u8] {
        self.io
            .buffered()
            .get(self.head_bytes..)
            .unwrap_or_default()
    }

    fn form(&self) -> AnswerForm<'_> {
        AnswerForm {
            method: if self.is_head {
                &Method::HEAD
            } else {
                &Method::GET
            },
            version: self.version,
            keep_alive: self.keep_alive,
            date: &self.date,
            extra: [None; 2],
        }
    }

    /// Decides whether the connection can live on after an answer that does not wait for the rest
    /// of the body.
    fn look_at_rest(&mut self) {
        if !self.body.is_done() {
            self.keep_alive = self.keep_alive && self.body.may_be_skipped(self.has_come());
        } else if self.is_held_back() {
            // An empty body may be expected too: see `RequestHead::expects_continue`.
            self.body.is_invited();
            self.queue.bytes_mut().extend_from_slice(CONTINUE);
        }
    }

    /// Reads past the rest of the body, in bounded time. Returns whether the next bytes are another
    /// request.
    async fn skip_rest(&mut self) -> bool {
        self.touch();
        if self.body.is_done() {
            return true;
        }
        if !self.body.may_be_skipped(self.has_come()) {
            return false;
        }
        let skipping = tokio::time::timeout(MAX_SKIP_TIME, self.skip());
        matches!(skipping.await, Ok(true))
    }

    async fn skip(&mut self) -> bool {
        let mut skipped_bytes = 0;
        while !self.body.is_done() {
            if self.io.buffered().is_empty() && !matches!(self.io.fill().await, Ok(1..)) {
                return false;
            }
            let Ok(step) = self.body.reader().consume(self.io.buffered()) else {
                return false;
            };
            self.io.consume(step.consumed);
            self.record.received_bytes += step.data.len() as u64;
            skipped_bytes += step.consumed as u64;
            if skipped_bytes > MAX_SKIP_BYTES {
                return false;
            }
        }
        true
    }

    /// Counts bytes of the answer's body.
    fn count(&mut self, bytes: usize) {
        self.record.body_bytes += bytes as u64;
    }

    /// Sends what is queued. More follows at once.
    async fn flush_more(&mut self) -> io::Result<()> {
        if !self.queue.is_empty() {
            self.io.write_more(self.queue.unread()).await?;
            self.queue.clear();
            self.has_unflushed = true;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
