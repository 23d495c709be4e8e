//! The control client: commands to the switch over one UDP socket for each worker. On a short path
//! the answer is there when `send` returns, so each command looks for it before it waits.
//! `prism_proto::steering` decides what is sent and when.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use prism_proto::control::{FlowKey, MESSAGE_BYTES, Ops, Owner, Pass, Term};
use prism_proto::health::Health;
use prism_proto::lease::TermNotice;
use prism_proto::steering::{Command, CommandId, CommandOutcome, Steering};
use prism_sys::clock::monotonic_ns;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, Semaphore};

use crate::counters::Counters;
use crate::flows::Flows;
use crate::identity::WorkerIdentity;
use crate::outages::Outages;
use crate::process::Process;
use crate::signing::{self, SigningKey};

/// The largest number of commands under way. At 6 µs for a round trip one worker cannot use as
/// many. Further ones wait.
const MAX_PENDING: usize = 4096;
/// The number of socket errors that one look passes over.
const MAX_ERRORS: u32 = 16;
/// The interval of clock queries before the first answer.
const FIRST_CLOCK: Duration = Duration::from_millis(20);
/// The interval of clock queries to a silent switch. Another one may take over, and waits for what
/// this worker announces.
const SILENT_CLOCK: Duration = Duration::from_millis(100);
/// The interval of clock queries. A worker that commands nothing has to notice that the switch is
/// away before another one has taken over.
const CLOCK_REFRESH: Duration = Duration::from_millis(500);
/// Deadline of a clock query.
const CLOCK_DEADLINE_NS: u64 = 250_000_000;

/// One worker's client of the switch.
pub(crate) struct Control {
    /// This worker, whose run its commands and its lease name.
    pub(crate) identity: WorkerIdentity,
    /// The socket itself. An answer is often there before the reactor knows, and `try_recv` of a
    /// tokio socket would not look.
    direct: std::net::UdpSocket,
    /// The same socket, to wait on.
    socket: UdpSocket,
    steering: RefCell<Steering>,
    waiting: RefCell<HashMap<CommandId, Waiting>>,
    /// A permit for each command under way.
    room: Semaphore,
    /// The task that repeats datagrams has a new deadline.
    rearm: Notify,
    /// The flows of this worker.
    pub(crate) flows: Flows,
    pub(crate) outages: Outages,
    pub(crate) counters: Arc<Counters>,
    /// The peers' health. The way to them may be away together with the switch.
    health: Arc<Mutex<Health>>,
}

/// The term that a command is sent with.
#[derive(Clone, Copy)]
pub(crate) enum Stamp {
    /// This one, until a later one has confirmed the flow.
    Latest(Term),
    /// This one alone.
    Bound(Term),
}

enum Waiting {
    Wakes(Waker),
    Ended(CommandOutcome),
}

/// The query of the switch's clock, which changes nothing.
pub(crate) fn clock_query() -> Command {
    let zero = Owner::NONE.addr;
    Command {
        ops: Ops::QUERY,
        epoch: 0,
        flow: FlowKey {
            client: zero,
            vip: zero,
        },
        owner: Owner::NONE,
    }
}

impl Control {
    /// Opens the socket. Spawn [`Self::run`] beside it.
    pub(crate) fn open(identity: WorkerIdentity, process: &Process) -> io::Result<Rc<Self>> {
        let direct = std::net::UdpSocket::bind((identity.node, 0))?;
        direct.connect(identity.switch.control)?;
        direct.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(direct.try_clone()?)?;
        let counters = process.counters.clone();
        let hosts = identity.switch.hosts.len();
        Ok(Rc::new(Self {
            direct,
            socket,
            steering: RefCell::new(identity.steering()),
            identity,
            waiting: RefCell::default(),
            room: Semaphore::new(MAX_PENDING),
            rearm: Notify::new(),
            flows: Flows::new(hosts, counters.clone(), process.held_flows.clone()),
            outages: Outages::default(),
            counters,
            health: process.health.clone(),
        }))
    }

    /// Whether the switch counts as in reach.
    pub(crate) fn is_reachable(&self) -> bool {
        self.outages.is_reachable(monotonic_ns())
    }

    /// Whether the switch is in reach and knows all flows, so that it decides.
    pub(crate) fn decides(&self) -> bool {
        self.is_reachable() && !self.flows.are_unknown()
    }

    /// The greatest term of the switch that this worker has heard of.
    pub(crate) fn term(&self) -> Term {
        self.steering.borrow().term()
    }

    /// Handles the agent's news of its term. False: the agent is to hear of a greater one.
    pub(crate) fn on_notice(&self, notice: TermNotice) -> bool {
        if notice.term < self.term() {
            return false;
        }
        self.steering.borrow_mut().observe_term(notice.term);
        self.flows.on_notice(notice);
        true
    }

