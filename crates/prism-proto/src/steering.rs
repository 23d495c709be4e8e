//! The sender's half of the control protocol: request identifiers, the estimate of the switch's
//! clock, repetition with backoff, deadlines.
//!
//! Sans-IO: the caller sends the datagrams of [`Steering::poll_transmit`], and gives what arrives
//! to [`Steering::handle_datagram`]. It calls [`Steering::handle_timeout`], then `poll_transmit`,
//! no later than [`Steering::next_timeout_ns`]. `now_ns` is the caller's monotonic clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::control::{
    Answer, ControlError, ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, Pass, Request, RunId,
    Stamped, Status, Term,
};

use clock::ClockOffset;

mod clock;

/// The wait before the first repetition.
pub const FIRST_RETRY_NS: u64 = 1_000_000;
/// The longest wait between repetitions while the switch answers others: the answer was lost, or
/// the flow's entry is being deleted (some milliseconds).
pub const MAX_RETRY_NS: u64 = 64_000_000;
/// The longest wait while the switch is silent. An outage of 12 s costs a command some 25
/// datagrams, and the first answer to any command ends it.
pub const MAX_SILENT_RETRY_NS: u64 = 1_000_000_000;
/// A wait above [`MAX_RETRY_NS`] is at most this part of the time to the deadline. An outage may
/// end shortly before it, and the answers to the next repetitions may be lost: 10 of them are sent
/// in the last 2 s, and some 30 in 8 s.
const TRIES_TO_DEADLINE: u64 = 4;
/// A command with at least this much time at its start waits until a young term is over: without an
/// answer its connection would be lost. Others let their request be relayed.
pub const PATIENT_NS: u64 = 1_000_000_000;
/// The number of `LATE` answers to a command that correct the clock estimate.
const MAX_CLOCK_CORRECTIONS: u8 = 3;

/// A command for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Operations.
    pub ops: Ops,
    /// Epoch of the command.
    pub epoch: u64,
    /// Flow.
    pub flow: FlowKey,
    /// Owner, with `OWN`; otherwise [`Owner::NONE`].
    pub owner: Owner,
}

/// The identifier of a command under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The switch answered.
    Answered(Answer),
    /// The switch did not answer before the deadline. It may have applied the command.
    Unanswered,
}

#[derive(Debug)]
struct Pending {
    command: Command,
    /// The present owner's word that the flow may be taken.
    pass: Option<Pass>,
    /// The term that it is sent with.
    stamp: Term,
    /// No later term changes the stamp.
    is_bound: bool,
    started_ns: u64,
    deadline_ns: u64,
    /// The time that it had at its start.
    patience_ns: u64,
    /// The switch has refused it for its term. The flow may be announced yet.
    old_term: Option<Box<Answer>>,
    /// The time when it is sent again, or ends; `None` while it waits to be sent.
    due_ns: Option<u64>,
    retry_ns: u64,
    corrections: u8,
}

/// Counts for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringCounters {
    /// Commands started.
    pub commands: u64,
    /// Datagrams sent again.
    pub retransmissions: u64,
    /// Commands that met their deadline without an answer.
    pub unanswered: u64,
    /// Datagrams that were no authentic answer.
    pub refused_datagrams: u64,
    /// Authentic answers to no command (duplicates, late ones).
    pub unexpected_answers: u64,
}

/// All commands that one sender has under way to one switch. The caller bounds their number.
#[derive(Debug)]
pub struct Steering {
    key_id: u32,
    key: ControlKey,
    run: RunId,
    next_id: u64,
    /// The greatest term that was heard of.
    term: Term,
    /// The last term in which all flows of this sender are announced.
    settled: Term,
    clock: Option<ClockOffset>,
    pending: BTreeMap<u64, Box<Pending>>,
    /// Commands to be sent now.
    ready: VecDeque<u64>,
    /// The due times of the others, the earliest first. An entry is void if its command is due at
    /// another time, or has ended. The first entry is never void.
    timers: BinaryHeap<Reverse<(u64, u64)>>,
    /// Some commands are repeated more slowly than to a switch that answers.
    is_slow: bool,
    finished: VecDeque<(CommandId, CommandOutcome)>,
    /// The counts so far.
    pub counters: SteeringCounters,
}

