//! Frozen sockets whose connections were sent to a peer, until its verdict.
//!
//! A connection may come back before the verdict does, which leaves late. Its return is the
//! verdict. Workers of a process share the table, because a connection may come back to another
//! worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prism_proto::control::FlowKey;
use prism_sys::tcp::Paused;

use crate::stream::Stream;

/// All frozen sockets of a process, by flow and by the epoch at which the peer is to own the flow.
#[derive(Debug, Default)]
pub(crate) struct FrozenSockets(Mutex<BTreeMap<(FlowKey, u64), FrozenEntry>>);

#[derive(Debug)]
struct FrozenEntry {
    /// The peer that has the state.
    peer: String,
    /// `None` if it was closed to make room for the connection that came back.
    socket: Option<Paused<Stream>>,
    has_returned: bool,
}

/// A frozen socket in the table. Dropping it closes the socket, and tells the client unless the
/// connection has moved.
#[derive(Debug)]
pub(crate) struct Frozen {
    table: Arc<FrozenSockets>,
    key: (FlowKey, u64),
    has_moved: bool,
}

impl FrozenSockets {
    /// Keeps the socket of a connection that `peer` is to own at `epoch`.
    pub(crate) fn keep(
        self: &Arc<Self>,
        flow: FlowKey,
        epoch: u64,
        peer: &str,
        socket: Paused<Stream>,
    ) -> Frozen {
        let entry = FrozenEntry {
            peer: peer.to_owned(),
            socket: Some(socket),
            has_returned: false,
        };
        let key = (flow, epoch);
        self.0.lock().insert(key, entry);
        Frozen {
            table: self.clone(),
            key,
            has_moved: false,
        }
    }

    /// Whether `peer` has got this connection to own it before `epoch`, so that it may return it.
    pub(crate) fn is_with(&self, peer: &str, flow: &FlowKey, epoch: u64) -> bool {
        let all = self.0.lock();
        let mut sent = all.range((*flow, 0)..(*flow, epoch));
        sent.any(|(_, entry)| entry.peer == peer)
    }

    /// A connection has arrived, which this node is to own at `epoch`. It tells that departures at
    /// lower epochs have arrived. With `needs_room` their sockets are closed, because both would
    /// have the same addresses and ports.
    pub(crate) fn on_arrival(&self, flow: &FlowKey, epoch: u64, needs_room: bool) {
        let mut all = self.0.lock();
        for (_, entry) in all.range_mut((*flow, 0)..(*flow, epoch)) {
            entry.has_returned = true;
            if needs_room && let Some(socket) = entry.socket.take() {
                socket.close_silently();
            }
        }
    }
}

impl Frozen {
    /// Takes the socket, unless the connection has come back since.
    pub(crate) fn take(self) -> Option<Paused<Stream>> {
        let entry = self.remove()?;
        match (entry.socket, entry.has_returned) {
            (Some(left_behind), true) => {
                left_behind.close_silently();
                None
            }
            (socket, _) => socket,
        }
    }

    /// The socket of a connection that has moved. Dropping it closes the socket silently. Before
    /// that, the connection may come back and take its place.
    pub(crate) fn left_behind(mut self) -> Self {
        self.has_moved = true;
        self
    }

    fn remove(&self) -> Option<FrozenEntry> {
        self.table.0.lock().remove(&self.key)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let socket = self.remove().and_then(|entry| entry.socket);
        if let Some(socket) = socket
            && self.has_moved
        {
            socket.close_silently();
        }
    }
}
