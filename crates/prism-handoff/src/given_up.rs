//! Connections that arrived here and for which the switch did not answer at
//! once: whether they have been given up, for their sources to ask, and the deaf
//! sockets of those that were.
//!
//! Workers of a process share the table: a source asks on whatever channel it
//! has, and the connection may come again to another worker.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prism_proto::control::FlowKey;
use prism_sys::tcp::Restored;

/// Most deaf sockets of a process. Beyond that they are closed at once, and a
/// packet of the client may draw a reset: outages that long and that busy have
/// cost more by then.
const MAX_DEAF: usize = 16_384;

/// All such connections of a process, by hand-off.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Mutex<HashMap<u64, State>>);

#[derive(Debug)]
enum State {
    /// The switch is being asked.
    Open,
    /// The source may go on with it.
    GivenUp {
        flow: FlowKey,
        /// At which this host was to own the flow.
        epoch: u64,
        /// `None`: closed, to make room for the connection that came again.
        deaf: Option<Restored>,
    },
}

impl GivenUp {
    /// The hand-off waits for the switch.
    pub(crate) fn open(&self, id: u64) {
        self.all().insert(id, State::Open);
    }

    /// It waits no more, and was not given up; or its socket has been deaf for
    /// long enough.
    pub(crate) fn forget(&self, id: u64) {
        let state = self.all().remove(&id);
        // Closes the socket, without the lock.
        drop(state);
    }

    /// Its source may go on with it.
    pub(crate) fn keep(&self, id: u64, flow: FlowKey, epoch: u64, socket: Option<Restored>) {
        let mut all = self.all();
        let deaf = socket.filter(|_| all.len() < MAX_DEAF);
        let state = State::GivenUp { flow, epoch, deaf };
        all.insert(id, state);
    }

    /// Whether the hand-off was given up; `None` while that is open.
    pub(crate) fn ask(&self, id: u64) -> Option<bool> {
        match self.all().get(&id) {
            Some(State::Open) => None,
            Some(State::GivenUp { .. }) => Some(true),
            None => Some(false),
        }
    }

    /// The connection comes again, to be owned here at `epoch` with the addresses
    /// and ports that it had before.
    pub(crate) fn make_room(&self, flow: &FlowKey, epoch: u64) {
        for state in self.all().values_mut() {
            match state {
                State::GivenUp {
                    flow: of,
                    epoch: before,
                    deaf,
                } if of == flow && *before < epoch => drop(deaf.take()),
                _ => {}
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, State>> {
        // Each change is one call: a panic elsewhere left the table whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
