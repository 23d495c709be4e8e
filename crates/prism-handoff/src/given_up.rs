//! Hand-offs that arrived here while the switch did not answer: whether they were given up, and the
//! deaf sockets of those that were. Sources ask for that.
//!
//! Workers of a process share the table: a source asks on any channel, and a connection may come
//! again to another worker.

use std::collections::HashMap;
use std::sync::Mutex;

use prism_proto::control::FlowKey;
use prism_sys::tcp::Restored;

use crate::supervise::locked;

/// The largest number of deaf sockets of a process. Further ones are closed at once, and a packet
/// of their client may draw a reset.
const MAX_DEAF: usize = 16_384;

/// All such hand-offs of a process, by `id`.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Mutex<HashMap<u64, State>>);

#[derive(Debug)]
enum State {
    /// The switch has not answered yet.
    Open,
    /// The source may go on with it.
    GivenUp {
        flow: FlowKey,
        /// The epoch at which this host was to own the flow.
        epoch: u64,
        /// `None` if it was closed to make room for the connection that came again.
        deaf: Option<Restored>,
    },
}

impl GivenUp {
    /// Notes that the hand-off waits for the switch.
    pub(crate) fn open(&self, id: u64) {
        locked(&self.0).insert(id, State::Open);
    }

    /// Forgets the hand-off: it was not given up, or its socket has been deaf for long enough.
    pub(crate) fn forget(&self, id: u64) {
        let state = locked(&self.0).remove(&id);
        // This closes the socket, without the lock.
        drop(state);
    }

    /// Gives the hand-off up, so that its source may go on.
    pub(crate) fn keep(&self, id: u64, flow: FlowKey, epoch: u64, socket: Option<Restored>) {
        let mut all = locked(&self.0);
        let deaf = socket.filter(|_| all.len() < MAX_DEAF);
        let state = State::GivenUp { flow, epoch, deaf };
        all.insert(id, state);
    }

    /// Whether the hand-off was given up; `None` while the switch has not answered.
    pub(crate) fn ask(&self, id: u64) -> Option<bool> {
        match locked(&self.0).get(&id) {
            Some(State::Open) => None,
            Some(State::GivenUp { .. }) => Some(true),
            None => Some(false),
        }
    }

    /// Closes the deaf sockets of a connection that comes again, with the same addresses and ports,
    /// at `epoch`.
    pub(crate) fn make_room(&self, flow: &FlowKey, epoch: u64) {
        for state in locked(&self.0).values_mut() {
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
}
