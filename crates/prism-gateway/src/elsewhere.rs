//! Requests that other nodes answer: the connection moves there, or this node relays.
//!
//! A node that no longer answers a key sends the request back, and it is routed again.

use std::time::Instant;

use prism_config::HandOffMode;
use prism_handoff::{Connection, Exported, Kept};
use prism_http::BodyFraming;
use prism_proto::node::Refusal;
use prism_proto::relay::Preamble;
use prism_proto::verified::{Body, Verified};
use prism_service::{
    Fault, MAX_SKIP_BYTES, PeerRequest, RelayError, Request, RequestBody, Route, Service, has_body,
    trace_of,
};

use crate::gateway::Gateway;
use crate::session::{Next, next};

/// Most times that a request is routed.
const MAX_TRIES: u32 = 3;
/// Most nodes that a connection is offered to.
const MAX_OFFERS: usize = 3;

impl<S: Service> Gateway<S> {
    /// Moves the connection to the first of `peers` that takes it; relays if none does.
    pub(crate) async fn hand_off(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        peers: &[String],
    ) -> Next {
        let returns = self.config().service.hand_off == HandOffMode::Return
            && client.origin() != self.shared.name;
        let origin = returns.then(|| client.origin().to_owned());
        if has_body(&request.head) {
            client.acknowledge();
        }
        let context = self.vouch(request).encode();
        let has_to_move = self.service.has_to_move(&request.meaning);
        for target in origin.iter().chain(peers).take(MAX_OFFERS) {
            match self.handle.export(client, target, &context).await {
                Exported::Moved | Exported::Lost | Exported::Unknown => return Next::Gone,
                Exported::Kept { connection, reason } => {
                    tracing::debug!(client = %connection.client(), target, ?reason, "not moved");
                    client = connection;
                    // A node that leaves is unwilling. An origin may be gone.
                    let is_origin = origin.as_ref() == Some(target);
                    let is_unwilling = reason == Kept::TargetRefused(Refusal::Unwilling);
                    let is_silent = reason == Kept::TargetSilent;
                    let others_may = is_unwilling || is_silent && (is_origin || has_to_move);
                    if !others_may {
                        break;
                    }
                }
            }
        }
        Box::pin(self.relay_to(client, request, peers)).await
    }

    /// Moves the connection to `peer`, where its answer waits; relays the answer if it does not
    /// move.
    pub(crate) async fn move_to_answer(
        &self,
        client: Connection,
        request: &Request<S::Meaning>,
        peer: &str,
    ) -> Next {
        let spent = Verified {
            body: Body::Spent,
            ..self.vouch(request)
        };
        match self.handle.export(client, peer, &spent.encode()).await {
            Exported::Moved | Exported::Lost | Exported::Unknown => Next::Gone,
            Exported::Kept { connection, reason } => {
                tracing::debug!(client = %connection.client(), peer, ?reason, "not moved");
                let fetched = self.relay_waiting(connection, request, peer, spent);
                Box::pin(fetched).await
            }
        }
    }

    /// Relays the answer that waits at `peer`. If it is lost there, only a safe request is carried
    /// out again.
    async fn relay_waiting(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        peer: &str,
        spent: Verified,
    ) -> Next {
        let relayed = PeerRequest {
            head: &request.head,
            preamble: Preamble {
                verified: spent,
                ..self.preamble_for(request)
            },
            is_repeatable: false,
        };
        // A request with a body has moved at once.
        let mut body = RequestBody::new(&request.head, 0);
        match self.relay(&mut client, peer, &relayed, &mut body).await {
            Ok(answered) => {
                client.consume(request.head_bytes);
                next(client, Ok(answered.keep_alive && !self.is_stopping()))
            }
            Err(RelayError::Connection(error)) => next(client, Err(error)),
            Err(error) if request.head.method().is_safe() && !error.is_silence() => {
                self.relay_to(client, request, &[peer.to_owned()]).await
            }
            Err(error) => {
                tracing::warn!(peer, %error, "an answer that waited is lost");
                client.consume(request.head_bytes);
                let error = self.service.error_for(Fault::OutOfReach);
                self.refuse(client, &request.head, body, &error).await
            }
        }
    }

