//! Exporting connections: the driver of `prism_proto::export`.
//!
//! The source's socket is not destroyed before the verdict but kept paused
//! (parked): the switch drops whatever it might still emit, taking it back costs
//! one option, and its destruction is off the path that the client waits for.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use prism_proto::TcpState;
use prism_proto::control::{FlowKey, Ops, Owner, Status};
use prism_proto::export::{
    Action, Event, Export, Kept, Outcome, SETTLE_DEADLINE_NS, VERDICT_DEADLINE_NS, Verdict,
};
use prism_proto::node::{Frame, HandOff, MAX_CONTEXT_BYTES, MAX_INPUT_BYTES, Refusal};
use prism_proto::steering::{Command, CommandOutcome};
use prism_proto::tcp_state::MAX_QUEUE_BYTES;
use prism_sys::tcp::info::send_queue_bytes;
use prism_sys::tcp::{Paused, TcpInfo, TcpStateName};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::channel::Channel;
use crate::connection::{Connection, Rest};
use crate::control::Control;
use crate::endpoint::{Handle, Shared};
use crate::trace::{Part, Record, Step};

/// How often the switch is asked to let a flow pass that it may hold blocked,
/// and for how many rounds of [`SETTLE_DEADLINE_NS`].
const MAX_SETTLE_ROUNDS: usize = 4;
/// How long a hand-off waits for the client's acknowledgements, and how often it
/// looks. A client that stalls for longer moves with its queues full.
const MAX_DRAIN: Duration = Duration::from_millis(200);
const DRAIN_STEP: Duration = Duration::from_millis(1);

/// How an export ended.
#[derive(Debug)]
pub enum Exported {
    /// The peer has the connection.
    Moved,
    /// It is still here, and as good as before: answer or relay yourself.
    Kept {
        /// The connection.
        connection: Connection,
        /// Why it did not move.
        reason: Kept,
    },
    /// Nobody has it any more; the client's new connection on the same ports,
    /// or a long outage of the switch, has ended it.
    Lost,
}

impl Handle {
    /// Hands `connection` over to `peer`, with all that was read and not
    /// consumed, and with `context` (at most 4 KiB) for the peer's application.
    ///
    /// Ends within the sum of the deadlines of `prism_proto::export`. Run it to
    /// its end: dropped half-way, the connection is closed.
    pub async fn export(&self, connection: Connection, peer: &str, context: &[u8]) -> Exported {
        let counters = self.shared.counters.clone();
        let exported = self.try_export(connection, peer, context).await;
        match &exported {
            Exported::Moved => counters.exports_moved.add_one(),
            Exported::Lost => counters.exports_lost.add_one(),
            Exported::Kept { reason, .. } => {
                counters.exports_kept.add_one();
                let count = match reason {
                    Kept::SwitchSilent => &counters.kept_switch_silent,
                    Kept::SwitchRefused(_) => &counters.kept_switch_refused,
                    Kept::SaveFailed => &counters.kept_save_failed,
                    Kept::TargetRefused(_) => &counters.kept_target_refused,
                    Kept::TargetSilent => &counters.kept_target_silent,
                };
                count.add_one();
            }
        }
        exported
    }

    async fn try_export(&self, connection: Connection, peer: &str, context: &[u8]) -> Exported {
        let shared = &self.shared;
        shared.counters.exports_started.add_one();
        let mut record = Record::new(Part::Source, fastrand::u64(..), connection.client().port());
        let Some(control) = shared.control.as_ref().filter(|c| c.is_reachable()) else {
            return kept(connection, Kept::SwitchSilent);
        };
        let rest = &connection.rest;
        // Until the switch has confirmed a command, its clock outranks whatever
        // is left of a predecessor.
        let clock = control.switch_clock_ns();
        let epoch = match (rest.confirmed, rest.epoch, clock) {
            (true, Some(epoch), _) => epoch,
            (_, epoch, Some(clock)) => clock.max(epoch.unwrap_or(0)),
            (_, _, None) => return kept(connection, Kept::SwitchSilent),
        };
        if rest.input.unread().len() > MAX_INPUT_BYTES
            || rest.output.len() > MAX_QUEUE_BYTES
            || context.len() > MAX_CONTEXT_BYTES
        {
            return kept(connection, Kept::SaveFailed);
        }
        let channel = match shared.peers.channel(peer).await {
            Ok(channel) => channel,
            Err(error) => {
                tracing::info!(%error, "no hand-off");
                return kept(connection, Kept::TargetSilent);
            }
        };
        drain(&connection).await;
        record.mark(Step::Start);
        let driver = Driver {
            shared,
            control,
            channel,
            context,
            record,
        };
        driver.run(connection, epoch).await
    }
}

