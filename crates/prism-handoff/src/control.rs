//! The control client: commands to the switch over one UDP socket per worker.
//!
//! The switch answers from its data plane, so on a short path the answer is
//! there when `send` returns: each command looks for it at once before it waits.
//! What to send and when is `prism_proto::steering`'s.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use prism_proto::control::{ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, RunId};
use prism_proto::steering::{Command, CommandId, CommandOutcome, Steering, SteeringCounters};
use tokio::net::UdpSocket;
use tokio::sync::Notify;

use crate::counters::Counters;

/// After an unanswered command, for how long the switch counts as out of reach,
/// so that requests are relayed without a try.
const HOLD_OFF: Duration = Duration::from_millis(500);
/// Most errors of the socket that one look passes over.
const MAX_ERRORS: u32 = 16;
/// How soon a node that starts asks again for the switch's clock.
const FIRST_CLOCK: Duration = Duration::from_millis(20);
/// How often the clock estimate is refreshed. A crystal drifts some 100 ppm, so
/// 1 ms in this time; the switch accepts 2 s.
const CLOCK_REFRESH: Duration = Duration::from_secs(10);
/// Deadline of a clock query.
const CLOCK_DEADLINE_NS: u64 = 250_000_000;

/// Where the switch is, and under which key to speak to it.
#[derive(Clone, Debug)]
pub struct SwitchAddress {
    /// Its control address.
    pub control: SocketAddr,
    /// Identifier of the key.
    pub key_id: u32,
    /// The key.
    pub key: ControlKey,
}

impl SwitchAddress {
    /// A switch that answers at `control`, to the key `key_id`.
    pub fn new(control: SocketAddr, key_id: u32, key: [u8; 16]) -> Self {
        Self {
            control,
            key_id,
            key: ControlKey::new(key),
        }
    }
}

/// One worker's way to the switch.
pub(crate) struct Control {
    switch: SwitchAddress,
    /// This node's address.
    node: IpAddr,
    /// What this worker's flows are known by.
    run: RunId,
    /// The socket itself. An answer is often there before tokio has heard of
    /// it, and `try_recv` of a tokio socket would not look.
    direct: std::net::UdpSocket,
    /// The same socket, to wait on.
    socket: UdpSocket,
    steering: RefCell<Steering>,
    waiting: RefCell<HashMap<CommandId, Waiting>>,
    /// The task that repeats datagrams has something new to wait for.
    rearm: Notify,
    down_until_ns: Cell<u64>,
    counters: Arc<Counters>,
    counted: Cell<SteeringCounters>,
}

enum Waiting {
    Not,
    Wakes(Waker),
    Ended(CommandOutcome),
}

/// `CLOCK_MONOTONIC`, which all processes of a host share.
pub(crate) fn now_ns() -> u64 {
    prism_sys::clock::monotonic_ns()
}

impl Control {
    /// Opens the socket. Spawn [`Self::run`] beside it.
    pub(crate) fn open(
        from: IpAddr,
        switch: &SwitchAddress,
        counters: Arc<Counters>,
    ) -> io::Result<Rc<Self>> {
        let direct = std::net::UdpSocket::bind((from, 0))?;
        direct.connect(switch.control)?;
        direct.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(direct.try_clone()?)?;
        let run = RunId(fastrand::u16(1..));
        let steering =
            Steering::new(switch.key_id, switch.key.clone(), fastrand::u64(..)).of_run(run);
        Ok(Rc::new(Self {
            switch: switch.clone(),
            node: from,
            run,
            direct,
            socket,
            steering: RefCell::new(steering),
            waiting: RefCell::default(),
            rearm: Notify::new(),
            down_until_ns: Cell::new(0),
            counters,
            counted: Cell::default(),
        }))
    }

    /// The switch has answered lately, or nothing speaks against it.
    pub(crate) fn is_reachable(&self) -> bool {
        now_ns() >= self.down_until_ns.get()
    }

    /// The estimate of the switch's clock, once there is one.
    pub(crate) fn switch_clock_ns(&self) -> Option<u64> {
        self.steering.borrow().switch_clock_ns(now_ns())
    }

    /// Brings the process's counters up to date.
    fn count(&self) {
        let now = self.steering.borrow().counters;
        let before = self.counted.replace(now);
        let counters = &self.counters;
        counters
            .control_commands
            .add(now.commands - before.commands);
        counters
            .control_retransmissions
            .add(now.retransmissions - before.retransmissions);
        counters
            .control_unanswered
            .add(now.unanswered - before.unanswered);
        counters
            .control_refused
            .add(now.refused_datagrams - before.refused_datagrams);
    }