impl Steering {
    /// A sender under `key`. `first_request_id` must differ between senders that share an address
    /// and port over time, so draw it at random.
    pub fn new(key_id: u32, key: ControlKey, first_request_id: u64) -> Self {
        Self {
            key_id,
            key,
            run: RunId::NONE,
            next_id: first_request_id,
            term: Term::NONE,
            settled: Term::NONE,
            clock: None,
            pending: BTreeMap::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            is_slow: false,
            finished: VecDeque::new(),
            counters: SteeringCounters::default(),
        }
    }

    /// Names this run with every `OWN`.
    #[must_use]
    pub fn of_run(mut self, run: RunId) -> Self {
        self.run = run;
        self
    }

    /// The switch's clock; `None` before the first answer.
    pub fn switch_clock_ns(&self, now_ns: u64) -> Option<u64> {
        u64::try_from(i128::from(now_ns) + self.clock?.offset_ns).ok()
    }

    /// The greatest term that was heard of. Answers of former terms no longer count.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Notes a term that the lease's connection has told. Its clock may be another one.
    pub fn observe_term(&mut self, term: Term) {
        if term > self.term {
            (self.term, self.clock) = (term, None);
        }
    }

    /// Begins a command in the present term; it is sent by the next [`Self::poll_transmit`].
    pub fn start(&mut self, command: Command, now_ns: u64, deadline_ns: u64) -> CommandId {
        self.start_in(self.term, command, now_ns, deadline_ns)
    }

    /// Begins a command for a flow that the switch has confirmed in the term `stamp`.
    pub fn start_in(
        &mut self,
        stamp: Term,
        command: Command,
        now_ns: u64,
        deadline_ns: u64,
    ) -> CommandId {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let pending = Pending {
            command,
            pass: None,
            stamp,
            is_bound: false,
            started_ns: now_ns,
            deadline_ns,
            patience_ns: deadline_ns.saturating_sub(now_ns),
            old_term: None,
            due_ns: None,
            retry_ns: FIRST_RETRY_NS,
            corrections: 0,
        };
        self.ready.push_back(id);
        self.pending.insert(id, Box::new(pending));
        self.counters.commands += 1;
        CommandId(id)
    }

    /// Gives a command that has not been sent yet the pass of the flow's owner.
    pub fn attach(&mut self, id: CommandId, pass: Pass) {
        if let Some(pending) = self.pending.get_mut(&id.0) {
            pending.pass = Some(pass);
        }
    }

    /// Has a command count in the term of its stamp alone. An arbiter of a later term refuses it,
    /// also if it has confirmed the flow since.
    pub fn bind(&mut self, id: CommandId) {
        if let Some(pending) = self.pending.get_mut(&id.0) {
            pending.is_bound = true;
        }
    }

    /// Signs with another key from now on. Commands under way are repeated under it.
    pub fn set_key(&mut self, key_id: u32, key: ControlKey) {
        (self.key_id, self.key) = (key_id, key);
    }

    /// The switch has confirmed in `term` a connection at `epoch`. Its commands may go on: a
    /// hand-off goes to the second epoch after its first. Others for `flow` are of other
    /// connections.
    pub fn restamp(&mut self, flow: &FlowKey, epoch: u64, term: Term) {
        let epochs = epoch..=epoch.saturating_add(2);
        for pending in self.pending.values_mut() {
            let is_of_flow = pending.command.flow == *flow && !pending.is_bound;
            if is_of_flow && epochs.contains(&pending.command.epoch) {
                pending.stamp = pending.stamp.max(term);
                pending.old_term = None;
            }
        }
    }

