//! Connections that go on with another protocol, such as WebSocket (RFC 9110, section 7.8). The
//! tunnel is between the client and this backend: no other node of Prism passes its bytes.

use std::io;
use std::time::Duration;

use prism_http::{RequestHead, Version};
use prism_service::Exchange;
use tokio::time::Instant;

use crate::answer::{Answer, broken_off};
use crate::connection::ServerStream;
use crate::forward::{Fault, Forward};
use crate::pump::{PIECE_BYTES, Passage};

/// The status with which a server agrees.
pub const SWITCHING: u16 = 101;

/// The protocol that a client wants to go on with, behind the body if the request has one. HTTP/2
/// is none of them: it is not spoken here.
pub fn wanted_protocol(head: &RequestHead) -> Option<Box<str>> {
    let headers = head.headers();
    let protocol = headers.get_str("upgrade")?;
    let is_asked = headers.list_has("connection", "upgrade")
        && head.version() == Version::Http11
        && !protocol.is_empty()
        && !protocol.to_ascii_lowercase().contains("h2");
    is_asked.then(|| protocol.into())
}

impl<X: Exchange, S: ServerStream> Forward<'_, X, S> {
    /// Passes the server's consent, and then all bytes in both directions until one side ends, or
    /// no byte moves for `limit`. Without it the connection's own limit holds.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn tunnel(&mut self, answer: &Answer, limit: Option<Duration>) -> Result<(), Fault> {
        let protocol = answer.upgrade.as_deref().unwrap_or_default();
        self.exchange.begin_tunnel(&answer.head, protocol);
        self.exchange.flush().await.map_err(Fault::Connection)?;
        self.pass_all(limit).await
    }

    async fn pass_all(&mut self, limit: Option<Duration>) -> Result<(), Fault> {
        let mut client_ended = false;
        let mut last_moved = Instant::now();
        loop {
            self.take_all()?;
            let reads = self.to_server.is_empty() && !client_ended && !self.is_deaf;
            let is_taking = self.exchange.has_queued();
            // If the client is not read, its own timeout does not apply.
            let limit_now = if reads { limit } else { self.timeout };
            let moving = self.move_some(reads);
            let moved = match limit_now {
                Some(limit) => tokio::time::timeout_at(last_moved + limit, moving).await,
                None => Ok(moving.await),
            };
            match moved {
                // The connection's own limit is shorter.
                Ok(Err(error))
                    if limit.is_some() && !is_taking && error.kind() == io::ErrorKind::TimedOut =>
                {
                    continue;
                }
                Ok(Err(error)) => return Err(Fault::Connection(error)),
                Ok(Ok(Passage::FromServer(Err(error)))) => {
                    self.note_end_by_server();
                    return Err(Fault::Connection(error));
                }
                Err(_) | Ok(Ok(Passage::FromServer(Ok(0)))) => return Ok(()),
                Ok(Ok(Passage::FromClient(0))) => {
                    client_ended = true;
                    self.server.end_requests().await;
                }
                Ok(Ok(_)) => {}
            }
            last_moved = Instant::now();
        }
    }

    /// Takes what has come for both sides: from the client the rest of the request's body first.
    fn take_all(&mut self) -> Result<(), Fault> {
        if !self.exchange.has_queued() {
            let bytes = self.server.buffered().len();
            self.exchange.put(self.server.buffered());
            self.server.consume(bytes);
        }
        if self.to_server.is_empty() && !self.is_deaf {
            if self.exchange.is_done() {
                let out = self.to_server.bytes_mut();
                let taken = self
                    .exchange
                    .take_body(PIECE_BYTES, |piece| out.extend_from_slice(piece));
                taken?;
            } else {
                self.take_body().map_err(broken_off)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits;

    use super::*;

    #[test]
    fn only_a_whole_wish_is_one() {
        for (fields, expected) in [
            (
                "Connection: Upgrade\r\nUpgrade: websocket",
                Some("websocket"),
            ),
            (
                "Connection: keep-alive, upgrade\r\nUpgrade: a/1",
                Some("a/1"),
            ),
            ("Upgrade: websocket", None),
            ("Connection: upgrade", None),
            ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", None),
            (
                "Connection: upgrade\r\nUpgrade: a\r\nContent-Length: 0",
                Some("a"),
            ),
            (
                "Connection: upgrade\r\nUpgrade: tcp\r\nTransfer-Encoding: chunked",
                Some("tcp"),
            ),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
            let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
            let (head, _) = parsed.unwrap().unwrap();
            assert_eq!(wanted_protocol(&head).as_deref(), expected, "{fields}");
        }
    }
}