    /// Holds the flow if this is the confirmation that it is `here`, and returns its epoch.
    pub(crate) fn note(&self, outcome: CommandOutcome, here: Owner) -> Option<u64> {
        self.flows.note(outcome, self.term(), here)
    }

    /// Holds a flow that no other host can have, though the switch has not confirmed it.
    pub(crate) fn hold(&self, flow: FlowKey, here: Owner, epoch: u64) {
        self.flows.hold(flow, here, epoch, self.term());
    }

    /// The switch has confirmed the flow in `term`.
    pub(crate) fn restamp(&self, flow: &FlowKey, epoch: u64, term: Term) {
        self.steering.borrow_mut().restamp(flow, epoch, term);
    }

    /// All flows of this worker are announced in `term`.
    pub(crate) fn settle(&self, term: Term) {
        self.steering.borrow_mut().settle(term);
        self.deliver();
    }

    /// Has [`Self::refresh_clock`] ask for the clock at once.
    pub(crate) fn ask_clock(&self) {
        self.outages.begun.notify_one();
    }

    /// The estimate of the switch's clock, once there is one.
    pub(crate) fn switch_clock_ns(&self) -> Option<u64> {
        self.steering.borrow().switch_clock_ns(monotonic_ns())
    }

    /// The estimate of the switch's clock at the time `at_ns` of this host's clock.
    pub(crate) fn switch_clock_at(&self, at_ns: u64) -> Option<u64> {
        self.steering.borrow().switch_clock_ns(at_ns)
    }

    /// Adds the new counts to the process's counters.
    fn count(&self) {
        let new = std::mem::take(&mut self.steering.borrow_mut().counters);
        let counters = &self.counters;
        counters.control_commands.add(new.commands);
        counters.control_retransmissions.add(new.retransmissions);
        counters.control_unanswered.add(new.unanswered);
        counters.control_refused.add(new.refused_datagrams);
    }

    /// Sends a command, with the pass of the flow's owner if there is one, and waits for its end.
    /// If too many are under way, it waits for others to end first. Dropping the future forgets
    /// the command, which the switch may apply nevertheless.
    pub(crate) async fn call(
        &self,
        pass: Option<Pass>,
        command: Command,
        deadline_ns: u64,
    ) -> CommandOutcome {
        let stamp = Stamp::Latest(self.term_of(&command.flow));
        self.call_in(stamp, pass, command, deadline_ns).await
    }

    /// The term in which the switch has confirmed the flow; the present one if it has not.
    pub(crate) fn term_of(&self, flow: &FlowKey) -> Term {
        self.flows.term_of(flow).unwrap_or_else(|| self.term())
    }

    /// Signs with the node's present key, until dropped.
    pub(crate) async fn follow_key(&self) {
        let mut keys = self.identity.switch.key.clone();
        keys.mark_changed();
        loop {
            signing::changed(&mut keys).await;
            let SigningKey { key_id, key, .. } = keys.borrow_and_update().clone();
            self.steering.borrow_mut().set_key(key_id, key);
        }
    }

