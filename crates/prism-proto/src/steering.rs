//! The sender's half of the control protocol: request identifiers, the
//! estimate of the switch's clock, repetition with backoff, deadlines.
//!
//! Sans-IO: the caller sends what [`Steering::poll_transmit`] yields, feeds what
//! arrives to [`Steering::handle_datagram`], and calls
//! [`Steering::handle_timeout`] no later than [`Steering::next_timeout_ns`].
//! `now_ns` is the caller's monotonic clock.

use std::collections::{BTreeMap, VecDeque};

use crate::control::{
    Answer, ControlError, ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, Request, RunId, Status,
};

/// Wait before the first repetition.
pub const FIRST_RETRY_NS: u64 = 1_000_000;
/// Longest wait between repetitions.
pub const MAX_RETRY_NS: u64 = 64_000_000;
/// Most commands under way at once from one sender. At 6 µs a round trip this
/// is far more than one worker can use.
pub const MAX_PENDING: usize = 4096;
/// How often a `LATE` answer is taken as a correction of the clock estimate.
const MAX_CLOCK_CORRECTIONS: u8 = 3;

/// What a host wants of a flow.
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

/// Names a command under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The switch answered.
    Answered(Answer),
    /// It did not until the deadline. Whether the command was applied is unknown.
    Unanswered,
}

/// Too many commands are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_PENDING} control commands are under way already")]
pub struct TooManyPending;

#[derive(Debug)]
struct Pending {
    command: Command,
    started_ns: u64,
    deadline_ns: u64,
    next_send_ns: u64,
    retry_ns: u64,
    corrections: u8,
}

/// Counts that an operator wants to see.
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
    /// Authentic answers that nobody waited for (duplicates, late ones).
    pub unexpected_answers: u64,
}

/// The switch's clock minus our monotonic clock, at least: an answer tells it
/// less its own time on the way.
#[derive(Clone, Copy, Debug)]
struct ClockOffset {
    offset_ns: i128,
    at_ns: u64,
}

impl ClockOffset {
    /// The very first copy of the request was from the switch's future: its clock
    /// has been set back.
    fn is_ahead(self, answer: &Answer, started_ns: u64) -> bool {
        let stamp = i128::from(started_ns) + self.offset_ns;
        answer.status == Status::Late && stamp > i128::from(answer.time_ns)
    }

    /// The quickest answer says most, so that the estimate does not go back when
    /// a slow one comes; but clocks drift apart, by up to 500 parts in a million
    /// (RFC 5905), and an old answer is worth less.
    fn refined(self, heard: Self) -> Self {
        let age_ns = heard.at_ns.saturating_sub(self.at_ns);
        let aged = self.offset_ns - i128::from(age_ns / 2000);
        Self {
            offset_ns: aged.max(heard.offset_ns),
            ..heard
        }
    }
}

/// All commands that one sender has under way to one switch.
#[derive(Debug)]
pub struct Steering {
    key_id: u32,
    key: ControlKey,
    run: RunId,
    next_id: u64,
    clock: Option<ClockOffset>,
    pending: BTreeMap<u64, Pending>,
    finished: VecDeque<(CommandId, CommandOutcome)>,
    /// What has happened so far.
    pub counters: SteeringCounters,
}

impl Steering {
    /// A sender under `key`. `first_request_id` must differ between senders
    /// that share an address and port over time: random is right.
    pub fn new(key_id: u32, key: ControlKey, first_request_id: u64) -> Self {
        Self {
            key_id,
            key,
            run: RunId::NONE,
            next_id: first_request_id,
            clock: None,
            pending: BTreeMap::new(),
            finished: VecDeque::new(),
            counters: SteeringCounters::default(),
        }
    }

    /// The same, whose owners are this run of their node.
    #[must_use]
    pub fn of_run(mut self, run: RunId) -> Self {
        self.run = run;
        self
    }

    /// The switch's clock, once any answer has come.
    pub fn switch_clock_ns(&self, now_ns: u64) -> Option<u64> {
        u64::try_from(i128::from(now_ns) + self.clock?.offset_ns).ok()
    }

    /// Begins a command; it is sent by the next [`Self::poll_transmit`].
    pub fn start(
        &mut self,
        command: Command,
        now_ns: u64,
        deadline_ns: u64,
    ) -> Result<CommandId, TooManyPending> {
        if self.pending.len() >= MAX_PENDING {
            return Err(TooManyPending);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let (next_send_ns, retry_ns, corrections) = (now_ns, FIRST_RETRY_NS, 0);
        self.pending.insert(
            id,
            Pending {
                command,
                started_ns: now_ns,
                deadline_ns,
                next_send_ns,
                retry_ns,
                corrections,
            },
        );
        self.counters.commands += 1;
        Ok(CommandId(id))
    }

    /// The next datagram that is due.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<[u8; MESSAGE_BYTES]> {
        let time_ns = self.switch_clock_ns(now_ns).unwrap_or(0);
        let (id, pending) = self
            .pending
            .iter_mut()
            .find(|(_, p)| p.next_send_ns <= now_ns)?;
        if pending.retry_ns > FIRST_RETRY_NS {
            self.counters.retransmissions += 1;
        }
        pending.next_send_ns = now_ns.saturating_add(pending.retry_ns);
        pending.retry_ns = (pending.retry_ns * 2).min(MAX_RETRY_NS);
        let Command {
            ops,
            epoch,
            flow,
            owner,
        } = pending.command;
        let request = Request {
            key_id: self.key_id,
            request_id: *id,
            time_ns,
            ops,
            epoch,
            flow,
            owner,
        };
        let run = if ops.has(Ops::OWN) {
            self.run
        } else {
            RunId::NONE
        };
        Some(request.encode_of(run, &self.key))
    }

