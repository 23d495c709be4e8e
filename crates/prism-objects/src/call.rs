//! One request under way, with its connection.

use prism_http::Exchange;
use prism_service::{Io, MAX_SKIP_BYTES, RequestBody};

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
}
