//! One request under way, with its connection.

use std::io;

use prism_http::{Exchange, ResponseHead};
use prism_service::{Io, MAX_SKIP_BYTES, RequestBody};

use crate::answer;
use crate::request::Request;

/// A request under way: its connection, and the facts that its answer depends on.
pub(crate) struct Call<'c, I> {
    pub(crate) io: &'c mut I,
    pub(crate) request: &'c Request,
    pub(crate) exchange: Exchange<'c>,
}

impl<I: Io> Call<'_, I> {
    /// Reads past the body of an operation that needs none.
    pub(crate) async fn skip_body(&mut self) {
        let mut body = self.request.take_body(MAX_SKIP_BYTES);
        self.skip_rest(&mut body).await;
    }

    /// Reads past the rest of a body. If the rest is too long, the connection ends with the
    /// answer.
    pub(crate) async fn skip_rest(&mut self, body: &mut RequestBody) {
        self.exchange.keep_alive = self.exchange.keep_alive && body.skip_rest(self.io).await;
    }

    /// Sends a whole answer. Returns whether the connection lives on.
    pub(crate) async fn send(&mut self, head: ResponseHead, body: &[u8]) -> io::Result<bool> {
        answer::send(self.io, &self.exchange, head, body).await
    }

    /// Sends an XML document. Returns whether the connection lives on.
    pub(crate) async fn send_xml(&mut self, head: ResponseHead, xml: &[u8]) -> io::Result<bool> {
        answer::send_xml(self.io, &self.exchange, head, xml).await
    }
}
