//! Frozen sockets whose connections have been sent to a peer, until it answers.
//!
//! A connection may be back before the peer's answer is, which is told when
//! nobody has to wait for it. That it is back is the answer. Workers of a process
//! share the table, since a connection may come back to another one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prism_proto::control::FlowKey;
use prism_sys::tcp::Paused;

use crate::stream::Stream;

/// All frozen sockets of a process, by flow.
#[derive(Debug, Default)]
pub(crate) struct FrozenSockets(Mutex<HashMap<FlowKey, Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    /// At which the peer is to own the flow.
    epoch: u64,
    /// `None`: closed, to make room for the connection that came back.
    socket: Option<Paused<Stream>>,
    has_returned: bool,
}

/// A frozen socket in the table. Dropped, it closes the socket, and tells the
/// client where the connection is still its own.
#[derive(Debug)]
pub(crate) struct Frozen {
    table: Arc<FrozenSockets>,
    flow: FlowKey,
    epoch: u64,
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
        self.flows().entry(flow).or_default().push(entry);
        let table = self.clone();
        Frozen { table, flow, epoch }
    }

    /// A connection has come, to be owned here at `epoch`: what left here at a
    /// lower one did arrive. `needs_room` where both would have the same addresses
    /// and ports.
    pub(crate) fn on_arrival(&self, flow: &FlowKey, epoch: u64, needs_room: bool) {
        let mut flows = self.flows();
        let left = flows.get_mut(flow).into_iter().flatten();
        for entry in left.filter(|entry| entry.epoch < epoch) {
            entry.has_returned = true;
            if needs_room && let Some(socket) = entry.socket.take() {
                socket.close_silently();
            }
        }
    }

    fn flows(&self) -> MutexGuard<'_, HashMap<FlowKey, Vec<Entry>>> {
        // Each change is one call: a panic elsewhere left the table whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Frozen {
    /// The socket, unless the connection has come back since.
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

    fn remove(&self) -> Option<Entry> {
        let mut flows = self.table.flows();
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
        drop(self.remove());
    }
}