    /// All flows of this sender are announced in `term`: a command of a former one does not go on.
    pub fn settle(&mut self, term: Term) {
        self.settled = self.settled.max(term);
        let refused = self.pending.iter_mut();
        let refused = refused.filter_map(|(id, pending)| Some((*id, pending.old_term.take()?)));
        let refused: Vec<_> = refused.collect();
        for (id, answer) in refused {
            self.remove(id);
            self.finish(id, CommandOutcome::Answered(*answer));
        }
    }

    /// The next datagram that is due.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<[u8; MESSAGE_BYTES]> {
        let (id, pending) = loop {
            let id = self.ready.pop_front()?;
            // Commands that were answered or forgotten meanwhile are skipped.
            if let Some(pending) = self.pending.get_mut(&id) {
                break (id, pending);
            }
        };
        if pending.retry_ns > FIRST_RETRY_NS {
            self.counters.retransmissions += 1;
        }
        self.is_slow |= pending.retry_ns > MAX_RETRY_NS;
        let left_ns = pending.deadline_ns.saturating_sub(now_ns);
        let most_ns = (left_ns / TRIES_TO_DEADLINE).max(MAX_RETRY_NS);
        let again_ns = now_ns.saturating_add(jittered(pending.retry_ns.min(most_ns), id));
        pending.retry_ns = (pending.retry_ns * 2).min(MAX_SILENT_RETRY_NS);
        let due_ns = again_ns.min(pending.deadline_ns);
        pending.due_ns = Some(due_ns);
        self.timers.push(Reverse((due_ns, id)));
        let stamp = pending.stamp;
        let pass = pending.pass;
        let Command {
            ops,
            epoch,
            flow,
            owner,
        } = pending.command;
        let request = Request {
            key_id: self.key_id,
            request_id: id,
            time_ns: self.switch_clock_ns(now_ns).unwrap_or(0),
            ops,
            epoch,
            flow,
            owner,
            run: if ops.has(Ops::OWN) {
                self.run
            } else {
                RunId::NONE
            },
        };
        Some(request.in_term(stamp).encode_with(pass, &self.key))
    }

    /// The time when [`Self::handle_timeout`] has work; 0 if [`Self::poll_transmit`] has work now.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        if self.has_ready() {
            return Some(0);
        }
        self.timers.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Whether [`Self::poll_transmit`] has work now.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Handles a datagram from the switch.
    pub fn handle_datagram(&mut self, bytes: &[u8], now_ns: u64) -> Result<(), ControlError> {
        let (term, answer) = match Stamped::<Answer>::decode(bytes, self.key_id, &self.key) {
            Ok(answer) => (answer.term, answer.message),
            Err(error) => {
                self.counters.refused_datagrams += 1;
                return Err(error);
            }
        };
        // A switch without terms may have replaced one that has them.
        if term < self.term && term != Term::NONE {
            // The switch of a former term no longer decides, and all that it said was announced.
            self.counters.unexpected_answers += 1;
            return Ok(());
        }
        self.observe_term(term);
        self.hurry(now_ns);
        let Some(pending) = self.pending.get_mut(&answer.request_id) else {
            self.counters.unexpected_answers += 1;
            return Ok(());
        };
        let heard = ClockOffset {
            offset_ns: i128::from(answer.time_ns) - i128::from(now_ns),
            at_ns: now_ns,
        };
        self.clock = Some(match self.clock {
            Some(known) if !known.is_ahead(&answer, pending.started_ns) => known.refined(heard),
            _ => heard,
        });
        if answer.status == Status::Late {
            // `LATE` does not end a command, because the switch may still apply a later copy.
            if pending.corrections < MAX_CLOCK_CORRECTIONS {
                pending.corrections += 1;
                self.send_now(answer.request_id);
            }
            return Ok(());
        }
        if answer.status == Status::Young {
            if pending.patience_ns >= PATIENT_NS {
                pending.deadline_ns = now_ns.saturating_add(pending.patience_ns);
            }
            return Ok(());
        }
        if answer.status == Status::OldTerm && !answer.ops.has(Ops::ANNOUNCE) {
            // With the present stamp, the answer is to an earlier copy.
            if pending.stamp >= term {
                return Ok(());
            }
            if self.settled < term {
                pending.old_term = Some(Box::new(answer));
                return Ok(());
            }
        }
        self.remove(answer.request_id);
        self.finish(answer.request_id, CommandOutcome::Answered(answer));
        Ok(())
    }

    /// Ends the commands whose deadline has passed, and queues those that are due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(&Reverse((due_ns, id))) = self.timers.peek() {
            if due_ns > now_ns {
                return;
            }
            // The first entry is of a command under way.
            match self.pending.get_mut(&id) {
                Some(pending) if pending.deadline_ns <= now_ns => {
                    let refused = pending.old_term.take();
                    self.remove(id);
                    self.end(id, refused);
                }
                _ => self.send_now(id),
            }
        }
    }

    /// The next command that has ended, the oldest first.
    pub fn poll_finished(&mut self) -> Option<(CommandId, CommandOutcome)> {
        self.finished.pop_front()
    }

    /// Whether no command is under way.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Forgets a command whose caller is gone.
    pub fn forget(&mut self, id: CommandId) {
        if !self.remove(id.0) {
            self.finished.retain(|(done, _)| *done != id);
        }
    }

    /// Repeats slow commands soon, because the switch answers. They are spread over the time of one
    /// repetition.
    fn hurry(&mut self, now_ns: u64) {
        if !std::mem::take(&mut self.is_slow) {
            return;
        }
        let slow = self.pending.iter_mut();
        for (id, pending) in slow.filter(|(_, p)| p.retry_ns > MAX_RETRY_NS) {
            pending.retry_ns = MAX_RETRY_NS;
            let soon_ns = now_ns.saturating_add(mixed(*id) % MAX_RETRY_NS);
            if pending.due_ns.is_some_and(|due_ns| due_ns > soon_ns) {
                pending.due_ns = Some(soon_ns);
                self.timers.push(Reverse((soon_ns, *id)));
            }
        }
        self.drop_void_timers();
    }

    /// The command is sent by the next [`Self::poll_transmit`].
    fn send_now(&mut self, id: u64) {
        if let Some(pending) = self.pending.get_mut(&id)
            && pending.due_ns.take().is_some()
        {
            self.ready.push_back(id);
            self.drop_void_timers();
        }
    }

    /// Removes a command; returns whether it was under way.
    fn remove(&mut self, id: u64) -> bool {
        let was_under_way = self.pending.remove(&id).is_some();
        self.drop_void_timers();
        was_under_way
    }

    fn drop_void_timers(&mut self) {
        while let Some(Reverse((due_ns, id))) = self.timers.peek() {
            let pending = self.pending.get(id);
            if pending.is_some_and(|p| p.due_ns == Some(*due_ns)) {
                return;
            }
            self.timers.pop();
        }
    }

    /// Ends a command whose deadline has passed.
    fn end(&mut self, id: u64, refused: Option<Box<Answer>>) {
        if let Some(answer) = refused {
            return self.finish(id, CommandOutcome::Answered(*answer));
        }
        self.counters.unanswered += 1;
        self.finish(id, CommandOutcome::Unanswered);
    }

    fn finish(&mut self, id: u64, outcome: CommandOutcome) {
        self.finished.push_back((CommandId(id), outcome));
    }
}

/// Shortens a wait by up to a quarter, so that commands of the same outage do not stay in step. The
/// wait is part of the seed, so each repetition differs.
fn jittered(wait_ns: u64, id: u64) -> u64 {
    wait_ns - mixed(id ^ wait_ns) % (wait_ns / 4 + 1)
}

/// A pseudo-random number (the finalizer of SplitMix64).
fn mixed(id: u64) -> u64 {
    let mixed = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
