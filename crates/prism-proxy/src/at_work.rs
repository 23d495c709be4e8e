//! Tells a node that relays a request that the server is at work on it. A relaying node gives up a
//! node that is silent, and does not know how long the server may take.

use std::io;
use std::time::Duration;

use prism_http::{PROCESSING, ResponseHead};
use prism_proto::relay::{ANSWER_AT_WORK, ANSWER_FIELD};
use prism_service::Exchange;
use tokio::time::Instant;

/// The longest time between two interim answers.
const INTERIM_EVERY: Duration = Duration::from_secs(10);

/// The interim answers to a relaying node until the answer of the server begins.
#[derive(Debug)]
pub struct AtWork {
    every: Duration,
    /// The time runs across waits, because many short ones need interim answers as well.
    next: Instant,
}

impl AtWork {
    /// For a node that gives up after `silence`: several interim answers come before.
    pub fn new(silence: Duration) -> Self {
        let every = INTERIM_EVERY.min(silence / 3);
        Self {
            every,
            next: Instant::now() + every,
        }
    }

    /// When the next interim answer is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Sends an interim answer.
    ///
    /// # Errors
    /// The relaying node has ended the connection.
    pub async fn tell(&mut self, exchange: &mut impl Exchange) -> io::Result<()> {
        self.next = Instant::now() + self.every;
        let head = ResponseHead::new(PROCESSING).with(ANSWER_FIELD, ANSWER_AT_WORK);
        exchange.interim(&head.map_err(io::Error::other)?).await
    }
}