/// Waits, for a bounded time, until the client has acknowledged all that was sent
/// to it. What the switch drops while it blocks the flow costs the target a
/// retransmission timeout of seconds, as it knows no round-trip time. A client
/// that sends its requests one by one has acknowledged everything by now.
async fn drain(connection: &Connection) {
    let Some(stream) = &connection.stream else {
        return;
    };
    let end = Instant::now() + MAX_DRAIN;
    while send_queue_bytes(stream.as_fd()).is_ok_and(|bytes| bytes > 0) && Instant::now() < end {
        tokio::time::sleep(DRAIN_STEP).await;
    }
}

fn kept(connection: Connection, reason: Kept) -> Exported {
    Exported::Kept { connection, reason }
}

/// Where the socket is.
enum Socket {
    /// With us, working.
    Live(TcpStream),
    /// Paused, in the process's collection.
    Parked,
    /// Closed.
    Gone,
}

struct Driver<'s> {
    shared: &'s Rc<Shared>,
    control: &'s Rc<Control>,
    channel: Rc<Channel>,
    context: &'s [u8],
    record: Record,
}

impl Driver<'_> {
    async fn run(mut self, mut connection: Connection, epoch: u64) -> Exported {
        let Some(stream) = connection.stream.take() else {
            return Exported::Lost;
        };
        let (flow, here) = (
            connection.rest.flow,
            self.shared.owner(connection.rest.local),
        );
        let never_steered = !connection.rest.confirmed;
        let (mut machine, mut action) = Export::start(flow, here, epoch, never_steered);
        let (mut socket, mut state, mut steered) = (Socket::Live(stream), None, false);
        loop {
            let event = match action {
                Action::Steer {
                    command,
                    deadline_ns,
                } => {
                    // A block is repeated for a living connection only: by now the
                    // flow may be that of the client's next one.
                    if std::mem::replace(&mut steered, true)
                        && command.ops.has(Ops::BLOCK)
                        && !is_alive(&socket)
                    {
                        return self.finish(connection, socket, Outcome::Lost);
                    }
                    let outcome = self.control.call(command, deadline_ns).await;
                    self.record.mark(Step::Blocked);
                    Event::Steered(outcome)
                }
                Action::SaveAndClose => {
                    let (now, saved) = self.save(socket, flow);
                    (socket, state) = (now, saved);
                    if state.is_some() {
                        Event::Saved
                    } else {
                        Event::SaveFailed
                    }
                }
                Action::Send { epoch } => {
                    Event::Verdict(self.send(&connection.rest, state.take(), epoch).await)
                }
                Action::Rebuild if self.shared.process.has_parked(&flow) => Event::Rebuilt,
                Action::Rebuild => Event::RebuildFailed,
                Action::Finish(outcome) => return self.finish(connection, socket, outcome),
            };
            action = machine.handle(event);
        }
    }

    /// Pauses and saves; on failure the socket is live again, if it lives.
    fn save(&mut self, socket: Socket, flow: FlowKey) -> (Socket, Option<TcpState>) {
        let Socket::Live(stream) = socket else {
            return (Socket::Gone, None);
        };
        let fd: OwnedFd = match stream.into_std() {
            Ok(stream) => stream.into(),
            Err(error) => {
                tracing::warn!(%error, "socket lost");
                return (Socket::Gone, None);
            }
        };
        let paused = match Paused::pause(fd) {
            Ok(paused) => paused,
            Err(error) => {
                tracing::debug!(error = %error.reason, client = %flow.client, "not paused");
                return (live_again(error.fd), None);
            }
        };
        match paused.save(flow.vip) {
            Ok(state) => {
                self.record.mark(Step::Saved);
                self.shared.process.park(flow, paused);
                (Socket::Parked, Some(state))
            }
            Err(error) => {
                tracing::warn!(%error, client = %flow.client, "not saved");
                (paused.resume().map_or(Socket::Gone, live_again), None)
            }
        }
    }

    async fn send(&mut self, rest: &Rest, state: Option<TcpState>, epoch: u64) -> Verdict {
        let Some(tcp) = state else {
            return Verdict::Unknown;
        };
        let id = self.record.id;
        let frame = Frame::HandOff(Box::new(HandOff {
            id,
            epoch,
            origin: rest.origin.clone(),
            context: self.context.to_vec(),
            input: rest.input.unread().to_vec(),
            output: rest.output.clone(),
            tcp,
        }));
        let bytes = frame.encode();
        self.record.mark(Step::Encoded);
        let verdict = self.channel.await_verdict(id);
        if let Err(error) = self.channel.send_encoded(&bytes).await {
            tracing::info!(%error, "hand-off not sent");
            return Verdict::Unknown;
        }
        self.record.mark(Step::Sent);
        let deadline = Duration::from_nanos(VERDICT_DEADLINE_NS);
        let verdict = tokio::time::timeout(deadline, verdict.wait()).await;
        self.record.mark(Step::Verdict);
        match verdict {
            Ok(Some(Frame::Accepted { .. })) => Verdict::Accepted,
            Ok(Some(Frame::Refused { reason, .. })) => Verdict::Refused(reason),
            Ok(Some(Frame::HandOff(_))) => Verdict::Refused(Refusal::Malformed),
            Ok(Some(Frame::Unknown { .. }) | None) | Err(_) => Verdict::Unknown,
        }
    }

    fn finish(mut self, mut connection: Connection, socket: Socket, outcome: Outcome) -> Exported {
        let flow = connection.rest.flow;
        let parked = match socket {
            Socket::Parked => self.shared.process.unpark(&flow),
            _ => None,
        };
        let exported = match (outcome, socket, parked) {
            (
                Outcome::Kept {
                    epoch,
                    reason,
                    settled,
                },
                socket,
                parked,
            ) => {
                connection.rest.epoch = Some(epoch);
                connection.rest.confirmed |= settled;
                let live = match (socket, parked) {
                    (Socket::Live(stream), _) => Some(stream),
                    (_, Some(paused)) => paused.resume().ok().and_then(stream_of),
                    _ => None,
                };
                if !settled {
                    let here = self.shared.owner(connection.rest.local);
                    let settle = settle(self.control.clone(), flow, here, epoch);
                    tokio::task::spawn_local(settle);
                }
                match live {
                    Some(stream) => {
                        connection.stream = Some(stream);
                        Exported::Kept { connection, reason }
                    }
                    None => {
                        self.shared.on_closed(&connection.rest);
                        Exported::Lost
                    }
                }
            }
            (outcome, socket, parked) => {
                if let Some(paused) = parked {
                    paused.close_silently();
                }
                if let Socket::Live(stream) = socket {
                    close_silently(stream);
                }
                if outcome == Outcome::Moved {
                    Exported::Moved
                } else {
                    Exported::Lost
                }
            }
        };
        self.record.mark(Step::Closed);
        self.shared.process.trace.push(self.record);
        exported
    }
}

