//! Releases a flow at the switch when no packet can leave its socket any more (invariant I6). The
//! kernel reports destroyed sockets through sock_diag. A look-up then tells whether the socket is
//! gone, or in TIME_WAIT and for how long. All sockets are looked up again if reports were dropped.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::control::{Answer, FlowKey, FlowState, Ops, Owner, Status, Term};
use prism_proto::import::Remains;
use prism_proto::steering::{Command, CommandOutcome};
use prism_sys::clock::monotonic_ns;
use prism_sys::diag::{Connection as Tuple, Destroyed, Diag, DiagError};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyMutGuard};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::control::{Control, Stamp};

/// The interval of look-ups without a report, in case a report was lost.
const RESCAN: Duration = Duration::from_secs(5);
/// The subscription to reports ends after this time without a socket to wait for.
const UNSUBSCRIBE: Duration = Duration::from_millis(100);
/// The deadline of one attempt at a release; the switch then counts as silent.
const RELEASE_DEADLINE_NS: u64 = 1_000_000_000;
/// The number of attempts at a release while the switch answers other commands.
const MAX_RELEASE_ROUNDS: u8 = 16;
/// The largest number of releases under way: commands that a switch which falls silent leaves
/// unanswered.
const MAX_RELEASES: usize = 256;
/// The largest number of waiting releases: 31 MB at some 120 bytes each. The switch ages further
/// flows out.
const MAX_WAITING: usize = 262_144;
/// The number of look-ups without a pause.
const MAX_LOOKS: usize = 256;

/// Sockets of steered flows that the application has closed.
pub(crate) struct ClosedSockets {
    control: Rc<Control>,
    closing: RefCell<HashMap<Tuple, Closing>>,
    /// The times of the next look-ups, the earliest first.
    due: RefCell<BTreeSet<(u64, Tuple)>>,
    lookup: RefCell<Diag>,
    /// The number of sockets that are neither destroyed nor in TIME_WAIT.
    alive: Cell<usize>,
    changed: Notify,
    /// Flows whose sockets are destroyed.
    to_release: RefCell<VecDeque<Release>>,
    released: Notify,
}

#[derive(Clone, Copy)]
struct Closing {
    release: Release,
    due_ns: u64,
    is_alive: bool,
}

#[derive(Clone, Copy)]
struct Release {
    flow: FlowKey,
    /// This worker's record as the owner. It has the address of the socket.
    owner: Owner,
    /// The epoch of the release.
    epoch: u64,
    /// The term in which the switch confirmed the flow; `None` for the present one.
    term: Option<Term>,
    rounds_left: u8,
}

