//! Connections to a server that wait for a request, and when the server ends them.
//!
//! A request that meets the end of its connection has to be given up if it may not run twice. So a
//! connection is not used when its server is about to end it: servers rarely say when that is, but
//! each connection that was ended tells it.

use std::cell::RefCell;
use std::collections::VecDeque;

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::server::Server;

/// The time for which the end of a connection tells that of others. A server that was restarted has
/// ended all of them early.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// A connection that ends earlier was not ended because it was idle, but after its last answer.
const LEAST_IDLE: Duration = Duration::from_millis(10);

/// The time after which a server ends an idle connection, as far as it has shown.
#[derive(Debug, Default)]
pub(crate) struct IdleLimit(Mutex<Option<Ended>>);

/// A connection that the server has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    idle_for: Duration,
    at: Instant,
}

impl IdleLimit {
    /// Learns that the server has ended a connection that was idle for this time.
    pub(crate) fn learn(&self, idle_for: Duration, now: Instant) {
        if idle_for < LEAST_IDLE {
            return;
        }
        let shortest = self.shortest(now).unwrap_or(idle_for).min(idle_for);
        *self.0.lock() = Some(Ended {
            idle_for: shortest,
            at: now,
        });
    }

    /// The longest time for which a connection may have waited for its next request: some time
    /// before the server would end it. `None` if any.
    pub(crate) fn longest(&self, now: Instant) -> Option<Duration> {
        self.shortest(now).map(|shortest| shortest / 4 * 3)
    }

    fn shortest(&self, now: Instant) -> Option<Duration> {
        let ended = *self.0.lock();
        let ended = ended.filter(|ended| now < ended.at + KNOWN_FOR);
        ended.map(|ended| ended.idle_for)
    }
}

/// The connections of one thread to one address that wait for a request.
#[derive(Default)]
pub(crate) struct Idle(RefCell<VecDeque<Waiting>>);

/// A connection that waits for a request.
struct Waiting {
    server: Server,
    since: Instant,
    until: Instant,
}

impl Waiting {
    fn is_usable(&self, now: Instant) -> bool {
        now < self.until && !self.server.is_stale()
    }
}

impl Idle {
    /// The connection that waits for the shortest time.
    pub(crate) fn take(&self, limit: &IdleLimit) -> Option<Server> {
        let mut idle = self.0.borrow_mut();
        loop {
            let waiting = idle.pop_back()?;
            let now = Instant::now();
            let idle_for = now.saturating_duration_since(waiting.since);
            if now >= waiting.until || limit.longest(now).is_some_and(|longest| idle_for > longest)
            {
                // The others wait for longer.
                idle.clear();
                return None;
            }
            match waiting.server.reused(idle_for) {
                Ok(server) => return Some(server),
                Err(ended_after) => limit.learn(ended_after, now),
            }
        }
    }

    /// Keeps a connection on which nothing is left of its last request for `idle_for`, with at most
    /// `max` others.
    pub(crate) fn keep(&self, server: Server, idle_for: Duration, max: usize) {
        if !server.is_clean() || idle_for.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut idle = self.0.borrow_mut();
        while idle.front().is_some_and(|first| !first.is_usable(now)) || idle.len() > max {
            idle.pop_front();
        }
        if idle.len() < max {
            idle.push_back(Waiting {
                server,
                since: now,
                until: now + idle_for,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Input;
    use prism_proxy::ServerStream;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_idle_connection_that_the_server_has_ended_is_not_used() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (idle, limit) = (Idle::default(), IdleLimit::default());
            let connect = async || {
                let server = Server::connect(address, Duration::from_secs(5)).await;
                (server.unwrap(), listener.accept().await.unwrap().0)
            };
            let (first, one) = connect().await;
            let (second, mut other) = connect().await;
            assert!(!first.was_used());
            let long = Duration::from_secs(60);
            idle.keep(first, long, 2);
            idle.keep(second, long, 2);
            other.write_all(b"HTTP/1.1 408 \r\n\r\n").await.unwrap();
            // The answer of the second one is no answer.
            let mut taken = idle.take(&limit).unwrap();
            assert!(taken.was_used() && idle.take(&limit).is_none());
            drop(one);
            assert_eq!(taken.fill().await.unwrap(), 0);
            idle.keep(taken, long, 0);
            assert!(idle.take(&limit).is_none());
            let (third, _open) = connect().await;
            idle.keep(third, long, 1);
            idle.0.borrow_mut().front_mut().unwrap().until = Instant::now();
            assert!(idle.take(&limit).is_none() && idle.0.borrow().is_empty());
            drop(listener);
            let refused = Server::connect(address, Duration::from_secs(5)).await;
            assert_eq!(
                refused.err().unwrap().kind(),
                std::io::ErrorKind::ConnectionRefused
            );
        });
    }

    #[test]
    fn a_connection_is_not_used_when_its_server_is_about_to_end_it() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        let limit = IdleLimit::default();
        assert_eq!(limit.longest(start), None);
        limit.learn(ms(5), start);
        assert_eq!(limit.longest(start), None);
        limit.learn(ms(2_000), start);
        assert_eq!(limit.longest(after(1)), Some(ms(1_500)));
        // The shortest one counts.
        limit.learn(ms(1_000), after(10_000));
        limit.learn(ms(3_000), after(20_000));
        assert_eq!(limit.longest(after(79_999)), Some(ms(750)));
        // It may be over.
        assert_eq!(limit.longest(after(80_000)), None);
        limit.learn(ms(3_000), after(90_000));
        assert_eq!(limit.longest(after(90_001)), Some(ms(2_250)));
    }
}
