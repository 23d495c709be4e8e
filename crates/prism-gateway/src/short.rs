//! GETs whose answers are likely short: this node relays the request with a bound on the answer,
//! and hands the connection off only if the answer is longer.
//!
//! Not here: the bound (`threshold.rs`) and the likelihood (`forecast.rs`).

use std::pin::pin;
use std::time::Instant;

use prism_handoff::Connection;
use prism_handoff::cost::metered;
use prism_http::BodyFraming;
use prism_proto::relay::Preamble;
use prism_service::{
    Fault, MAX_SKIP_BYTES, PeerRequest, RelayError, Request, RequestBody, Service,
};

use crate::forecast::{Class, Place};
use crate::gateway::Gateway;
use crate::session::{Next, next};
use crate::threshold::{Chance, LEAST_BYTES};

/// Requests of a connection that are relayed before it moves to a node that likely answers all
/// others too. So many cost as much as a hand-off, so that the costs of a connection are at most
/// twice those of the best choice, however many requests it has.
const MOST_RELAYED: u32 = 2;

/// A GET whose answer is likely short, or is tried.
pub(crate) struct Guess<'p> {
    /// The node to ask.
    pub(crate) peer: &'p str,
    /// The other nodes that may answer.
    others: &'p [String],
    place: Place,
    chance: Chance,
    /// Longest answer to relay.
    most_bytes: u32,
    link_is_free: bool,
}

impl<S: Service> Gateway<S> {
    /// Whether to ask an object's owner before the connection moves there. `relayed`: requests of
    /// the connection that were relayed so far.
    pub(crate) fn guess<'p>(
        &self,
        request: &Request<S::Meaning>,
        peers: &'p [String],
        relayed: u32,
    ) -> Option<Guess<'p>> {
        let (threshold, forecast) = (&self.shared.threshold, &self.shared.forecast);
        let subject = self.service.subject(&request.meaning)?;
        if request.head.framing() != BodyFraming::None || threshold.up_to_bytes() == 0 {
            return None;
        }
        if subject.is_settling && relayed >= MOST_RELAYED {
            return None;
        }
        let (peer, others) = peers.split_first()?;
        let place = forecast.place(subject.group, subject.name);
        let chance = threshold.next();
        let link_is_free = self.shared.link.is_free(Instant::now());
        let (class, most_bytes) = match link_is_free {
            true => (Class::Short, chance.most_bytes(threshold)),
            // A connection leaves a frontend for good.
            false if !self.shared.is_backend => return None,
            false => (Class::Tiny, LEAST_BYTES),
        };
        let is_trial = chance.is_trial && link_is_free;
        (is_trial || forecast.is_likely(place, class)).then_some(Guess {
            peer,
            others,
            place,
            chance,
            most_bytes,
            link_is_free,
        })
    }

    /// Relays the answer if the object's owner finds it short. Otherwise returns the connection.
    pub(crate) async fn relay_if_short(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        guess: Guess<'_>,
    ) -> Result<Next, Asked> {
        let (peer, threshold) = (guess.peer, &self.shared.threshold);
        let relayed = PeerRequest {
            head: &request.head,
            preamble: Preamble {
                most_bytes: Some(guess.most_bytes),
                ..self.preamble_for(request)
            },
            is_repeatable: request.head.method().is_safe(),
        };
        let (answered, spent) = {
            // A GET without one.
            let mut body = RequestBody::new(&request.head, 0);
            let relay = pin!(self.relay(&mut client, peer, &relayed, &mut body));
            metered(guess.chance.is_measured, relay).await
        };
        let body_bytes = match &answered {
            Ok(answered) => answered.body_bytes,
            Err(RelayError::TooLong | RelayError::Parked) => Some(u64::MAX),
            Err(_) => None,
        };
        if let Some(bytes) = body_bytes {
            let learn = |class, up_to: u32| {
                let forecast = &self.shared.forecast;
                forecast.learn(guess.place, class, bytes <= up_to.into());
            };
            learn(Class::Tiny, LEAST_BYTES);
            // The bound was that of tiny answers, so a longer one may still be short.
            if guess.link_is_free || bytes <= LEAST_BYTES.into() {
                learn(Class::Short, threshold.up_to_bytes());
            }
        }
        if let (Ok(_), Some(bytes), Some(spent)) = (&answered, body_bytes, spent) {
            threshold.relayed(bytes, spent, self.shared.process.hand_off_ns());
        }
        match answered {
            Ok(answered) => {
                let body_bytes = answered.body_bytes.unwrap_or_default();
                self.shared.link.answered(body_bytes);
                client.consume(request.head_bytes);
                let keep_alive = answered.keep_alive && !self.is_stopping();
                Ok(next(client, Ok(keep_alive)))
            }
            Err(RelayError::Connection(error)) => Ok(next(client, Err(error))),
            // A hand-off would not reach the node either.
            Err(RelayError::Peer(error)) => {
                tracing::debug!(%peer, %error, "out of reach");
                self.avoid(peer);
                Ok(Box::pin(self.relay_to(client, request, guess.others)).await)
            }
            // The client has got nothing yet.
            Err(error) => {
                if matches!(error, RelayError::TooLong | RelayError::Parked) {
                    self.shared.counters.asked_in_vain.add_one();
                }
                tracing::debug!(client = %client.client(), %error, "handing off instead");
                match error {
                    RelayError::Parked => Err(Asked::Parked(client)),
                    RelayError::Elsewhere => Err(Asked::Elsewhere(client)),
                    RelayError::TooLong | RelayError::NotRead => Err(Asked::Unanswered(client)),
                    _ if relayed.is_repeatable && !error.is_silence() => {
                        Err(Asked::Unanswered(client))
                    }
                    // It may have been carried out, or be under way.
                    _ => {
                        client.consume(request.head_bytes);
                        let body = request.take_body(MAX_SKIP_BYTES);
                        let error = self.service.error_for(Fault::OutOfReach);
                        Ok(self.refuse(client, &request.head, body, &error).await)
                    }
                }
            }
        }
    }
}

/// A connection whose request was relayed in the hope of a short answer, and that has got none.
pub(crate) enum Asked {
    /// Any node may answer it.
    Unanswered(Connection),
    /// Any node but the one that was asked may answer it.
    Elsewhere(Connection),
    /// The answer waits at the node that was asked.
    Parked(Connection),
}
