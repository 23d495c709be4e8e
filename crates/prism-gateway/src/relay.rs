//! Relays a request to another node and the answer back to the client, as a proxy does.
//!
//! This is for answers that are too short for a hand-off, and for hand-offs that fail. Not here:
//! the choice between the two (`short.rs`, `elsewhere.rs`), and the node that answers
//! (`upstream.rs`).

mod passing;

use prism_handoff::{Connection, RelayStream};
use prism_http::{BodyReader, Exchange, PlainAnswer, ResponseFraming};
use prism_proto::relay::ANSWER_FIELD;

use prism_service::{PeerRequest, RelayError, RequestBody, Service, has_body, read_answer};

use crate::gateway::Gateway;
use passing::{
    Head, Upload, copy_answer, invitation, is_simple, read_plain, send_body, write_head,
};

/// An answer that was relayed.
pub(crate) struct Answered {
    /// Whether the client's connection lives on.
    pub(crate) keep_alive: bool,
    /// Length of its body, if the head declared it.
    pub(crate) body_bytes: Option<u64>,
}

impl<S: Service> Gateway<S> {
    /// Relays one request of `client` to `peer`, and the answer back.
    pub(crate) async fn relay(
        &self,
        client: &mut Connection,
        peer: &str,
        request: &PeerRequest<'_>,
        body: &mut RequestBody,
    ) -> Result<Answered, RelayError> {
        self.shared.counters.relayed.add_one();
        request.head.noted().set_peer(Some(peer));
        let mut upload = Upload::new(body);
        let (mut upstream, answer) = self.exchange(client, peer, request, &mut upload).await?;
        let mut answer = match answer {
            Head::Plain(plain) => {
                let noted = request.head.noted();
                noted.set_answer(plain.status, plain.body_bytes);
                let sent = self.send_plain(client, peer, upstream, plain, &mut upload);
                return sent.await;
            }
            Head::Parsed(answer) => answer,
        };
        let framing = answer.framing(request.head.method())?;
        if let Some(refused) = request.refused(&answer) {
            if framing == ResponseFraming::Length(0) && answer.keep_alive() && upstream.is_clean() {
                self.peers.keep(peer, upstream);
            }
            return Err(refused);
        }
        answer.headers_mut().remove(ANSWER_FIELD);
        let keep_alive = request.head.keep_alive() && upload.body.can_skip_rest(client).await;
        let date = self.date.now();
        let exchange = Exchange {
            keep_alive,
            ..request.head.exchange(&date)
        };
        let upstream_stays = answer.keep_alive();
        let written = write_head(client, answer, &exchange).await?;
        let mut answer_body = BodyReader::new(framing, u64::MAX);
        let copied = copy_answer(
            &mut upstream,
            client,
            &mut upload,
            &mut answer_body,
            written.framing,
        );
        copied.await?;
        let is_whole = upload.body.is_done();
        if upstream_stays && is_whole && answer_body.is_done() && upstream.is_clean() {
            self.peers.keep(peer, upstream);
        }
        Ok(Answered {
            keep_alive: written.keep_alive && upload.body.skip_rest(client).await,
            body_bytes: match framing {
                ResponseFraming::Length(bytes) => Some(bytes),
                _ => None,
            },
        })
    }

    /// Sends the client an answer as it came: in one write, if all of it is here.
    async fn send_plain(
        &self,
        client: &mut Connection,
        peer: &str,
        mut upstream: RelayStream,
        answer: PlainAnswer,
        upload: &mut Upload<'_>,
    ) -> Result<Answered, RelayError> {
        let (head_bytes, body_bytes) = (answer.head_bytes, answer.body_bytes);
        let answer_bytes = usize::try_from(body_bytes).ok();
        let answer_bytes = answer_bytes.and_then(|bytes| bytes.checked_add(head_bytes));
        let whole = answer_bytes.and_then(|bytes| upstream.buffered().get(..bytes));
        if let Some(whole) = whole {
            let sent = client.write_all(whole).await;
            sent.map_err(RelayError::Connection)?;
            upstream.consume(whole.len());
        } else {
            let head = upstream.buffered().get(..head_bytes).unwrap_or_default();
            let sent = client.write_more(head).await;
            sent.map_err(RelayError::Connection)?;
            upstream.consume(head_bytes);
            let framing = ResponseFraming::Length(body_bytes);
            let mut body = BodyReader::new(framing, u64::MAX);
            copy_answer(&mut upstream, client, upload, &mut body, framing).await?;
        }
        if upstream.is_clean() {
            self.peers.keep(peer, upstream);
        }
        Ok(Answered {
            keep_alive: true,
            body_bytes: Some(body_bytes),
        })
    }

    /// Sends the request, and reads the head of the answer.
    ///
    /// A pooled stream may end meanwhile. Then a fresh one is tried, if no byte of the body is
    /// lost, and if the request was not read or may be answered twice.
    async fn exchange(
        &self,
        client: &mut Connection,
        peer: &str,
        request: &PeerRequest<'_>,
        upload: &mut Upload<'_>,
    ) -> Result<(RelayStream, Head), RelayError> {
        let (mut upstream, used) = self.peers.begin(peer, request).await?;
        if has_body(request.head) {
            let mut invited = invitation(&mut upstream).await;
            let is_lost = match &invited {
                Err(RelayError::NotRead) => true,
                Err(error @ RelayError::Broken(_)) => !error.is_silence(),
                _ => false,
            };
            if used && is_lost {
                upstream = self.peers.begin_again(peer, request, &[]).await?;
                invited = invitation(&mut upstream).await;
            }
            if let Some(answer) = invited? {
                return Ok((upstream, Head::Parsed(answer)));
            }
        }
        let invited = upload.invite(client).await;
        invited.map_err(RelayError::Connection)?;
        let is_whole = used && upload.body.is_done();
        let answer = match is_simple(request.head) {
            true => read_plain(&mut upstream).await,
            false => {
                let answer = send_body(&mut upstream, client, upload).await;
                answer.map(Head::Parsed)
            }
        };
        match answer {
            Err(error) if is_whole && request.may_follow(&error) => {
                let mut upstream = self.peers.begin_again(peer, request, &[]).await?;
                let answer = read_answer(&mut upstream).await?;
                Ok((upstream, Head::Parsed(answer)))
            }
            answer => Ok((upstream, answer?)),
        }
    }
}