fn is_alive(socket: &Socket) -> bool {
    let Socket::Live(stream) = socket else {
        return false;
    };
    TcpInfo::read(stream.as_fd()).is_ok_and(|info| {
        matches!(
            info.state,
            TcpStateName::Established | TcpStateName::CloseWait
        )
    })
}

fn live_again(fd: OwnedFd) -> Socket {
    stream_of(fd).map_or(Socket::Gone, Socket::Live)
}

fn stream_of(fd: OwnedFd) -> Option<TcpStream> {
    TcpStream::from_std(fd.into()).ok()
}

/// The flow is another's: not a packet must leave.
fn close_silently(stream: TcpStream) {
    if let Ok(stream) = stream.into_std()
        && let Ok(paused) = Paused::pause(stream.into())
    {
        paused.close_silently();
    }
}

/// Repeats what the switch has not confirmed, so that a flow it blocked just
/// before it fell silent passes again when it is back.
async fn settle(control: Rc<Control>, flow: FlowKey, owner: Owner, mut epoch: u64) {
    for _ in 0..MAX_SETTLE_ROUNDS {
        let command = Command {
            ops: Ops::OWN.and(Ops::UNBLOCK),
            epoch,
            flow,
            owner,
        };
        match control.call(command, SETTLE_DEADLINE_NS).await {
            CommandOutcome::Unanswered => {}
            // What holds it back is our own, of a predecessor on these ports.
            CommandOutcome::Answered(a) if a.status == Status::Stale && a.owner == owner => {
                epoch = a.epoch.saturating_add(1);
            }
            CommandOutcome::Answered(_) => return,
        }
    }
}
