//! Connections that go on with another protocol, such as WebSocket (RFC 9110, section 7.8). The
//! tunnel is between the client and this backend: no other node of Prism passes its bytes.

use std::io;
use std::time::Duration;

use prism_http::{Exchange, RequestHead, Version};
use prism_service::Io;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::answer::{Answer, Passed, broken_off};
use crate::exchange::{Fault, Transfer};
use crate::pump::{Moved, PIECE_BYTES};

/// The status with which a server agrees.
pub(crate) const SWITCHING: u16 = 101;

/// The protocol that a client wants to go on with, behind the body if the request has one. HTTP/2
/// is none of them: it is not spoken here.
pub(crate) fn wanted(head: &RequestHead) -> Option<Box<str>> {
    let headers = head.headers();
    let protocol = headers.get_str("upgrade")?;
    let is_asked = headers.list_has("connection", "upgrade")
        && head.version() == Version::Http11
        && !protocol.is_empty()
        && !protocol.to_ascii_lowercase().contains("h2");
    is_asked.then(|| protocol.into())
}

impl<I: Io> Transfer<'_, I> {
    /// Passes the server's consent, and then all bytes in both directions until one side ends, or
    /// no byte moves for `limit`. Without it the connection's own limit holds.
    pub(crate) async fn tunnel(
        &mut self,
        answer: &Answer,
        exchange: &Exchange<'_>,
        limit: Option<Duration>,
    ) -> Result<Passed, Fault> {
        let mut head = Vec::with_capacity(256);
        answer.write_switch(exchange, &mut head);
        let sent = self.io.write_all(&head).await;
        sent.map_err(Fault::Connection)?;
        let passed_bytes = self.pass_all(limit).await?;
        if let Some(noted) = exchange.noted {
            noted.set_answer(SWITCHING, passed_bytes);
        }
        Ok(Passed {
            keep_alive: false,
            is_reusable: false,
        })
    }

    /// Returns the number of bytes for the client.
    async fn pass_all(&mut self, limit: Option<Duration>) -> Result<u64, Fault> {
        let (mut passed_bytes, mut client_ended) = (0, false);
        let mut last_moved = Instant::now();
        loop {
            passed_bytes += self.take_all()? as u64;
            let reads = self.to_server.is_empty() && !client_ended && !self.is_deaf;
            let is_taking = !self.to_client.is_empty();
            let limit_now = match reads {
                true => limit,
                // The client is not read, so its own timeout does not apply.
                false => Some(self.timeout),
            };
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
                // The client's connection ends in order, also after a reset by the server.
                Err(_) | Ok(Ok(Moved::FromServer(Ok(0) | Err(_)))) => return Ok(passed_bytes),
                Ok(Ok(Moved::FromClient(0))) => {
                    client_ended = true;
                    let _ = self.server.stream.shutdown().await;
                }
                Ok(Ok(_)) => {}
            }
            last_moved = Instant::now();
        }
    }

    /// Takes what has come for both sides: from the client the rest of the request's body first.
    /// Returns the number of bytes for the client.
    fn take_all(&mut self) -> Result<usize, Fault> {
        let mut for_client = 0;
        if self.to_client.is_empty() {
            let input = &mut self.server.input;
            for_client = input.buffered().len();
            self.to_client
                .bytes_mut()
                .extend_from_slice(input.buffered());
            input.consume(for_client);
        }
        if self.to_server.is_empty() && !self.is_deaf && !self.body.is_done() {
            self.take_body().map_err(broken_off)?;
        }
        if self.to_server.is_empty() && !self.is_deaf && self.body.is_done() {
            let waiting = self.io.buffered();
            let piece = waiting.get(..PIECE_BYTES).unwrap_or(waiting);
            let piece_bytes = piece.len();
            self.to_server.bytes_mut().extend_from_slice(piece);
            self.io.consume(piece_bytes);
        }
        Ok(for_client)
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
            assert_eq!(wanted(&head).as_deref(), expected, "{fields}");
        }
    }
}