    /// [`Self::call`] in the term of `stamp`.
    pub(crate) async fn call_in(
        &self,
        stamp: Stamp,
        pass: Option<Pass>,
        command: Command,
        deadline_ns: u64,
    ) -> CommandOutcome {
        let mut now = monotonic_ns();
        let until_ns = now.saturating_add(deadline_ns);
        let _room = match self.room.try_acquire() {
            Ok(room) => room,
            Err(_) => {
                let deadline = Duration::from_nanos(deadline_ns);
                let room = tokio::time::timeout(deadline, self.room.acquire()).await;
                let Ok(Ok(room)) = room else {
                    self.note_reachability(CommandOutcome::Unanswered);
                    return CommandOutcome::Unanswered;
                };
                now = monotonic_ns();
                room
            }
        };
        let (Stamp::Latest(term) | Stamp::Bound(term)) = stamp;
        let id = (self.steering.borrow_mut()).start_in(term, command, now, until_ns);
        if matches!(stamp, Stamp::Bound(_)) {
            self.steering.borrow_mut().bind(id);
        }
        if let Some(pass) = pass {
            self.steering.borrow_mut().attach(id, pass);
        }
        let sent = Waiting::Wakes(Waker::noop().clone());
        self.waiting.borrow_mut().insert(id, sent);
        let entry = PendingCommand { control: self, id };
        self.transmit(now);
        self.receive();
        let outcome = match entry.poll(Waker::noop()) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                self.rearm.notify_one();
                poll_fn(|cx| entry.poll(cx.waker())).await
            }
        };
        self.note_reachability(outcome);
        self.count();
        outcome
    }

    fn note_reachability(&self, outcome: CommandOutcome) {
        match outcome {
            CommandOutcome::Answered(_) => {
                if self.outages.on_answer(monotonic_ns()) {
                    // The way to the peers may have been away with the switch.
                    self.health.lock().test_suspects();
                }
            }
            CommandOutcome::Unanswered => self.outages.on_silence(monotonic_ns()),
        }
    }

    /// Receives, repeats and expires until dropped.
    pub(crate) async fn run(&self) {
        loop {
            let next = self.steering.borrow().next_timeout_ns();
            let wait_ns = next.map(|at| at.saturating_sub(monotonic_ns()));
            let timer = tokio::time::sleep(Duration::from_nanos(wait_ns.unwrap_or(0)));
            tokio::select! {
                readable = self.socket.readable() => {
                    if readable.is_ok() {
                        self.receive();
                        self.clear_readiness();
                    }
                }
                () = self.rearm.notified() => {}
                () = timer, if wait_ns.is_some() => {
                    let now = monotonic_ns();
                    self.steering.borrow_mut().handle_timeout(now);
                    self.deliver();
                    self.transmit(now);
                }
            }
        }
    }

    /// Queries the clock until dropped, and so finds out when a silent switch answers again.
    pub(crate) async fn refresh_clock(&self) {
        let mut is_known = self.switch_clock_ns().is_some();
        loop {
            let outcome = self.call(None, clock_query(), CLOCK_DEADLINE_NS).await;
            if !is_known && self.switch_clock_ns().is_some() {
                is_known = true;
                self.counters.workers_steering.add_one();
            }
            let wait = match outcome {
                CommandOutcome::Answered(_) => CLOCK_REFRESH,
                // No connection can be handed off before the first answer.
                CommandOutcome::Unanswered if self.switch_clock_ns().is_none() => FIRST_CLOCK,
                CommandOutcome::Unanswered => SILENT_CLOCK,
            };
            let was_answered = matches!(outcome, CommandOutcome::Answered(_));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.outages.begun.notified(), if was_answered => {}
            }
        }
    }

    /// Sends the datagrams that are due. One that the socket does not take now is repeated like a
    /// lost one.
    fn transmit(&self, now_ns: u64) {
        let mut steering = self.steering.borrow_mut();
        while let Some(datagram) = steering.poll_transmit(now_ns) {
            if let Err(error) = self.direct.send(&datagram) {
                tracing::debug!(%error, "control datagram not sent");
            }
        }
    }

    /// Reads the remaining datagrams until the reactor knows that the socket is empty.
    fn clear_readiness(&self) {
        let mut buffer = [0; MESSAGE_BYTES + 1];
        while let Ok(len) = self.socket.try_recv(&mut buffer) {
            self.handle_datagram(buffer.get(..len).unwrap_or_default());
        }
        self.deliver();
        self.count();
    }

    /// Handles the answers that have arrived for commands under way.
    fn receive(&self) {
        let mut buffer = [0; MESSAGE_BYTES + 1];
        let mut errors = 0;
        // Late answers to no command can wait until the socket is read anyway.
        while !self.steering.borrow().is_idle() {
            match self.direct.recv(&mut buffer) {
                Ok(len) => self.handle_datagram(buffer.get(..len).unwrap_or_default()),
                // `ECONNREFUSED` and the like are about an earlier datagram.
                Err(e) if e.kind() != io::ErrorKind::WouldBlock && errors < MAX_ERRORS => {
                    errors += 1;
                }
                Err(_) => break,
            }
        }
        self.deliver();
        // A correction of the clock makes repetitions due at once.
        if self.steering.borrow().has_ready() {
            self.transmit(monotonic_ns());
        }
    }

    fn handle_datagram(&self, datagram: &[u8]) {
        let mut steering = self.steering.borrow_mut();
        if let Err(error) = steering.handle_datagram(datagram, monotonic_ns()) {
            tracing::debug!(%error, "control datagram refused");
        }
        self.flows.hear_of(steering.term());
    }

    fn deliver(&self) {
        let mut waiting = self.waiting.borrow_mut();
        let mut steering = self.steering.borrow_mut();
        while let Some((id, outcome)) = steering.poll_finished() {
            if let Some(slot) = waiting.get_mut(&id)
                && let Waiting::Wakes(waker) = std::mem::replace(slot, Waiting::Ended(outcome))
            {
                waker.wake();
            }
        }
    }
}

/// A command that a task waits for; it is forgotten when dropped.
struct PendingCommand<'c> {
    control: &'c Control,
    id: CommandId,
}

impl PendingCommand<'_> {
    /// The outcome. Until there is one, its arrival wakes `waker`.
    fn poll(&self, waker: &Waker) -> Poll<CommandOutcome> {
        let mut waiting = self.control.waiting.borrow_mut();
        if let Some(Waiting::Ended(outcome)) = waiting.get(&self.id) {
            return Poll::Ready(*outcome);
        }
        waiting.insert(self.id, Waiting::Wakes(waker.clone()));
        Poll::Pending
    }
}

impl Drop for PendingCommand<'_> {
    fn drop(&mut self) {
        self.control.waiting.borrow_mut().remove(&self.id);
        self.control.steering.borrow_mut().forget(self.id);
    }
}
