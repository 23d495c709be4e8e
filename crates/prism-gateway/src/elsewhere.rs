//! Requests that other nodes answer: the connection moves there, or this node relays.
//!
//! A node that no longer answers a key sends the request back, and it is routed again.

use std::io;
use std::time::Instant;

use prism_config::HandOffMode;
use prism_handoff::{Connection, Exported, Kept};
use prism_http::BodyFraming;
use prism_proto::facts::{ClientFacts, Facts, Progress};
use prism_proto::node::Refusal;
use prism_proto::relay::Preamble;
use prism_service::{
    Exchange, Fault, PeerRequest, RelayError, Request, Route, Service, has_body, trace_of,
};

use crate::decision::{Decision, Move};
use crate::gateway::Gateway;
use crate::relay::of_client;

/// Most times that a request is routed.
const MAX_TRIES: u32 = 3;
/// Most nodes that a connection is offered to.
const MAX_OFFERS: usize = 3;

impl<S: Service> Gateway<S> {
    /// Moves the connection to the first node that takes it. Returns it if none does.
    pub(crate) async fn hand_off(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        to: &Move,
    ) -> Option<Connection> {
        let facts = self.facts(request, to.is_fetched);
        let returns = self.config().service.hand_off == HandOffMode::Return
            && client.origin() != self.shared.name
            && !to.is_fetched;
        let origin = returns.then(|| client.origin().to_owned());
        if has_body(&request.head) {
            client.acknowledge();
        }
        let has_to_move = self.service.has_to_move(&request.meaning);
        for target in origin.iter().chain(&to.peers).take(MAX_OFFERS) {
            match self
                .handle
                .export_with(client, target, |form| facts.encode(form))
                .await
            {
                Exported::Moved | Exported::Lost | Exported::Unknown => return None,
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
        Some(client)
    }

    /// Relays the answer that waits at `peer`; `None` then. Otherwise returns what is to be done
    /// instead.
    pub(crate) async fn fetch(
        &self,
        exchange: &mut impl Exchange,
        request: &Request<S::Meaning>,
        peer: String,
    ) -> io::Result<Option<Decision<S::Error>>> {
        let relayed = PeerRequest {
            head: &request.head,
            preamble: Preamble {
                facts: self.facts(request, true),
                ..self.preamble_for(request, exchange)
            },
            is_repeatable: false,
        };
        let error = match self.relay(exchange, &peer, &relayed).await {
            Ok(_) => return Ok(None),
            Err(error) => of_client(error)?,
        };
        tracing::warn!(peer, %error, "an answer that waited is lost");
        let is_safe = request.head.method().is_safe();
        let meaning = Some(&request.meaning);
        let out_of_reach = || self.service.error_for(Fault::OutOfReach, meaning);
        let next = Decision::after_fetching(peer, &error, is_safe, out_of_reach);
        Ok(Some(next))
    }

    /// Relays to the first of `peers` that is in reach; `None` then. Otherwise returns what is to
    /// be done instead.
    pub(crate) async fn relay_to(
        &self,
        exchange: &mut impl Exchange,
        request: &Request<S::Meaning>,
        mut peers: Vec<String>,
    ) -> io::Result<Option<Decision<S::Error>>> {
        let mut relayed = PeerRequest {
            head: &request.head,
            preamble: self.preamble_for(request, exchange),
            is_repeatable: request.head.method().is_safe(),
        };
        exchange.limit_body(self.service.limits().body_bytes);
        let begun = Instant::now();
        let mut tries = 1;
        let failure = loop {
            let epoch = self.service.epoch();
            let mut failure = None;
            for peer in &peers {
                relayed.preamble.facts.retries = exchange.record().retries;
                let error = match self.relay(exchange, peer, &relayed).await {
                    Ok(_) => return Ok(None),
                    Err(error) => of_client(error)?,
                };
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
            let was_sent_elsewhere = match failure {
                Some(RelayError::Redirected(answer)) => {
                    return Ok(Some(Decision::Redirect(answer)));
                }
                Some(RelayError::Elsewhere) => true,
                Some(RelayError::Peer(_)) => false,
                _ => break failure,
            };
            if tries == MAX_TRIES || exchange.body().has_begun() {
                break failure;
            }
            let is_over = !was_sent_elsewhere && self.handle.outlast_outage(begun).await;
            if !is_over
                && !self
                    .service
                    .has_moved_on(&request.meaning, epoch, was_sent_elsewhere)
                    .await
            {
                break failure;
            }
            tries += 1;
            peers = match self.service.route(&request.meaning, false) {
                Route::HandOff(peers) | Route::Relay(peers) => peers,
                Route::Here => return Ok(Some(Decision::Here)),
            };
        };
        let fault = match failure {
            Some(RelayError::Body(error)) => Fault::Body(error),
            Some(RelayError::Elsewhere) => Fault::Elsewhere,
            failure => {
                tracing::warn!(
                    ?peers,
                    ?failure,
                    "cannot relay a request; the client gets an error"
                );
                Fault::OutOfReach
            }
        };
        let error = self.service.error_for(fault, Some(&request.meaning));
        Ok(Some(Decision::Refuse(error)))
    }

    /// The facts of a request, for the node that answers it. `is_fetched`: its answer waits there.
    fn facts(&self, request: &Request<S::Meaning>, is_fetched: bool) -> Facts {
        let facts = self.service.facts(&request.meaning);
        Facts {
            request_id: request.id,
            trace: trace_of(request.span),
            retries: request.retries,
            progress: if is_fetched {
                Progress::AnswerWaits
            } else {
                facts.progress
            },
            redirect: request.redirection.facts(),
            limits: request.holds.keys().to_vec(),
            client: request.client.map(|client| ClientFacts {
                address: client.address,
                service: client.service,
                is_tls: client.is_tls,
            }),
            ..facts
        }
    }

    /// The preamble of a client's request.
    pub(crate) fn preamble_for(
        &self,
        request: &Request<S::Meaning>,
        exchange: &impl Exchange,
    ) -> Preamble {
        Preamble {
            alone: false,
            facts: Facts {
                retries: exchange.record().retries,
                // The relaying node counts it.
                limits: Vec::new(),
                ..self.facts(request, false)
            },
            most_bytes: None,
        }
    }

    /// Notes that `peer` did not answer: others are asked first for a while.
    pub(crate) fn avoid(&self, peer: &str) {
        self.shared
            .process
            .health
            .lock()
            .avoid(peer, Instant::now());
    }
}
