//! Hand-offs that arrived here while the switch did not answer: whether they were given up, and the
//! deaf sockets of those that were. Sources ask for that on the channel of any worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prism_proto::control::{FlowKey, Pass};
use prism_proto::import::DEAF_NS;
use prism_sys::tcp::Restored;

use prism_common::unguessable;

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
        /// For the source, which may have to take the flow back.
        pass: Option<Pass>,
        /// `None` if it was closed to make room for the connection that came again.
        deaf: Option<Restored>,
    },
}

/// The end of a hand-off.
pub(crate) enum HandOffEnd {
    /// It was given up; with the pass for its source.
    GivenUp(Option<Pass>),
    /// It is not known here.
    Unknown,
}

/// A hand-off that waits for the switch's answer. It is forgotten when this is dropped, unless it
/// was given up.
pub(crate) struct Undecided {
    all: Arc<GivenUp>,
    id: u64,
}

impl GivenUp {
    /// Notes that the hand-off waits for the switch. If two had one `id`, which no source sends,
    /// the first would be known by it.
    pub(crate) fn wait(self: &Arc<Self>, id: u64) -> Undecided {
        let mut all = self.0.lock();
        let id = if all.contains_key(&id) {
            unguessable::number()
        } else {
            id
        };
        all.insert(id, State::Open);
        drop(all);
        let all = self.clone();
        Undecided { all, id }
    }

    /// Whether the socket of such a connection is deaf here.
    pub(crate) fn has(&self, flow: &FlowKey) -> bool {
        let all = self.0.lock();
        let mut given_up = all.values();
        given_up.any(|state| matches!(state, State::GivenUp { flow: of, .. } if of == flow))
    }

    /// The end of the hand-off; `None` while the switch has not answered.
    pub(crate) fn ask(&self, id: u64) -> Option<HandOffEnd> {
        match self.0.lock().get(&id) {
            Some(State::Open) => None,
            Some(State::GivenUp { pass, .. }) => Some(HandOffEnd::GivenUp(*pass)),
            None => Some(HandOffEnd::Unknown),
        }
    }

    /// Closes the deaf sockets of a connection that comes again, with the same addresses and ports,
    /// at `epoch`.
    pub(crate) fn make_room(&self, flow: &FlowKey, epoch: u64) {
        for state in self.0.lock().values_mut() {
            match state {
                State::GivenUp {
                    flow: of,
                    epoch: before,
                    deaf,
                    ..
                } if of == flow && *before < epoch => drop(deaf.take()),
                _ => {}
            }
        }
    }
}

impl Undecided {
    /// Gives the hand-off up, so that its source may go on. The socket stays deaf for as long as
    /// the switch may point the flow here. `at_end` runs when it is closed.
    pub(crate) fn give_up(
        self,
        flow: FlowKey,
        epoch: u64,
        pass: Option<Pass>,
        socket: Option<Restored>,
        at_end: impl Future<Output = ()> + 'static,
    ) {
        {
            let mut all = self.all.0.lock();
            let deaf = socket.filter(|_| all.len() < MAX_DEAF);
            let given_up = State::GivenUp {
                flow,
                epoch,
                pass,
                deaf,
            };
            all.insert(self.id, given_up);
        }
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_nanos(DEAF_NS)).await;
            drop(self);
            at_end.await;
        });
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        let state = self.all.0.lock().remove(&self.id);
        // This closes the socket, without the lock.
        drop(state);
    }
}
