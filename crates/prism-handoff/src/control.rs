//! The control client: commands to the switch over one UDP socket for each worker. On a short path
//! the answer is there when `send` returns, so each command looks for it before it waits.
//! `prism_proto::steering` decides what is sent and when.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use prism_proto::control::{FlowKey, MESSAGE_BYTES, Ops, Owner, Pass, Passage, RunId, Term};
use prism_proto::steering::{Command, CommandId, CommandOutcome, Steering};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, Semaphore};

use crate::copies::Copies;
use crate::counters::Counters;
use crate::endpoint::{Process, of_family};
use crate::flows::Flows;
use crate::lease::{Holder, Taking};
use crate::outages::Outages;
use crate::signing::{self, SigningKey, SwitchAddress};

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
    pub(crate) holder: Holder,
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
    /// Whether this worker takes new clients; its lease announces that.
    pub(crate) taking: Taking,
    /// The flows of this worker.
    pub(crate) flows: Flows,
    /// The copies of these flows, for each host of a pair.
    pub(crate) copies: Copies,
    pub(crate) outages: Outages,
    pub(crate) counters: Arc<Counters>,
    pub(crate) process: Arc<Process>,
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

/// The time of `CLOCK_MONOTONIC`, which all processes of a host share.
pub(crate) fn now_ns() -> u64 {
    prism_sys::clock::monotonic_ns()
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
    /// Opens the socket, at that of the node's `addresses` that is of the switch's family. Spawn
    /// [`Self::run`] beside it.
    pub(crate) fn open(
        addresses: &[IpAddr],
        placement: u64,
        switch: &SwitchAddress,
        process: Arc<Process>,
    ) -> io::Result<Rc<Self>> {
        let node = of_family(addresses, switch.control.ip()).ok_or_else(|| {
            let control = switch.control;
            io::Error::other(format!(
                "this node has no address of the family of {control}"
            ))
        })?;
        let direct = std::net::UdpSocket::bind((node, 0))?;
        direct.connect(switch.control)?;
        direct.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(direct.try_clone()?)?;
        let run = RunId(fastrand::u16(1..));
        let SigningKey { key_id, key, .. } = switch.signing_key();
        let steering = Steering::new(key_id, key, fastrand::u64(..)).of_run(run);
        Ok(Rc::new(Self {
            holder: Holder {
                switch: switch.clone(),
                node,
                run,
                placement,
            },
            direct,
            socket,
            steering: RefCell::new(steering),
            waiting: RefCell::default(),
            room: Semaphore::new(MAX_PENDING),
            rearm: Notify::new(),
            taking: Taking::default(),
            flows: Flows::default(),
            copies: Copies::new(switch.hosts.len()),
            outages: Outages::default(),
            counters: process.counters.clone(),
            process,
        }))
    }

    /// Whether the switch counts as in reach.
    pub(crate) fn is_reachable(&self) -> bool {
        self.outages.is_reachable(now_ns())
    }

    /// Whether the switch is in reach and knows all flows, so that it decides.
    pub(crate) fn decides(&self) -> bool {
        self.is_reachable() && !self.flows.are_unknown()
    }

    /// The greatest term of the switch that this worker has heard of.
    pub(crate) fn term(&self) -> Term {
        self.steering.borrow().term()
    }

    /// Notes a term that the agent has told.
    pub(crate) fn observe_term(&self, term: Term) {
        self.steering.borrow_mut().observe_term(term);
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
        self.steering.borrow().switch_clock_ns(now_ns())
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

    /// Sends a command and waits for its end. If too many are under way, it waits for others to end
    /// first. Dropping the future forgets the command, which the switch may apply nevertheless.
    pub(crate) async fn call(&self, command: Command, deadline_ns: u64) -> CommandOutcome {
        self.call_with(None, command, deadline_ns).await
    }

    /// [`Self::call`] with the pass of the flow's owner, if there is one.
    pub(crate) async fn call_with(
        &self,
        pass: Option<Pass>,
        command: Command,
        deadline_ns: u64,
    ) -> CommandOutcome {
        let stamp = Stamp::Latest(self.term_of(&command.flow));
        self.call_in_with(stamp, pass, command, deadline_ns).await
    }

    /// The term in which the switch has confirmed the flow; the present one if it has not.
    pub(crate) fn term_of(&self, flow: &FlowKey) -> Term {
        self.flows.term_of(flow).unwrap_or_else(|| self.term())
    }

    /// [`Self::call`] for a flow that the switch has confirmed in the term `stamp`.
    pub(crate) async fn call_in(
        &self,
        stamp: Term,
        command: Command,
        deadline_ns: u64,
    ) -> CommandOutcome {
        let stamp = Stamp::Latest(stamp);
        self.call_in_with(stamp, None, command, deadline_ns).await
    }

    /// This node's word that another one may take a flow from it.
    pub(crate) fn pass(&self, to: &Passage) -> Option<Pass> {
        self.holder.switch.key.borrow().pass(to)
    }

    /// For a hand-off without a pass; `None` if all nodes share the key.
    pub(crate) fn void_pass(&self) -> Option<Pass> {
        self.holder.switch.key.borrow().is_own.then_some(Pass::VOID)
    }

    /// This node's word that a pass which it has got is for another node.
    pub(crate) fn onward(&self, pass: Pass, to: &Passage) -> Option<Pass> {
        self.holder.switch.key.borrow().onward(pass, to)
    }

    /// Signs with the node's present key, until dropped.
    pub(crate) async fn follow_key(&self) {
        let mut keys = self.holder.switch.key.clone();
        keys.mark_changed();
        loop {
            signing::changed(&mut keys).await;
            let SigningKey { key_id, key, .. } = keys.borrow_and_update().clone();
            self.steering.borrow_mut().set_key(key_id, key);
        }
    }

    /// [`Self::call`] with a stamp and a pass.
    pub(crate) async fn call_in_with(
        &self,
        stamp: Stamp,
        pass: Option<Pass>,
        command: Command,
        deadline_ns: u64,
    ) -> CommandOutcome {
        let mut now = now_ns();
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
                now = now_ns();
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
                if self.outages.on_answer(now_ns()) {
                    // The way to the peers may have been away with the switch.
                    self.process.health.test_suspects();
                }
            }
            CommandOutcome::Unanswered => self.outages.on_silence(now_ns()),
        }
    }

    /// Receives, repeats and expires until dropped.
    pub(crate) async fn run(&self) {
        loop {
            let next = self.steering.borrow().next_timeout_ns();
            let wait_ns = next.map(|at| at.saturating_sub(now_ns()));
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
                    let now = now_ns();
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
            let outcome = self.call(clock_query(), CLOCK_DEADLINE_NS).await;
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
            self.transmit(now_ns());
        }
    }

    fn handle_datagram(&self, datagram: &[u8]) {
        let mut steering = self.steering.borrow_mut();
        if let Err(error) = steering.handle_datagram(datagram, now_ns()) {
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
