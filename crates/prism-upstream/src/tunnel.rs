//! Connections that go on with another protocol, such as WebSocket (RFC 9110, section 7.8). The
//! tunnel is between the client and this backend: no other node of Prism passes its bytes.

use std::io;
use std::time::Duration;

use prism_http::{BodyFraming, Exchange, RequestHead, ResponseHead, Version};
use prism_service::Io;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::answer::Passed;
use crate::exchange::{Fault, Transfer};
use crate::server::{Server, write_some};

/// The status with which a server agrees.
pub(crate) const SWITCHING: u16 = 101;
/// Bytes from a client that wait for the server.
const MAX_WAITING_BYTES: usize = 64 << 10;

/// The protocol that a client wants to go on with. HTTP/2 is none of them: it is not spoken here.
pub(crate) fn wanted(head: &RequestHead) -> Option<Box<str>> {
    let headers = head.headers();
    let protocol = headers.get_str("upgrade")?;
    let is_asked = headers.list_has("connection", "upgrade")
        && head.version() == Version::Http11
        && head.framing() == BodyFraming::None
        && !protocol.is_empty()
        && !protocol.to_ascii_lowercase().contains("h2");
    is_asked.then(|| protocol.into())
}

/// One movement of bytes in a tunnel.
enum Moved {
    FromServer(io::Result<usize>),
    ToServer(io::Result<usize>),
    FromClient(io::Result<usize>),
}

impl<I: Io> Transfer<'_, I> {
    /// Passes the server's consent, and then all bytes in both directions until one side ends, or
    /// no byte moves for `limit`. Without it the connection's own limit holds.
    pub(crate) async fn tunnel(
        &mut self,
        mut answer: ResponseHead,
        exchange: &Exchange<'_>,
        limit: Option<Duration>,
    ) -> Result<Passed, Fault> {
        let protocol = answer
            .headers()
            .get("upgrade")
            .unwrap_or_default()
            .to_owned();
        answer.remove_hop_by_hop();
        let mut head = Vec::with_capacity(256);
        let _ = answer.write_to(exchange, None, &mut head);
        // The writer leaves these two out, and ends with an empty line.
        head.truncate(head.len().saturating_sub(2));
        head.extend_from_slice(b"Connection: upgrade\r\nUpgrade: ");
        head.extend_from_slice(&protocol);
        head.extend_from_slice(b"\r\n\r\n");
        let sent = self.io.write_all(&head).await;
        sent.map_err(Fault::Connection)?;
        let passed_bytes = self.pass_all(limit).await.map_err(Fault::Connection)?;
        if let Some(noted) = exchange.noted {
            noted.set_answer(SWITCHING, passed_bytes);
        }
        Ok(Passed {
            keep_alive: false,
            is_reusable: false,
        })
    }

    /// Returns the number of bytes for the client.
    async fn pass_all(&mut self, limit: Option<Duration>) -> io::Result<u64> {
        let (mut passed_bytes, mut client_ended) = (0, false);
        let mut last_moved = Instant::now();
        loop {
            let from_server = self.server.input.buffered();
            if !from_server.is_empty() {
                let bytes = from_server.len();
                self.io.write_all(from_server).await?;
                self.server.input.consume(bytes);
                passed_bytes += bytes as u64;
            }
            let waiting = self.io.buffered();
            let waiting = waiting.get(..waiting.len().min(MAX_WAITING_BYTES));
            let waiting = waiting.unwrap_or_default().to_vec();
            let Server { stream, input, .. } = &mut *self.server;
            let has_waiting = !waiting.is_empty();
            let moved = async {
                tokio::select! {
                    filled = input.fill(stream) => Moved::FromServer(filled),
                    written = write_some(stream, &waiting), if has_waiting => {
                        Moved::ToServer(written)
                    }
                    read = self.io.fill(), if !has_waiting && !client_ended => {
                        Moved::FromClient(read)
                    }
                }
            };
            let limit_now = match client_ended || has_waiting {
                // The client is not read, so its own timeout does not apply.
                true => Some(self.timeout),
                false => limit,
            };
            let moved = match limit_now {
                Some(limit) => tokio::time::timeout_at(last_moved + limit, moved).await,
                None => Ok(moved.await),
            };
            match moved {
                // The connection's own limit is shorter.
                Ok(Moved::FromClient(Err(error)))
                    if limit.is_some() && error.kind() == io::ErrorKind::TimedOut =>
                {
                    continue;
                }
                // The client's connection ends in order, also after a reset by the server.
                Err(_) | Ok(Moved::FromServer(Ok(0) | Err(_))) => return Ok(passed_bytes),
                Ok(Moved::FromServer(Ok(_))) => {}
                Ok(Moved::ToServer(Ok(written))) => self.io.consume(written),
                Ok(Moved::ToServer(Err(_))) => {
                    // It may have said something before it stopped reading.
                    self.io.consume(waiting.len());
                    client_ended = true;
                }
                Ok(Moved::FromClient(Ok(0))) => {
                    client_ended = true;
                    let _ = self.server.stream.shutdown().await;
                }
                Ok(Moved::FromClient(read)) => drop(read?),
            }
            last_moved = Instant::now();
        }
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
                "Connection: upgrade\r\nUpgrade: a\r\nContent-Length: 3",
                None,
            ),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
            let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
            let (head, _) = parsed.unwrap().unwrap();
            assert_eq!(wanted(&head).as_deref(), expected, "{fields}");
        }
    }
}
