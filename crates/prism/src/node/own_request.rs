//! Requests that this node makes of another one for itself: a question, or an object.

use prism_handoff::RelayStream;
use prism_http::{BodyError, BodyReader, RequestHead, ResponseFraming, ResponseHead};
use prism_s3::Principal;

use super::Worker;
use super::io::Io;
use super::relay::{RelayError, Relayed, encode_head, read_answer};
use super::relayed::for_itself;

impl Worker {
    /// Asks `peer` itself, not for a client: the whole answer, at most
    /// `max_bytes` of it.
    pub(crate) async fn ask(
        &self,
        peer: &str,
        request: &Relayed<'_>,
        body: &[u8],
        max_bytes: usize,
    ) -> Result<(ResponseHead, Vec<u8>), RelayError> {
        let (mut upstream, answer) = self.begin_asking(peer, request, body).await?;
        let framing = answer.framing(request.head.method())?;
        let bytes = read_all(&mut upstream, framing, max_bytes).await?;
        if answer.keep_alive() && upstream.is_clean() {
            self.keep_relay(peer, upstream);
        }
        Ok((answer, bytes))
    }

    /// Asks `peer` for an object, of which the head has been read then.
    pub(crate) async fn ask_for_object(
        &self,
        peer: &str,
        head: &RequestHead,
        principal: &Principal,
    ) -> Result<(RelayStream, ResponseHead), RelayError> {
        let request = Relayed {
            head,
            preamble: for_itself(principal),
            is_repeatable: true,
        };
        self.begin_asking(peer, &request, &[]).await
    }

    pub(super) async fn begin_asking(
        &self,
        peer: &str,
        request: &Relayed<'_>,
        body: &[u8],
    ) -> Result<(RelayStream, ResponseHead), RelayError> {
        let (mut upstream, used) = self.begin(peer, request).await?;
        let sent = upstream.write_all(body).await;
        let answer = match sent {
            Ok(()) => read_answer(&mut upstream).await,
            Err(error) => Err(RelayError::Broken(error)),
        };
        match answer {
            Err(error) if used && request.may_follow(&error) => {
                let mut upstream = self.fresh(peer).await?;
                let mut bytes = encode_head(request);
                bytes.extend_from_slice(body);
                upstream
                    .write_all(&bytes)
                    .await
                    .map_err(RelayError::Broken)?;
                let answer = read_answer(&mut upstream).await?;
                Ok((upstream, answer))
            }
            answer => Ok((upstream, answer?)),
        }
    }
}

/// The rest of an answer, at most `max_bytes`.
pub(crate) async fn read_all(
    upstream: &mut RelayStream,
    framing: ResponseFraming,
    max_bytes: usize,
) -> Result<Vec<u8>, RelayError> {
    let mut reader = BodyReader::new(framing, max_bytes as u64);
    let mut bytes = Vec::new();
    while !reader.is_done() {
        if upstream.buffered().is_empty() && upstream.fill().await.map_err(RelayError::Broken)? == 0
        {
            reader.end_of_input()?;
            break;
        }
        let step = reader.consume(upstream.buffered())?;
        bytes.extend_from_slice(upstream.buffered().get(step.data).unwrap_or_default());
        upstream.consume(step.consumed);
        if bytes.len() > max_bytes {
            return Err(RelayError::Body(BodyError::TooLong));
        }
    }
    Ok(bytes)
}
