//! Relays a request to another node and the answer back to the client, as a proxy does.
//!
//! This is for answers that are too short for a hand-off, and for hand-offs that fail. Not here:
//! the choice between the two (`decision.rs`), the engine (`prism-proxy`), and the node that
//! answers (`relayed.rs`).

use std::io;

use prism_http::{BodyError, HeadError};
use prism_proto::relay::{ANSWER_FIELD, RETRIES_FIELD};
use prism_proxy::{Answer, AnswerHead, Failure, Fault, Forward, Outgoing};
use prism_service::{
    BodyFailure, Exchange, PeerRequest, RelayError, Service, encode_head, has_body,
};

use crate::gateway::Gateway;

impl<S: Service> Gateway<S> {
    /// Relays one request to `peer`, and the answer back. Returns the length of the answer's body,
    /// if its head declared it.
    pub(crate) async fn relay(
        &self,
        exchange: &mut impl Exchange,
        peer: &str,
        request: &PeerRequest<'_>,
    ) -> Result<Option<u64>, RelayError> {
        self.shared.counters.relayed.add_one();
        exchange.record_mut().peer = Some(peer.into());
        let mut stream = self.peers.stream(peer, request).await?;
        let mut is_again = false;
        loop {
            let outgoing = Outgoing {
                head: encode_head(request, stream.form()),
                // A node that sends the request back does so before the body is read.
                asks: has_body(request.head),
                to_node: Some(stream.form()),
                ..Outgoing::default()
            };
            let mut forward = Forward::new(exchange, &mut stream, outgoing);
            let passed = match forward.answer().await {
                Ok(AnswerHead::Plain(plain)) => {
                    let passed = forward.pass_unchanged(plain).await;
                    passed.map(|passed| (passed, Some(plain.body_bytes)))
                }
                Ok(AnswerHead::Parsed(head)) => {
                    let refused = request.refused(&head);
                    let mut answer = Answer::new(head, request.head.method())?;
                    if let Some(refused) = refused {
                        let told = answer.headers_mut().get_str(RETRIES_FIELD);
                        if let Some(told) = told.and_then(|told| told.parse().ok()) {
                            exchange.record_mut().retries = told;
                        }
                        if answer.is_only_a_head() && stream.is_clean() {
                            self.peers.keep(peer, stream);
                        }
                        return Err(refused);
                    }
                    answer.headers_mut().remove(ANSWER_FIELD);
                    let declared_bytes = answer.declared_bytes();
                    let passed = forward.pass(answer).await;
                    passed.map(|passed| (passed, declared_bytes))
                }
                Err(fault) => Err(fault),
            };
            match passed {
                Ok((passed, body_bytes)) => {
                    if passed.is_reusable && stream.is_clean() {
                        self.peers.keep(peer, stream);
                    }
                    return Ok(body_bytes);
                }
                // A pooled stream may end meanwhile. Then a fresh one is tried, if the request was
                // not read or may be answered twice.
                Err(fault) => {
                    let was_used = matches!(
                        fault,
                        Fault::NoAnswer(Failure::Ended { was_used: true, .. }, _)
                    );
                    let error = relay_error(fault);
                    if matches!(error, RelayError::Broken(_)) {
                        exchange.record_mut().add_retry();
                    }
                    let may_follow = match has_body(request.head) {
                        // Its node has not got the body.
                        true => !exchange.body().has_begun(),
                        false => request.may_follow(&error),
                    };
                    if is_again || !was_used || !may_follow {
                        return Err(error);
                    }
                    stream = self.peers.fresh(peer).await?;
                    is_again = true;
                }
            }
        }
    }
}

/// The fault of a relayed request.
fn relay_error(fault: Fault) -> RelayError {
    match fault {
        Fault::NoAnswer(Failure::Ended { in_order: true, .. }, _) => RelayError::NotRead,
        Fault::NoAnswer(Failure::Malformed, error) => match error.downcast::<HeadError>() {
            Ok(error) => RelayError::Answer(error),
            Err(error) => RelayError::Broken(error),
        },
        Fault::NoAnswer(_, error) => RelayError::Broken(error),
        Fault::Body(BodyFailure::Malformed(error)) => RelayError::Body(error),
        Fault::Body(BodyFailure::TooLong) => RelayError::Body(BodyError::TooLong),
        Fault::Body(BodyFailure::Connection(error)) | Fault::Connection(error) => {
            RelayError::Connection(error)
        }
    }
}

/// The error of a request that a client's connection has failed.
pub(crate) fn of_client(error: RelayError) -> Result<RelayError, io::Error> {
    match error {
        RelayError::Connection(error) => Err(error),
        error => Ok(error),
    }
}
