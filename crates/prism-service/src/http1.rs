//! The exchange of HTTP/1.1 (RFC 9112): a request's body and its answer on one connection.
//!
//! The head of the request stays on the connection until the body or the answer is begun. So the
//! connection may leave this node until then ([`Exchange::is_untouched`]).

use std::fs::File;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use prism_handoff::{Companion, Moved};
use prism_http::{
    AnswerForm, BodyError, BodyReader, CONTINUE, Headers, Method, PlainAnswer, RequestHead,
    ResponseFraming, ResponseHead, Version, write_chunk, write_last_chunk,
};
use tokio::net::TcpStream;

use crate::request_body::MAX_SKIP_TIME;
use crate::{
    AnswerRecord, BodyFailure, BodySource, Exchange, FramedBody, Io, MAX_SKIP_BYTES, Movement,
    Queue, RequestBody,
};

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
    queue: Queue,
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
            is_head: *head.method() == Method::Head,
            version: head.version(),
            keep_alive: head.keep_alive() && !parts.closes,
            ..Self::without_head(io, parts)
        }
    }

    /// An exchange with a sender whose request cannot be read. It has no body, and the connection
    /// ends with the answer.
    pub fn without_head(io: &'c mut I, parts: Http1Parts) -> Self {
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
            queue: Queue::with_buffer(parts.buffer),
            has_unflushed: false,
            framing: ResponseFraming::None,
            is_tunnel: false,
            has_ended: false,
            record: AnswerRecord::default(),
        }
    }

    /// The record of the answer, and the buffer.
    pub fn end_exchange(self) -> (AnswerRecord, Vec<u8>) {
        (self.record, self.queue.into_buffer())
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
            method: match self.is_head {
                true => &Method::Head,
                false => &Method::Get,
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
            self.io.write_more(self.queue.rest()).await?;
            self.queue.clear();
            self.has_unflushed = true;
        }
        Ok(())
    }
}

impl<I: Io> BodySource for Http1<'_, I> {
    fn left_bytes(&self) -> Option<u64> {
        self.body.left()
    }

    fn is_done(&self) -> bool {
        self.body.is_done()
    }

    async fn read(&mut self, room: &mut [u8]) -> Result<usize, BodyFailure> {
        self.touch();
        let mut framed = FramedBody {
            input: &mut *self.io,
            reader: self.body.reader(),
        };
        framed.read(room).await
    }
}

