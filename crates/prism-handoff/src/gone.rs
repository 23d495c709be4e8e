//! When is a flow's rule no longer needed? When no packet can leave its socket
//! any more (invariant I6): not at `close`, but when the kernel has destroyed
//! the socket, and for the side that closed first, when TIME_WAIT has ended.
//!
//! The kernel tells of destroyed sockets through sock_diag; what became of a
//! socket (gone, or TIME_WAIT and for how long) is then looked up. No kernel
//! module, no polling, except after the kernel dropped notifications.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::control::{FlowKey, Ops, Owner, Status};
use prism_proto::export::SETTLE_DEADLINE_NS;
use prism_proto::steering::{Command, CommandOutcome};
use prism_sys::diag::{Connection as Tuple, Destroyed, Diag, DiagError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::control::{Control, now_ns};
use crate::counters::Counters;

/// How often sockets are looked at without being told, in case a notification
/// was lost.
const RESCAN: Duration = Duration::from_secs(5);
/// How many times [`SETTLE_DEADLINE_NS`] a release is repeated.
const MAX_RELEASE_ROUNDS: usize = 16;
/// Most flows released at once.
const MAX_RELEASES: usize = 256;

/// Sockets of steered flows that the application has closed.
pub(crate) struct Gone {
    control: Rc<Control>,
    counters: std::sync::Arc<Counters>,
    closing: RefCell<HashMap<Tuple, Closing>>,
    /// When to look at a socket again, earliest first.
    due: RefCell<BTreeMap<(u64, Tuple), ()>>,
    lookup: RefCell<Diag>,
    changed: Notify,
}

#[derive(Clone, Copy)]
struct Closing {
    flow: FlowKey,
    epoch: u64,
    due_ns: u64,
}

impl Gone {
    pub(crate) fn new(
        control: Rc<Control>,
        counters: std::sync::Arc<Counters>,
    ) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            control,
            counters,
            closing: RefCell::default(),
            due: RefCell::default(),
            lookup: RefCell::new(Diag::open().map_err(io::Error::other)?),
            changed: Notify::new(),
        }))
    }

    /// The application has closed the socket `local` of `flow`.
    pub(crate) fn watch(self: &Rc<Self>, local: SocketAddr, flow: FlowKey, epoch: u64) {
        let tuple = Tuple {
            local,
            remote: flow.client,
        };
        let due_ns = now_ns();
        let closing = Closing {
            flow,
            epoch,
            due_ns,
        };
        self.counters.flows_closing.add_one();
        if let Some(old) = self.closing.borrow_mut().insert(tuple, closing) {
            self.counters.flows_closing.sub_one();
            self.due.borrow_mut().remove(&(old.due_ns, tuple));
        }
        self.look(tuple);
        self.changed.notify_one();
    }

    /// The same 4-tuple lives again, by hand-off: it is not to be released.
    pub(crate) fn unwatch(&self, local: SocketAddr, flow: FlowKey) {
        let tuple = Tuple {
            local,
            remote: flow.client,
        };
        if let Some(old) = self.closing.borrow_mut().remove(&tuple) {
            self.counters.flows_closing.sub_one();
            self.due.borrow_mut().remove(&(old.due_ns, tuple));
        }
    }

    /// Looks after closed sockets until dropped.
    pub(crate) async fn run(self: Rc<Self>) -> io::Result<()> {
        let events = Destroyed::subscribe().map_err(io::Error::other)?;
        #[allow(
            deprecated,
            reason = "`Destroyed` owns its descriptor and never replaces it"
        )]
        let mut events = AsyncFd::with_interest(events, Interest::READABLE)?;
        loop {
            let next = self.due.borrow().first_key_value().map(|((at, _), ())| *at);
            let wait = next.map(|at| Duration::from_nanos(at.saturating_sub(now_ns())));
            tokio::select! {
                ready = events.readable_mut() => {
                    let mut ready = ready?;
                    // Before the reads, so that what comes after them wakes us.
                    ready.clear_ready();
                    self.on_events(ready.get_inner_mut());
                }
                () = self.changed.notified() => {}
                () = tokio::time::sleep(wait.unwrap_or(RESCAN)), if wait.is_some() => self.on_due(),
            }
        }
    }

    fn on_events(self: &Rc<Self>, events: &mut Destroyed) {
        loop {
            match events.try_next() {
                Ok(Some(tuple)) => self.look(tuple),
                Ok(None) => return,
                Err(DiagError::Overflow) => {
                    let all: Vec<Tuple> = self.closing.borrow().keys().copied().collect();
                    for tuple in all {
                        self.look(tuple);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read notifications of closed sockets");
                    return;
                }
            }
        }
    }

    fn on_due(self: &Rc<Self>) {
        let now = now_ns();
        for _ in 0..MAX_RELEASES {
            let first = self.due.borrow().first_key_value().map(|(key, ())| *key);
            match first {
                Some((at, tuple)) if at <= now => self.look(tuple),
                _ => return,
            }
        }
    }

    /// Finds out what has become of a socket, and releases its flow or decides
    /// when to look again.
    fn look(self: &Rc<Self>, tuple: Tuple) {
        let Some(closing) = self.closing.borrow().get(&tuple).copied() else {
            return;
        };
        let found = self.lookup.borrow_mut().lookup(&tuple);
        let wait = match found {
            Ok(None) => None,
            Ok(Some(entry)) => Some(
                entry
                    .time_wait
                    .map_or(RESCAN, |left| left + Duration::from_millis(1)),
            ),
            Err(error) => {
                tracing::warn!(%error, "cannot look up a closed socket");
                Some(RESCAN)
            }
        };
        self.due.borrow_mut().remove(&(closing.due_ns, tuple));
        match wait {
            Some(wait) => {
                let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
                let due_ns = now_ns().saturating_add(wait_ns);
                self.due.borrow_mut().insert((due_ns, tuple), ());
                if let Some(entry) = self.closing.borrow_mut().get_mut(&tuple) {
                    entry.due_ns = due_ns;
                }
            }
            None => {
                self.closing.borrow_mut().remove(&tuple);
                self.counters.flows_closing.sub_one();
                tokio::task::spawn_local(release(
                    self.control.clone(),
                    self.counters.clone(),
                    closing.flow,
                    closing.epoch,
                ));
            }
        }
    }
}

async fn release(
    control: Rc<Control>,
    counters: std::sync::Arc<Counters>,
    flow: FlowKey,
    epoch: u64,
) {
    let epoch = epoch.saturating_add(1);
    let command = Command {
        ops: Ops::RELEASE,
        epoch,
        flow,
        owner: Owner::NONE,
    };
    for _ in 0..MAX_RELEASE_ROUNDS {
        match control.call(command, SETTLE_DEADLINE_NS).await {
            CommandOutcome::Unanswered => {}
            // Stale: a new connection has the flow.
            CommandOutcome::Answered(a) if matches!(a.status, Status::Ok | Status::Stale) => {
                counters.flows_released.add_one();
                return;
            }
            CommandOutcome::Answered(_) => break,
        }
    }
    counters.releases_failed.add_one();
    tracing::debug!(client = %flow.client, "flow not released; the switch will age it out");
}
