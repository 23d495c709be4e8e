//! Answers that wait for their connection.
//!
//! The length of an answer is known only when it has begun. So a node that expects a short answer
//! relays the request with a bound. If the answer turns out longer, it is parked here with its open
//! connection to the server, under the identifier of the request. The client's connection then
//! moves here, and gets the answer. So no request is carried out twice.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_proxy::Answer;

use crate::pool::{Pool, UnderWay};
use crate::server::{ParkedServer, Server};

/// The longest time for which an answer waits. A hand-off takes some milliseconds, and ends well
/// before in any case; a request that came later would be carried out again.
const PARKED_FOR: Duration = Duration::from_secs(30);
/// Most answers that wait. Each has a socket and a buffer of 64 KiB.
const MAX_PARKED: usize = 1_024;

/// The answers of a node that wait.
#[derive(Default)]
pub(crate) struct Parking(Mutex<HashMap<u64, Parked>>);

/// An answer whose head has come.
pub(crate) struct Parked {
    pool: Arc<Pool>,
    answer: Answer,
    /// Whether the answer offers to authenticate the server's connection.
    pub(crate) offers_login: bool,
    under_way: UnderWay,
    server: ParkedServer,
    until: Instant,
}

/// The connection to the server of a request.
pub(crate) struct Lease {
    pub(crate) server: Server,
    pub(crate) under_way: UnderWay,
}

impl Parking {
    /// Whether another answer may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.0.lock().len() < MAX_PARKED
    }

    /// Keeps an answer for the request `id`.
    pub(crate) fn park(&self, id: u64, parked: Parked) {
        self.0.lock().insert(id, parked);
    }

    /// The upstream whose answer to the request `id` waits here.
    pub(crate) fn pool_of(&self, id: u64) -> Option<Arc<Pool>> {
        self.0.lock().get(&id).map(|parked| parked.pool.clone())
    }

    /// The answer to the request `id`, if it waits here.
    pub(crate) fn take(&self, id: u64) -> Option<Parked> {
        self.0.lock().remove(&id)
    }

    /// Drops the answers whose connections have not come.
    pub(crate) fn expire(&self, now: Instant) {
        let mut parked = self.0.lock();
        let before = parked.len();
        parked.retain(|_, parked| parked.until > now);
        if parked.len() < before {
            let count = before - parked.len();
            tracing::warn!(
                count,
                "dropped parked answers whose connections did not come"
            );
        }
    }
}

impl Parked {
    /// Parks the answer that `lease` has begun to receive.
    ///
    /// # Errors
    /// The runtime does not let the socket go.
    pub(crate) fn new(
        lease: Lease,
        answer: Answer,
        offers_login: bool,
        pool: &Arc<Pool>,
    ) -> io::Result<Self> {
        let Lease { server, under_way } = lease;
        Ok(Self {
            pool: pool.clone(),
            answer,
            offers_login,
            under_way,
            server: server.park()?,
            until: Instant::now() + PARKED_FOR,
        })
    }

    /// The answer, and the connection behind its head, in the calling thread.
    ///
    /// # Errors
    /// The runtime does not take the socket.
    pub(crate) fn resume(self) -> io::Result<(Answer, Lease)> {
        let lease = Lease {
            server: self.server.resume()?,
            under_way: self.under_way,
        };
        Ok((self.answer, lease))
    }
}
