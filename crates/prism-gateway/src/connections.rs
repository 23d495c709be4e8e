//! The open connections of a process, for an administrator who looks for one.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_handoff::Connection;

/// Parts of the list, so that threads seldom wait for each other.
const PARTS: usize = 16;

/// A part of the list: connections by their number.
type Part = Mutex<BTreeMap<u64, Arc<Mutex<Seen>>>>;

/// The open connections of one process.
#[derive(Debug, Default)]
pub struct Connections {
    next: AtomicU64,
    parts: [Part; PARTS],
}

/// An open connection.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its client.
    pub client: SocketAddr,
    /// The node that accepted it.
    pub frontend: String,
    /// Its hand-offs since the last answer to its client.
    pub hand_offs: u8,
    /// Whether the client speaks TLS.
    pub is_tls: bool,
    /// When it arrived at this node.
    pub arrived: Instant,
    /// Requests that have been answered here.
    pub requests: u64,
    /// The present request, once it is understood.
    pub under_way: Option<UnderWay>,
}

/// A request without its whole answer.
#[derive(Clone, Copy, Debug)]
pub struct UnderWay {
    /// Its identifier.
    pub request_id: u64,
    /// The operation.
    pub operation: &'static str,
    /// When its head was read.
    pub begun: Instant,
}

/// A connection in the list, until this is dropped.
pub(crate) struct ListedConnection<'c> {
    connections: &'c Connections,
    number: u64,
    seen: Arc<Mutex<Seen>>,
    /// Requests that were relayed because their answers were short.
    pub(crate) relayed: Cell<u32>,
}

impl Connections {
    /// The number of open connections, and those of them that have been here longest: at most
    /// `most` of each of 16 parts.
    pub fn oldest(&self, most: usize) -> (usize, Vec<Seen>) {
        let mut count = 0;
        let mut oldest = Vec::new();
        for part in &self.parts {
            let part = part.lock();
            count += part.len();
            oldest.extend(part.values().take(most).map(|seen| seen.lock().clone()));
        }
        oldest.sort_by_key(|seen| seen.arrived);
        (count, oldest)
    }

    /// The time that the longest answer under way has taken so far.
    pub fn longest_answer(&self) -> Option<Duration> {
        let begun = |part: &Part| {
            let part = part.lock();
            let under_way = part.values().filter_map(|seen| seen.lock().under_way);
            under_way.map(|request| request.begun).min()
        };
        let begun = self.parts.iter().filter_map(begun).min();
        begun.map(|begun| begun.elapsed())
    }

    /// Adds a connection.
    pub(crate) fn enter(&self, connection: &Connection) -> ListedConnection<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let seen = Arc::new(Mutex::new(Seen {
            client: connection.remote().address,
            frontend: connection.origin().to_owned(),
            hand_offs: connection.moves(),
            is_tls: connection.is_tls(),
            arrived: Instant::now(),
            requests: 0,
            under_way: None,
        }));
        if let Some(part) = self.part(number) {
            part.lock().insert(number, seen.clone());
        }
        ListedConnection {
            connections: self,
            number,
            seen,
            relayed: Cell::new(0),
        }
    }

    fn part(&self, number: u64) -> Option<&Part> {
        self.parts.get(number as usize % PARTS)
    }
}

impl ListedConnection<'_> {
    pub(crate) fn begins(&self, request: UnderWay) {
        self.seen.lock().under_way = Some(request);
    }

    pub(crate) fn ends(&self) {
        let mut seen = self.seen.lock();
        if seen.under_way.take().is_some() {
            seen.requests += 1;
        }
    }
}

impl Drop for ListedConnection<'_> {
    fn drop(&mut self) {
        if let Some(part) = self.connections.part(self.number) {
            part.lock().remove(&self.number);
        }
    }
}
