//! Frozen sockets whose connections were sent to a peer, until its verdict.
//!
//! A connection may come back before the verdict does, which leaves late. Its return is the
//! verdict. Workers of a process share the table, because a connection may come back to another
//! worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use prism_proto::control::FlowKey;
use prism_sys::tcp::Paused;

use crate::stream::Stream;
use crate::supervise::locked;

/// All frozen sockets of a process, by flow.
#[derive(Debug, Default)]
pub(crate) struct FrozenSockets(Mutex<HashMap<FlowKey, Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    /// The epoch at which the peer is to own the flow.
    epoch: u64,
    /// `None` if it was closed to make room for the connection that came back.
    socket: Option<Paused<Stream>>,
    has_returned: bool,
}

/// A frozen socket in the table. Dropping it closes the socket, and tells the client unless the
/// connection has moved.
#[derive(Debug)]
pub(crate) struct Frozen {
    table: Arc<FrozenSockets>,
    flow: FlowKey,
    epoch: u64,
    has_moved: bool,
}

impl FrozenSockets {
    /// Keeps the socket of a connection that a peer is to own at `epoch`.
    pub(crate) fn keep(
        self: &Arc<Self>,
        flow: FlowKey,
        epoch: u64,
        socket: Paused<Stream>,
    ) -> Frozen {
        let entry = Entry {
            epoch,
            socket: Some(socket),
            has_returned: false,
        };
        locked(&self.0).entry(flow).or_default().push(entry);
        Frozen {
            table: self.clone(),
            flow,
            epoch,
            has_moved: false,
        }
    }

    /// A connection has arrived, which this node is to own at `epoch`. It tells that departures at
    /// lower epochs have arrived. With `needs_room` their sockets are closed, because both would
    /// have the same addresses and ports.
    pub(crate) fn on_arrival(&self, flow: &FlowKey, epoch: u64, needs_room: bool) {
        let mut flows = locked(&self.0);
        let left = flows.get_mut(flow).into_iter().flatten();
        for entry in left.filter(|entry| entry.epoch < epoch) {
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

    fn remove(&self) -> Option<Entry> {
        let mut flows = locked(&self.table.0);
        let entries = flows.get_mut(&self.flow)?;
        let at = entries.iter().position(|entry| entry.epoch == self.epoch)?;
        let entry = entries.swap_remove(at);
        if entries.is_empty() {
            flows.remove(&self.flow);
        }
        Some(entry)
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