    /// Relays to the first of `peers` that is in reach, and answers.
    pub(crate) async fn relay_to(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        peers: &[String],
    ) -> Next {
        client.consume(request.head_bytes);
        self.relay_behind_head(client, request, peers).await
    }

    /// Has another node answer a request that this node could not begin to answer.
    pub(crate) async fn serve_elsewhere(
        &self,
        client: Connection,
        request: &Request<S::Meaning>,
        error: S::Error,
    ) -> Next {
        match self.service.route(&request.meaning) {
            Route::HandOff(peers) | Route::Relay(peers) if !peers.is_empty() => {
                tracing::info!(%error, path = request.head.path(), "another node answers instead");
                self.relay_behind_head(client, request, &peers).await
            }
            _ => {
                let body = request.take_body(MAX_SKIP_BYTES);
                self.refuse(client, &request.head, body, &error).await
            }
        }
    }

    /// [`Self::relay_to`] for a request whose head is consumed.
    async fn relay_behind_head(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        peers: &[String],
    ) -> Next {
        let relayed = PeerRequest {
            head: &request.head,
            preamble: self.preamble_for(request),
            is_repeatable: request.head.method().is_safe(),
        };
        let mut body = request.take_body(self.service.limits().body_bytes);
        let mut peers = peers.to_vec();
        let (begun, mut tries) = (Instant::now(), 1);
        let failure = loop {
            let epoch = self.service.epoch();
            let mut failure = None;
            for peer in &peers {
                match self.relay(&mut client, peer, &relayed, &mut body).await {
                    Ok(done) if done.keep_alive && !self.is_stopping() => {
                        return Next::Again(client);
                    }
                    Ok(_) => return Next::Close(client),
                    Err(error) => {
                        let has_no_body = request.head.framing() == BodyFraming::None;
                        let is_silent = matches!(error, RelayError::Peer(_))
                            || has_no_body && relayed.may_follow(&error);
                        if is_silent {
                            self.avoid(peer);
                        }
                        // Another node may answer instead.
                        let goes_on = is_silent || matches!(error, RelayError::Elsewhere);
                        failure = Some(error);
                        if !goes_on {
                            break;
                        }
                    }
                }
            }
            let was_sent_elsewhere = match failure {
                Some(RelayError::Elsewhere) => true,
                Some(RelayError::Peer(_)) => false,
                _ => break failure,
            };
            if tries == MAX_TRIES || body.has_begun() {
                break failure;
            }
            let is_over = !was_sent_elsewhere && self.handle.outlast_outage(begun).await;
            if !is_over && !self.service.has_moved_on(epoch, was_sent_elsewhere).await {
                break failure;
            }
            tries += 1;
            peers = match self.service.route(&request.meaning) {
                Route::HandOff(peers) | Route::Relay(peers) => peers,
                Route::Here => {
                    request.give_body_back();
                    let _change = self.service.begin(&request.meaning).await;
                    return Box::pin(self.serve_behind_head(client, request)).await;
                }
            };
        };
        let error = match failure {
            Some(RelayError::Connection(error)) => {
                tracing::debug!(client = %client.client(), %error, "relay ended");
                return Next::Gone;
            }
            Some(RelayError::Body(error)) => self.service.error_for(Fault::Body(error)),
            Some(RelayError::Elsewhere) => self.service.error_for(Fault::Elsewhere),
            failure => {
                tracing::warn!(
                    ?peers,
                    ?failure,
                    "cannot relay a request; the client gets an error"
                );
                self.service.error_for(Fault::OutOfReach)
            }
        };
        self.refuse(client, &request.head, body, &error).await
    }

    /// The verification of a request, with its identifier and its trace.
    fn vouch(&self, request: &Request<S::Meaning>) -> Verified {
        Verified {
            request_id: request.head.noted().id(),
            trace: trace_of(&request.head),
            ..self.service.vouch(&request.meaning)
        }
    }

    /// The preamble of a client's request.
    pub(crate) fn preamble_for(&self, request: &Request<S::Meaning>) -> Preamble {
        Preamble {
            alone: false,
            verified: self.vouch(request),
            most_bytes: None,
        }
    }

    /// Notes that `peer` did not answer: others are asked first for a while.
    pub(crate) fn avoid(&self, peer: &str) {
        self.shared.process.health.avoid(peer, Instant::now());
    }
}
