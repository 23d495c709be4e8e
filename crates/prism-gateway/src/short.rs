//! GETs whose answers are likely short: this node relays the request with a bound on the answer,
//! and hands the connection off only if the answer is longer.
//!
//! Not here: the bound (`threshold.rs`) and the likelihood (`forecast.rs`).

use std::io;
use std::pin::pin;
use std::time::Instant;

use prism_handoff::cost::metered;
use prism_http::BodyFraming;
use prism_proto::relay::Preamble;
use prism_service::{Exchange, Fault, PeerRequest, RelayError, Request, Service};

use crate::decision::Decision;
use crate::forecast::{Class, Entries};
use crate::gateway::Gateway;
use crate::relay::of_client;
use crate::threshold::{Chance, LEAST_BYTES};

/// Requests of a connection that are relayed before it moves to a node that likely answers all
/// others too. So many cost as much as a hand-off, so that the costs of a connection are at most
/// twice those of the best choice, however many requests it has.
const MOST_RELAYED: u32 = 2;

/// A GET whose answer is likely short, or is tried.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Guess {
    /// The nodes that may answer. The first one is asked.
    peers: Vec<String>,
    entries: Entries,
    chance: Chance,
    /// Longest answer to relay.
    most_bytes: u32,
    link_is_free: bool,
}

impl<S: Service> Gateway<S> {
    /// Whether to ask an object's owner before the connection moves there. `relayed`: requests of
    /// the connection that were relayed so far.
    pub(crate) fn guess(
        &self,
        request: &Request<S::Meaning>,
        peers: &[String],
        relayed: u32,
    ) -> Option<Guess> {
        let threshold = &self.shared.threshold;
        let forecast = &self.shared.forecast;
        let subject = self.service.subject(&request.meaning)?;
        if request.head.framing() != BodyFraming::None || threshold.up_to_bytes() == 0 {
            return None;
        }
        if subject.is_settling && relayed >= MOST_RELAYED {
            return None;
        }
        let entries = forecast.entries(subject.group, subject.name);
        let chance = threshold.next();
        let link_is_free = self.shared.link.is_free(Instant::now());
        let (class, most_bytes) = match link_is_free {
            true => (Class::Short, chance.most_bytes(threshold)),
            // A connection leaves a frontend for good.
            false if !self.shared.is_backend => return None,
            false => (Class::Tiny, LEAST_BYTES),
        };
        let is_trial = chance.is_trial && link_is_free;
        (is_trial || forecast.is_likely(entries, class)).then(|| Guess {
            peers: peers.to_vec(),
            entries,
            chance,
            most_bytes,
            link_is_free,
        })
    }

    /// Relays the answer if the object's owner finds it short; `None` then. Otherwise returns what
    /// is to be done instead.
    pub(crate) async fn ask(
        &self,
        exchange: &mut impl Exchange,
        request: &Request<S::Meaning>,
        guess: Guess,
    ) -> io::Result<Option<Decision<S::Error>>> {
        let threshold = &self.shared.threshold;
        let Some(peer) = guess.peers.first() else {
            return Ok(Some(Decision::Relay(guess.peers)));
        };
        let relayed = PeerRequest {
            head: &request.head,
            preamble: Preamble {
                most_bytes: Some(guess.most_bytes),
                ..self.preamble_for(request, exchange)
            },
            is_repeatable: request.head.method().is_safe(),
        };
        let (answered, spent) = {
            let relay = pin!(self.relay(exchange, peer, &relayed));
            metered(guess.chance.is_measured, relay).await
        };
        let body_bytes = match &answered {
            Ok(body_bytes) => *body_bytes,
            Err(RelayError::TooLong | RelayError::Parked) => Some(u64::MAX),
            // The server's own answer was short, whatever the resource is.
            Err(RelayError::Redirected(_)) => Some(0),
            Err(_) => None,
        };
        if let Some(bytes) = body_bytes {
            let learn = |class, up_to: u32| {
                let forecast = &self.shared.forecast;
                forecast.learn(guess.entries, class, bytes <= up_to.into());
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
        let error = match answered {
            Ok(body_bytes) => {
                self.shared.link.answered(body_bytes.unwrap_or_default());
                return Ok(None);
            }
            Err(error) => of_client(error)?,
        };
        if matches!(error, RelayError::Peer(_)) {
            self.avoid(peer);
        }
        if matches!(error, RelayError::TooLong | RelayError::Parked) {
            self.shared.counters.asked_in_vain.add_one();
        }
        tracing::debug!(%peer, %error, "not answered in short");
        let meaning = Some(&request.meaning);
        let out_of_reach = || self.service.error_for(Fault::OutOfReach, meaning);
        let is_repeatable = relayed.is_repeatable;
        let next = Decision::after_asking(guess.peers, &error, is_repeatable, out_of_reach);
        Ok(Some(next))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The guess that `peer` answers in short.
    pub(crate) fn guess(peer: &str) -> Guess {
        Guess {
            peers: vec![peer.to_owned()],
            entries: Entries::default(),
            chance: Chance::default(),
            most_bytes: 4_096,
            link_is_free: true,
        }
    }
}
