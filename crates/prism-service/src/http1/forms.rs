//! The body and the answer of an exchange in the form of HTTP/1.1.

use std::fs::File;
use std::io;
use std::time::Duration;

use prism_common::input::Unread;
use prism_handoff::{Companion, Moved};
use prism_http::{
    AnswerForm, BodyError, BodyReader, CONTINUE, Headers, PlainAnswer, ResponseFraming,
    ResponseHead, Version, write_chunk, write_last_chunk,
};
use tokio::net::TcpStream;

use super::Http1;
use crate::redirection::with_fields;
use crate::{AnswerRecord, BodyFailure, BodySource, Exchange, FramedBody, Io, RequestBody};

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
        let read = framed.read(room).await?;
        self.record.received_bytes += read as u64;
        Ok(read)
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
        BodyReader::new(ResponseFraming::Chunked, u64::MAX).read_past(self.come())
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
            self.record.received_bytes += data.len() as u64;
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

    fn replace_fields(&mut self, fields: Option<Headers>) {
        self.replaced = fields;
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
        let replaced = self.replaced.as_ref();
        let replaced = replaced.map(|fields| with_fields(head, more, self.fields.as_ref(), fields));
        let is_replaced = replaced.is_some();
        let head = replaced.as_ref().unwrap_or(head);
        let mut queue = std::mem::take(&mut self.queue);
        let mut form = self.form();
        // That of the server which has made the answer, if it has sent one.
        if let Some(date) = head.headers().get_str("date") {
            form.date = date;
        }
        if !is_replaced {
            form.extra = [more, self.fields.as_ref()];
        }
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
            && self.replaced.is_none()
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
        self.io.write_all(self.queue.unread()).await?;
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
        let sent = self.io.send_file(file, offset, len).await;
        self.has_unflushed = false;
        let sent_bytes = match sent {
            Ok(()) => len,
            Err(_) => self.io.partial_bytes(),
        };
        self.record.body_bytes += sent_bytes;
        sent
    }

    async fn stream(&mut self, source: &TcpStream, len: u64, silence: Duration) -> io::Result<u64> {
        if self.framing == ResponseFraming::None {
            return Ok(0);
        }
        self.flush().await?;
        let sent = self.io.send_stream(source, len, silence).await;
        let sent_bytes = match &sent {
            Ok(sent_bytes) => *sent_bytes,
            Err(_) => self.io.partial_bytes(),
        };
        self.record.body_bytes += sent_bytes;
        sent
    }

    async fn write_or_fill(&mut self, reads: bool) -> io::Result<Moved> {
        if reads {
            self.touch();
        }
        let moved = self.io.write_or_fill(self.queue.unread(), reads).await?;
        if let Moved::Written(written) = moved {
            self.queue.consume(written);
            if self.queue.is_empty() {
                // The next use may be long after.
                self.queue = Unread::default();
            }
        }
        Ok(moved)
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