    /// Sends a command and waits for its end. Dropping the future forgets the
    /// command, applied or not.
    pub(crate) async fn call(&self, command: Command, deadline_ns: u64) -> CommandOutcome {
        let now = now_ns();
        let started =
            self.steering
                .borrow_mut()
                .start(command, now, now.saturating_add(deadline_ns));
        let Ok(id) = started else {
            return CommandOutcome::Unanswered;
        };
        self.waiting.borrow_mut().insert(id, Waiting::Not);
        let entry = Entry { control: self, id };
        self.transmit();
        self.receive();
        let outcome = match entry.take() {
            Some(outcome) => outcome,
            None => {
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
            CommandOutcome::Answered(_) => self.down_until_ns.set(0),
            CommandOutcome::Unanswered => {
                let hold_off_ns = u64::try_from(HOLD_OFF.as_nanos()).unwrap_or(u64::MAX);
                self.down_until_ns.set(now_ns().saturating_add(hold_off_ns));
            }
        }
    }

    /// Receives, repeats and expires until dropped.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            let next = self.steering.borrow().next_timeout_ns();
            let wait_ns = next.map(|at| at.saturating_sub(now_ns()));
            let timer = async {
                match wait_ns {
                    Some(ns) => tokio::time::sleep(Duration::from_nanos(ns)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                readable = self.socket.readable() => {
                    if readable.is_ok() {
                        self.receive();
                        self.clear_readiness();
                    }
                }
                () = self.rearm.notified() => {}
                () = timer => {
                    self.steering.borrow_mut().handle_timeout(now_ns());
                    self.deliver();
                    self.transmit();
                }
            }
        }
    }

    /// Keeps the clock estimate fresh, and a lease, until dropped.
    pub(crate) async fn keep_clock(self: Rc<Self>) {
        let leased = &self.counters.workers_leased;
        let lease = crate::lease::keep(&self.switch, self.node, self.run, leased);
        tokio::join!(self.refresh_clock(), lease);
    }

    async fn refresh_clock(&self) {
        let mut is_known = false;
        loop {
            let zero = Owner::NONE.addr;
            let flow = FlowKey {
                client: zero,
                vip: zero,
            };
            let command = Command {
                ops: Ops::QUERY,
                epoch: 0,
                flow,
                owner: Owner::NONE,
            };
            let outcome = self.call(command, CLOCK_DEADLINE_NS).await;
            if !is_known && self.switch_clock_ns().is_some() {
                is_known = true;
                self.counters.workers_steering.add_one();
            }
            let wait = match outcome {
                CommandOutcome::Answered(_) => CLOCK_REFRESH,
                // Nothing can be handed off before the first answer.
                CommandOutcome::Unanswered if self.switch_clock_ns().is_none() => FIRST_CLOCK,
                CommandOutcome::Unanswered => HOLD_OFF,
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends all that is due. What the socket does not take now is repeated
    /// later like a lost datagram.
    fn transmit(&self) {
        let mut steering = self.steering.borrow_mut();
        while let Some(datagram) = steering.poll_transmit(now_ns()) {
            if let Err(error) = self.direct.send(&datagram) {
                tracing::debug!(%error, "control datagram not sent");
            }
        }
    }

    /// Reads what is left, which nobody waits for, until tokio knows that there is
    /// nothing.
    fn clear_readiness(&self) {
        let mut buffer = [0; MESSAGE_BYTES + 1];
        while let Ok(len) = self.socket.try_recv(&mut buffer) {
            self.take(buffer.get(..len).unwrap_or_default());
        }
        self.deliver();
        self.count();
    }

    /// Takes what has arrived for commands under way.
    fn receive(&self) {
        let mut buffer = [0; MESSAGE_BYTES + 1];
        let mut errors = 0;
        // What nobody waits for can wait until the socket is looked at anyway.
        while !self.steering.borrow().is_idle() {
            match self.direct.recv(&mut buffer) {
                Ok(len) => self.take(buffer.get(..len).unwrap_or_default()),
                // ECONNREFUSED and the like tell of an earlier datagram.
                Err(e) if e.kind() != io::ErrorKind::WouldBlock && errors < MAX_ERRORS => {
                    errors += 1;
                }
                Err(_) => break,
            }
        }
        self.deliver();
        // A corrected clock makes repetitions due at once.
        self.transmit();
    }

    fn take(&self, datagram: &[u8]) {
        let result = self
            .steering
            .borrow_mut()
            .handle_datagram(datagram, now_ns());
        if let Err(error) = result {
            tracing::debug!(%error, "control datagram refused");
        }
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

/// A command that somebody waits for; forgotten when dropped.
struct Entry<'c> {
    control: &'c Control,
    id: CommandId,
}

impl Entry<'_> {
    fn take(&self) -> Option<CommandOutcome> {
        match self.control.waiting.borrow().get(&self.id) {
            Some(Waiting::Ended(outcome)) => Some(*outcome),
            _ => None,
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<CommandOutcome> {
        if let Some(outcome) = self.take() {
            return Poll::Ready(outcome);
        }
        let mut waiting = self.control.waiting.borrow_mut();
        waiting.insert(self.id, Waiting::Wakes(waker.clone()));
        Poll::Pending
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.control.waiting.borrow_mut().remove(&self.id);
        self.control.steering.borrow_mut().forget(self.id);
    }
}