    /// When [`Self::handle_timeout`] or [`Self::poll_transmit`] has work again.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.pending
            .values()
            .map(|p| p.next_send_ns.min(p.deadline_ns))
            .min()
    }

    /// Takes a datagram from the switch.
    pub fn handle_datagram(&mut self, bytes: &[u8], now_ns: u64) -> Result<(), ControlError> {
        let answer = match Answer::decode(bytes, self.key_id, &self.key) {
            Ok(answer) => answer,
            Err(error) => {
                self.counters.refused_datagrams += 1;
                return Err(error);
            }
        };
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
            // Never the end of a command: a later copy may be on its way, and
            // would be applied behind the back of a caller who was told no.
            if pending.corrections < MAX_CLOCK_CORRECTIONS {
                pending.corrections += 1;
                pending.next_send_ns = now_ns;
            }
            return Ok(());
        }
        self.pending.remove(&answer.request_id);
        self.finish(answer.request_id, CommandOutcome::Answered(answer));
        Ok(())
    }

    /// Ends the commands whose deadline has passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let expired = self.pending.extract_if(.., |_, p| p.deadline_ns <= now_ns);
        let expired: Vec<u64> = expired.map(|(id, _)| id).collect();
        for id in expired {
            self.counters.unanswered += 1;
            self.finish(id, CommandOutcome::Unanswered);
        }
    }

    /// Commands that have ended, oldest first.
    pub fn poll_finished(&mut self) -> Option<(CommandId, CommandOutcome)> {
        self.finished.pop_front()
    }

    /// No command is under way: nothing is expected from the switch.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Forgets a command whose caller is gone.
    pub fn forget(&mut self, id: CommandId) {
        self.pending.remove(&id.0);
        self.finished.retain(|(done, _)| *done != id);
    }

    fn finish(&mut self, id: u64, outcome: CommandOutcome) {
        self.finished.push_back((CommandId(id), outcome));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::flow_table::FlowTable;

    const MS: u64 = 1_000_000;

    fn command(epoch: u64) -> Command {
        let addr = "10.0.0.2:80".parse::<std::net::SocketAddr>().unwrap();
        Command {
            ops: Ops::OWN.and(Ops::BLOCK),
            epoch,
            flow: FlowKey {
                client: "192.0.2.1:9".parse().unwrap(),
                vip: "198.51.100.1:80".parse().unwrap(),
            },
            owner: Owner {
                addr,
                via: addr.ip(),
            },
        }
    }

    fn key() -> ControlKey {
        ControlKey::new([3; 16])
    }

    #[test]
    fn first_answer_sets_the_clock_and_the_command_is_repeated_at_once() {
        let (mut s, mut table) = (Steering::new(1, key(), 100), FlowTable::new(9));
        let id = s.start(command(5), 10, 100 * MS).unwrap();
        let switch_clock = 77_000 * MS * 1000;
        for _ in 0..2 {
            let datagram = s.poll_transmit(10).unwrap();
            let request = Request::decode(&datagram, 1, &key()).unwrap();
            let answer = table.apply(&request, switch_clock);
            s.handle_datagram(&answer.encode(&key()), 10).unwrap();
        }
        let Some((done, CommandOutcome::Answered(answer))) = s.poll_finished() else {
            unreachable!("the command has ended")
        };
        assert_eq!((done, answer.status), (id, Status::Ok));
        assert_eq!(s.switch_clock_ns(11), Some(switch_clock + 1));
    }

    #[test]
    fn repeats_with_backoff_until_the_deadline() {
        let mut s = Steering::new(1, key(), 1);
        s.start(command(5), 0, 200 * MS).unwrap();
        let mut sent_ms = Vec::new();
        while let Some(at) = s.next_timeout_ns() {
            s.handle_timeout(at);
            if s.poll_transmit(at).is_some() {
                sent_ms.push(at / MS);
            }
        }
        assert_eq!(sent_ms, [0, 1, 3, 7, 15, 31, 63, 127, 191]);
        assert_eq!(
            s.poll_finished().map(|f| f.1),
            Some(CommandOutcome::Unanswered)
        );
    }

    #[test]
    fn foreign_and_duplicate_answers_change_nothing() {
        let mut s = Steering::new(1, key(), 1);
        let id = s.start(command(5), 0, 9 * MS).unwrap();
        let request = Request::decode(&s.poll_transmit(0).unwrap(), 1, &key()).unwrap();
        let mut answer = FlowTable::new(1).apply(
            &Request {
                time_ns: 5,
                ..request
            },
            5,
        );
        answer.request_id += 1;
        s.handle_datagram(&answer.encode(&key()), 1).unwrap();
        assert!(
            s.handle_datagram(&answer.encode(&ControlKey::new([4; 16])), 1)
                .is_err()
        );
        assert_eq!(s.poll_finished(), None);
        answer.request_id -= 1;
        s.handle_datagram(&answer.encode(&key()), 1).unwrap();
        assert_eq!(s.poll_finished().map(|f| f.0), Some(id));
        s.handle_datagram(&answer.encode(&key()), 1).unwrap();
        assert_eq!(s.poll_finished(), None);
    }
}