impl<I: Io> Exchange for Http1<'_, I> {
    fn request_id(&self) -> u64 {
        self.id
    }

    fn is_untouched(&self) -> bool {
        self.head_bytes > 0
    }

    fn body(&self) -> &RequestBody {
        &self.body
    }

    fn limit_body(&mut self, max_bytes: u64) {
        self.body.limit(max_bytes);
    }

    fn is_held_back(&self) -> bool {
        self.body.is_held_back(self.has_come())
    }

    async fn invite(&mut self) -> io::Result<()> {
        if !self.is_held_back() {
            return Ok(());
        }
        self.touch();
        self.body.is_invited();
        self.io.write_all(CONTINUE).await
    }

    fn has_come(&self) -> bool {
        !self.come().is_empty()
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.touch();
        self.io.fill().await
    }

    fn check_body(&self) -> Result<(), BodyError> {
        if !self.body.is_chunked() || self.body.has_begun() {
            return Ok(());
        }
        let mut reader = BodyReader::new(ResponseFraming::Chunked, u64::MAX);
        let mut bytes = self.come();
        while !bytes.is_empty() && !reader.is_done() {
            let consumed = reader.consume(bytes)?.consumed;
            if consumed == 0 {
                break;
            }
            bytes = bytes.get(consumed..).unwrap_or_default();
        }
        Ok(())
    }

    fn take_body(
        &mut self,
        max_bytes: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), BodyError> {
        self.touch();
        if self.is_tunnel && self.body.is_done() {
            let piece = self.io.buffered();
            let piece = piece.get(..max_bytes).unwrap_or(piece);
            take(piece);
            let piece_bytes = piece.len();
            self.io.consume(piece_bytes);
            return Ok(());
        }
        let mut taken_bytes = 0;
        while !self.body.is_done() && taken_bytes < max_bytes {
            let piece = self.io.buffered();
            let piece = piece.get(..max_bytes - taken_bytes).unwrap_or(piece);
            if piece.is_empty() {
                return Ok(());
            }
            let step = self.body.reader().consume(piece)?;
            let data = piece.get(step.data).unwrap_or_default();
            if !data.is_empty() {
                take(data);
            }
            taken_bytes += step.consumed;
            self.io.consume(step.consumed);
        }
        Ok(())
    }

    async fn skip_body(&mut self) {
        if self.body.is_done() {
            self.look_at_rest();
        }
        self.keep_alive = self.skip_rest().await && self.keep_alive;
    }

    fn add_fields(&mut self, fields: Option<Headers>) {
        self.fields = fields;
    }

    fn has_fields(&self) -> bool {
        self.fields.is_some()
    }

    fn close_after(&mut self) {
        self.keep_alive = false;
    }

    fn record(&self) -> &AnswerRecord {
        &self.record
    }

    fn record_mut(&mut self) -> &mut AnswerRecord {
        &mut self.record
    }

    async fn interim(&mut self, head: &ResponseHead) -> io::Result<()> {
        if self.version == Version::Http10 {
            return Ok(());
        }
        self.touch();
        let mut bytes = Vec::with_capacity(256);
        let _ = head.write_to(&self.form(), None, &mut bytes);
        self.io.write_all(&bytes).await
    }

    fn begin(
        &mut self,
        head: &ResponseHead,
        more: Option<&Headers>,
        body_bytes: Option<u64>,
    ) -> bool {
        self.touch();
        self.look_at_rest();
        let mut queue = std::mem::take(&mut self.queue);
        let mut form = self.form();
        // That of the server which has made the answer, if it has sent one.
        if let Some(date) = head.headers().get_str("date") {
            form.date = date;
        }
        form.extra = [more, self.fields.as_ref()];
        let written = head.write_to(&form, body_bytes, queue.bytes_mut());
        self.queue = queue;
        self.framing = written.framing;
        self.keep_alive = written.keep_alive;
        self.record.status = Some(head.status());
        self.framing != ResponseFraming::None
    }

    fn takes_unchanged(&self) -> bool {
        // An answer to a body may have to close the connection.
        self.body.is_done()
            && !self.body.expects_continue()
            && self.keep_alive
            && self.version == Version::Http11
            && !self.is_head
            && self.fields.is_none()
    }

    async fn begin_unchanged(&mut self, answer: &PlainAnswer, bytes: &[u8]) -> io::Result<()> {
        self.touch();
        self.framing = ResponseFraming::Length(answer.body_bytes);
        self.record.status = Some(answer.status);
        let body_bytes = bytes.len().saturating_sub(answer.head_bytes);
        self.count(body_bytes);
        if body_bytes as u64 == answer.body_bytes {
            return self.io.write_all(bytes).await;
        }
        self.has_unflushed = true;
        self.io.write_more(bytes).await
    }

    fn begin_tunnel(&mut self, head: &ResponseHead, protocol: &[u8]) {
        self.touch();
        let mut queue = std::mem::take(&mut self.queue);
        let out = queue.bytes_mut();
        let form = AnswerForm {
            extra: [self.fields.as_ref(), None],
            ..self.form()
        };
        head.write_switch(&form, protocol, out);
        self.queue = queue;
        self.framing = ResponseFraming::UntilClose;
        self.keep_alive = false;
        self.is_tunnel = true;
        self.record.status = Some(head.status());
    }

    fn put(&mut self, data: &[u8]) {
        match self.framing {
            ResponseFraming::None => return,
            ResponseFraming::Chunked if data.is_empty() => return,
            ResponseFraming::Chunked => write_chunk(data, self.queue.bytes_mut()),
            ResponseFraming::Length(_) | ResponseFraming::UntilClose => {
                self.queue.bytes_mut().extend_from_slice(data);
            }
        }
        self.count(data.len());
    }

    fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    async fn flush(&mut self) -> io::Result<()> {
        if self.queue.is_empty() && !self.has_unflushed {
            return Ok(());
        }
        self.io.write_all(self.queue.rest()).await?;
        self.queue.clear();
        self.has_unflushed = false;
        Ok(())
    }

    async fn data(&mut self, data: &[u8]) -> io::Result<()> {
        let is_framed = matches!(
            self.framing,
            ResponseFraming::Chunked | ResponseFraming::None
        );
        if is_framed || !self.queue.is_empty() {
            self.put(data);
            return self.flush().await;
        }
        self.count(data.len());
        self.has_unflushed = false;
        self.io.write_all(data).await
    }

    async fn file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        if self.framing == ResponseFraming::None {
            return Ok(());
        }
        self.flush_more().await?;
        self.io.send_file(file, offset, len).await?;
        self.has_unflushed = false;
        self.record.body_bytes += len;
        Ok(())
    }

    async fn stream(&mut self, source: &TcpStream, len: u64, silence: Duration) -> io::Result<u64> {
        self.flush().await?;
        let sent_bytes = self.io.send_stream(source, len, silence).await?;
        self.record.body_bytes += sent_bytes;
        Ok(sent_bytes)
    }

    async fn write_or_fill(&mut self, reads: bool) -> io::Result<Movement> {
        if reads {
            self.touch();
        }
        match self.io.write_or_fill(self.queue.rest(), reads).await? {
            Moved::Read(read) => Ok(Movement::Read(read)),
            Moved::Written(0) => {
                self.io.write_all(self.queue.rest()).await?;
                let left = self.queue.rest().len();
                self.queue.consume(left);
                Ok(Movement::Written)
            }
            Moved::Written(written) => {
                self.queue.consume(written);
                Ok(Movement::Written)
            }
        }
    }

    async fn end(&mut self, trailers: Option<&Headers>) -> io::Result<()> {
        if self.framing == ResponseFraming::Chunked {
            write_last_chunk(trailers, self.queue.bytes_mut());
        }
        self.flush().await?;
        if let ResponseFraming::Length(bytes) = self.framing {
            // The next answer would begin in the middle of this one.
            self.keep_alive &= bytes == self.record.body_bytes;
        }
        self.keep_alive = self.keep_alive && self.skip_rest().await;
        self.has_ended = true;
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.has_ended && self.keep_alive
    }

    fn companion(&mut self) -> Option<&mut Companion> {
        self.io.companion()
    }
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
