//! GETs whose answers are likely short: their owner is asked with the request itself
//! before the connection moves.

use std::pin::pin;
use std::time::Instant;

use prism_handoff::Connection;
use prism_handoff::cost::metered;
use prism_http::BodyFraming;
use prism_proto::relay::Preamble;
use prism_s3::{ObjectOperation, ObjectRef, Operation};

use super::Worker;
use super::forecast::{Class, Place};
use super::relay::{RelayError, Relayed};
use super::relayed::for_client;
use super::relaying::{Chance, LEAST_BYTES};
use super::request_body::RequestBody;
use super::session::{Next, Request, next};

/// A GET whose answer is likely short, or is tried.
pub(super) struct Guess<'p> {
    /// Who is asked, and who else could be.
    peer: &'p str,
    others: &'p [String],
    place: Place,
    chance: Chance,
    /// Longest answer that is wanted.
    most_bytes: u32,
    link_is_free: bool,
}

impl Worker {
    /// Whether to ask an object's owner before the connection moves there.
    pub(super) fn guess<'p>(&self, request: &Request, peers: &'p [String]) -> Option<Guess<'p>> {
        let (relaying, forecast) = (&self.node.relaying, &self.node.forecast);
        let (
            Operation::Object(ObjectRef { bucket, key }, ObjectOperation::Get(_)),
            BodyFraming::None,
            1..,
        ) = (
            &request.operation,
            request.head.framing(),
            relaying.up_to_bytes(),
        )
        else {
            return None;
        };
        let (peer, others) = peers.split_first()?;
        let place = forecast.place(bucket.as_str(), key.as_str());
        let chance = relaying.next();
        let link_is_free = relaying.link_is_free(Instant::now());
        let (class, most_bytes) = match link_is_free {
            true => (Class::Short, chance.most_bytes(relaying)),
            // A connection leaves a frontend for good.
            false if self.node.store.is_none() => return None,
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

    /// Relays the answer where the object's owner finds that it is short; else gives the
    /// connection back.
    pub(super) async fn relay_if_short(
        &self,
        mut client: Connection,
        request: &Request,
        guess: Guess<'_>,
    ) -> Result<Next, Connection> {
        let relaying = &self.node.relaying;
        let Guess {
            peer,
            others,
            place,
            chance,
            most_bytes,
            link_is_free,
        } = guess;
        let relayed = Relayed {
            head: &request.head,
            preamble: Preamble {
                most_bytes: Some(most_bytes),
                ..for_client(request)
            },
            is_repeatable: true,
        };
        let (answered, spent) = {
            // A GET without one.
            let mut body = RequestBody::new(&request.head, 0);
            let relay = pin!(self.relay(&mut client, peer, &relayed, &mut body));
            metered(chance.is_measured, relay).await
        };
        let body_bytes = match &answered {
            Ok(answered) => answered.body_bytes,
            Err(RelayError::TooLong) => Some(u64::MAX),
            Err(_) => None,
        };
        if let Some(bytes) = body_bytes {
            let learn = |class, up_to: u32| {
                let forecast = &self.node.forecast;
                forecast.learn(place, class, bytes <= up_to.into());
            };
            learn(Class::Tiny, LEAST_BYTES);
            // Of what is not tiny no more was said.
            if link_is_free || bytes <= LEAST_BYTES.into() {
                learn(Class::Short, relaying.up_to_bytes());
            }
        }
        if let (Ok(_), Some(bytes), Some(spent)) = (&answered, body_bytes, spent) {
            relaying.relayed(bytes, spent, self.node.process.hand_off_ns());
        }
        match answered {
            Ok(answered) => {
                relaying.answered(answered.body_bytes.unwrap_or_default());
                client.consume(request.head_bytes);
                let keep_alive = answered.keep_alive && !self.is_stopping();
                Ok(next(client, Ok(keep_alive)))
            }
            Err(RelayError::Connection(error)) => Ok(next(client, Err(error))),
            // Nor does a connection get there.
            Err(RelayError::Peer(error)) => {
                tracing::debug!(%peer, %error, "out of reach");
                self.node.replication.avoid(peer);
                Ok(Box::pin(self.relay_to(client, request, others)).await)
            }
            // Nothing was said to the client yet.
            Err(error) => {
                if matches!(error, RelayError::TooLong) {
                    self.node.counters.asked_in_vain.add_one();
                }
                tracing::debug!(client = %client.client(), %error, "handing off instead");
                Err(client)
            }
        }
    }
}
