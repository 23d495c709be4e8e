//! When is a flow's rule no longer needed? When no packet can leave its socket
//! any more (invariant I6): not at `close`, but when the kernel has destroyed
//! the socket, and for the side that closed first, when TIME_WAIT has ended.
//!
//! The kernel tells of destroyed sockets through sock_diag; what became of a
//! socket (gone, or TIME_WAIT and for how long) is then looked up. No kernel
//! module, no polling, except after the kernel dropped notifications.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::control::{FlowKey, Ops, Owner, Status};
use prism_proto::export::SETTLE_DEADLINE_NS;
use prism_proto::steering::{Command, CommandOutcome};
use prism_sys::diag::{Connection as Tuple, Destroyed, Diag, DiagError};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyMutGuard};
use tokio::sync::Notify;

use crate::control::{Control, now_ns};
use crate::counters::Counters;

/// How often sockets are looked at without being told, in case a notification
/// was lost.
const RESCAN: Duration = Duration::from_secs(5);
/// How long the kernel goes on telling after nothing is waited for.
const UNSUBSCRIBE: Duration = Duration::from_millis(100);
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
    due: RefCell<BTreeSet<(u64, Tuple)>>,
    lookup: RefCell<Diag>,
    /// Sockets that are neither gone nor in TIME_WAIT.
    alive: Cell<usize>,
    changed: Notify,
}

#[derive(Clone, Copy)]
struct Closing {
    flow: FlowKey,
    epoch: u64,
    due_ns: u64,
    is_alive: bool,
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
            alive: Cell::new(0),
            changed: Notify::new(),
        }))
    }

    /// The application has closed the socket `local` of `flow`.
    pub(crate) fn watch(self: &Rc<Self>, local: SocketAddr, flow: FlowKey, epoch: u64) {
        let tuple = Tuple {
            local,
            remote: flow.client,
        };
        self.forget(tuple);
        self.remember(
            tuple,
            Closing {
                flow,
                epoch,
                due_ns: now_ns(),
                is_alive: true,
            },
        );
        self.look(tuple);
        self.changed.notify_one();
    }

    /// The same 4-tuple lives again, by hand-off: it is not to be released.
    pub(crate) fn unwatch(&self, local: SocketAddr, flow: FlowKey) {
        self.forget(Tuple {
            local,
            remote: flow.client,
        });
    }

    fn remember(&self, tuple: Tuple, closing: Closing) {
        self.counters.flows_closing.add_one();
        self.alive
            .set(self.alive.get() + usize::from(closing.is_alive));
        self.due.borrow_mut().insert((closing.due_ns, tuple));
        self.closing.borrow_mut().insert(tuple, closing);
    }

    fn forget(&self, tuple: Tuple) -> Option<Closing> {
        let closing = self.closing.borrow_mut().remove(&tuple)?;
        self.counters.flows_closing.sub_one();
        self.alive.set(
            self.alive
                .get()
                .saturating_sub(usize::from(closing.is_alive)),
        );
        self.due.borrow_mut().remove(&(closing.due_ns, tuple));
        Some(closing)
    }

    /// Looks after closed sockets until dropped.
    pub(crate) async fn run(self: Rc<Self>) -> io::Result<()> {
        let mut events = None;
        loop {
            if self.alive.get() > 0 && events.is_none() {
                events = Some(subscribe()?);
                // What was destroyed before.
                self.look_at_all();
            }
            let next = self.due.borrow().first().map(|(at, _)| *at);
            let mut wait = match next {
                Some(at) => Duration::from_nanos(at.saturating_sub(now_ns())),
                None => RESCAN,
            };
            if events.is_some() && self.alive.get() == 0 {
                wait = wait.min(UNSUBSCRIBE);
            }
            tokio::select! {
                told = next_events(&mut events) => self.on_events(&mut told?),
                () = self.changed.notified() => {}
                () = tokio::time::sleep(wait) => {
                    self.on_due();
                    if self.alive.get() == 0 {
                        events = None;
                    }
                }
            }
        }
    }

    fn look_at_all(self: &Rc<Self>) {
        let all: Vec<Tuple> = self.closing.borrow().keys().copied().collect();
        for tuple in all {
            self.look(tuple);
        }
    }

    fn on_events(self: &Rc<Self>, ready: &mut AsyncFdReadyMutGuard<'_, Destroyed>) {
        // Before the reads, so that what comes after them wakes us.
        ready.clear_ready();
        let events = ready.get_inner_mut();
        loop {
            match events.try_next() {
                Ok(Some(tuple)) => self.look(tuple),
                Ok(None) => return,
                Err(DiagError::Overflow) => self.look_at_all(),
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
            let first = self.due.borrow().first().copied();
            match first {
                Some((at, tuple)) if at <= now => self.look(tuple),
                _ => return,
            }
        }
    }

    /// Finds out what has become of a socket, and releases its flow or decides
    /// when to look again.
    fn look(self: &Rc<Self>, tuple: Tuple) {
        let Some(closing) = self.forget(tuple) else {
            return;
        };
        let found = self.lookup.borrow_mut().lookup(&tuple);
        let (wait, is_alive) = match found {
            Ok(None) => return self.release(closing),
            Ok(Some(entry)) => match entry.time_wait {
                Some(left) => (left + Duration::from_millis(1), false),
                None => (RESCAN, true),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot look up a closed socket");
                (RESCAN, true)
            }
        };
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = now_ns().saturating_add(wait_ns);
        self.remember(
            tuple,
            Closing {
                due_ns,
                is_alive,
                ..closing
            },
        );
    }

    fn release(&self, closing: Closing) {
        let (control, counters) = (self.control.clone(), self.counters.clone());
        tokio::task::spawn_local(release(control, counters, closing.flow, closing.epoch));
    }
}

/// Asks the kernel to tell of destroyed sockets. It then tells of every one, those
/// of hand-offs too, so it is asked only while something is waited for.
fn subscribe() -> io::Result<AsyncFd<Destroyed>> {
    let events = Destroyed::subscribe().map_err(io::Error::other)?;
    #[allow(
        deprecated,
        reason = "`Destroyed` owns its descriptor and never replaces it"
    )]
    AsyncFd::with_interest(events, Interest::READABLE)
}

async fn next_events(
    events: &mut Option<AsyncFd<Destroyed>>,
) -> io::Result<AsyncFdReadyMutGuard<'_, Destroyed>> {
    match events {
        Some(events) => events.readable_mut().await,
        None => std::future::pending().await,
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