impl ClosedSockets {
    pub(crate) fn new(control: Rc<Control>) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            control,
            closing: RefCell::default(),
            due: RefCell::default(),
            lookup: RefCell::new(Diag::open().map_err(io::Error::other)?),
            alive: Cell::new(0),
            changed: Notify::new(),
            to_release: RefCell::default(),
            released: Notify::new(),
        }))
    }

    /// The application has closed the socket of `flow`, which the switch confirmed as `owner`'s at
    /// `epoch` and in `term`.
    pub(crate) fn watch(&self, owner: Owner, flow: FlowKey, epoch: u64, term: Option<Term>) {
        let local = owner.addr;
        let remote = flow.client;
        let tuple = Tuple { local, remote };
        self.forget(tuple);
        let release = Release {
            flow,
            owner,
            epoch: epoch.saturating_add(1),
            term,
            rounds_left: MAX_RELEASE_ROUNDS,
        };
        self.look_up(tuple, release);
        self.changed.notify_one();
    }

    /// Releases the flow of a hand-off that was given up, if the arbiter has it as this worker's.
    pub(crate) async fn release_remains(&self, remains: Remains) {
        for _ in 0..MAX_RELEASE_ROUNDS {
            if self.control.outages.is_silent() {
                self.control.outages.over().await;
            }
            let asked = self
                .control
                .call(None, remains.query(), RELEASE_DEADLINE_NS);
            let CommandOutcome::Answered(answer) = asked.await else {
                continue;
            };
            if remains.is_left(&answer) && !self.control.flows.has(&remains.flow) {
                self.watch(remains.owner, remains.flow, remains.epoch, None);
            }
            return;
        }
        self.give_up(&remains.flow);
    }

    /// A hand-off has brought a connection with the same addresses and ports, so its flow is not
    /// released.
    pub(crate) fn unwatch(&self, local: SocketAddr, flow: FlowKey) {
        let remote = flow.client;
        self.forget(Tuple { local, remote });
    }

    fn remember(&self, tuple: Tuple, closing: Closing) {
        self.control.counters.flows_closing.add_one();
        let alive = self.alive.get() + usize::from(closing.is_alive);
        self.alive.set(alive);
        self.due.borrow_mut().insert((closing.due_ns, tuple));
        self.closing.borrow_mut().insert(tuple, closing);
    }

    fn forget(&self, tuple: Tuple) -> Option<Closing> {
        let mut watched = self.closing.borrow_mut();
        // A map without entries hashes the key that it is to remove.
        if watched.is_empty() {
            return None;
        }
        let closing = watched.remove(&tuple)?;
        self.control.counters.flows_closing.sub_one();
        let alive = self.alive.get();
        let alive = alive.saturating_sub(usize::from(closing.is_alive));
        self.alive.set(alive);
        self.due.borrow_mut().remove(&(closing.due_ns, tuple));
        Some(closing)
    }

    /// Watches closed sockets until dropped.
    pub(crate) async fn run(&self) -> io::Result<()> {
        let mut events = None;
        loop {
            if self.alive.get() > 0 && events.is_none() {
                events = Some(subscribe()?);
                // Sockets that were destroyed before the subscription.
                self.look_at_all();
            }
            let next = self.due.borrow().first().map(|(at, _)| *at);
            let mut wait = match next {
                Some(at) => Duration::from_nanos(at.saturating_sub(monotonic_ns())),
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

    fn look_at_all(&self) {
        let all: Vec<Tuple> = self.closing.borrow().keys().copied().collect();
        for tuple in all {
            self.look(tuple);
        }
    }

    fn on_events(&self, ready: &mut AsyncFdReadyMutGuard<'_, Destroyed>) {
        // Cleared before the reads, so that a later report wakes this task.
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

    fn on_due(&self) {
        let now = monotonic_ns();
        for _ in 0..MAX_LOOKS {
            let first = self.due.borrow().first().copied();
            match first {
                Some((at, tuple)) if at <= now => self.look(tuple),
                _ => return,
            }
        }
    }

    fn look(&self, tuple: Tuple) {
        if let Some(closing) = self.forget(tuple) {
            self.look_up(tuple, closing.release);
        }
    }

    /// Looks one socket up, and releases its flow or schedules the next look-up.
    fn look_up(&self, tuple: Tuple, release: Release) {
        let found = self.lookup.borrow_mut().lookup(&tuple);
        let (wait, is_alive) = match found {
            Ok(None) => {
                self.wait_for_release(release);
                return self.released.notify_one();
            }
            Ok(Some(entry)) => match entry.time_wait {
                Some(left) => (left + Duration::from_millis(1), false),
                None => (RESCAN, true),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot look up a closed socket; trying again in 5 s");
                (RESCAN, true)
            }
        };
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = monotonic_ns().saturating_add(wait_ns);
        let closing = Closing {
            release,
            due_ns,
            is_alive,
        };
        self.remember(tuple, closing);
    }

    fn wait_for_release(&self, release: Release) {
        let mut waiting = self.to_release.borrow_mut();
        if release.rounds_left == 0 || waiting.len() >= MAX_WAITING {
            return self.give_up(&release.flow);
        }
        self.control.counters.releases_waiting.add_one();
        waiting.push_back(release);
    }

    fn give_up(&self, flow: &FlowKey) {
        self.control.counters.releases_failed.add_one();
        tracing::debug!(client = %flow.client, "flow not released; the switch will age it out");
    }

    /// Releases flows until dropped. While the switch is silent, releases wait and use up no
    /// attempts.
    pub(crate) async fn release_all(&self) {
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < MAX_RELEASES
                && !self.control.outages.is_silent()
                && let Some(release) = self.to_release.borrow_mut().pop_front()
            {
                self.control.counters.releases_waiting.sub_one();
                under_way.spawn_local(ask(self.control.clone(), release));
            }
            tokio::select! {
                Some(ended) = under_way.join_next() => match ended {
                    Ok((release, outcome)) => self.on_asked(release, outcome),
                    Err(error) => {
                        self.control.counters.releases_failed.add_one();
                        tracing::warn!(%error,
                            "the release of a flow has panicked; the switch will age the flow out");
                    }
                },
                () = self.released.notified() => {}
                () = self.control.outages.over(), if self.control.outages.is_silent() => {}
            }
        }
    }

    fn on_asked(&self, release: Release, outcome: CommandOutcome) {
        match outcome {
            CommandOutcome::Unanswered => self.wait_for_release(Release {
                rounds_left: release.rounds_left - 1,
                ..release
            }),
            // `Stale`: the flow belongs to a new connection.
            CommandOutcome::Answered(a) if matches!(a.status, Status::Ok | Status::Stale) => {
                self.on_released(&release);
            }
            CommandOutcome::Answered(a) if self.is_left(&release, &a) => {
                self.wait_for_release(Release {
                    epoch: a.epoch.saturating_add(1),
                    term: None,
                    rounds_left: release.rounds_left - 1,
                    ..release
                });
            }
            // The flow ended with a former term.
            CommandOutcome::Answered(a)
                if a.status == Status::OldTerm && a.state == FlowState::Absent =>
            {
                self.on_released(&release);
            }
            CommandOutcome::Answered(_) => self.give_up(&release.flow),
        }
    }

    fn on_released(&self, release: &Release) {
        self.control.counters.flows_released.add_one();
        self.control
            .flows
            .copies
            .release(release.flow, release.epoch);
    }

    /// Whether the flow is still to be released: this worker has announced it since, or its epoch
    /// is of a former switch's clock. In host mode the sockets of all owners have the same address.
    fn is_left(&self, release: &Release, answer: &Answer) -> bool {
        matches!(answer.status, Status::OldTerm | Status::Ahead)
            && answer.owner == release.owner
            && answer.epoch < release.epoch
            && !self.control.flows.has(&release.flow)
    }
}

async fn ask(control: Rc<Control>, release: Release) -> (Release, CommandOutcome) {
    let command = Command {
        ops: Ops::RELEASE,
        epoch: release.epoch,
        flow: release.flow,
        owner: Owner::NONE,
    };
    let stamp = Stamp::Latest(release.term.unwrap_or_else(|| control.term()));
    let asked = control.call_in(stamp, None, command, RELEASE_DEADLINE_NS);
    (release, asked.await)
}

/// Subscribes to reports of destroyed sockets. The kernel then reports every one, those of
/// hand-offs too, so the subscription lasts only while a socket is waited for.
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

#[cfg(test)]
#[path = "closed_sockets_tests.rs"]
mod tests;
