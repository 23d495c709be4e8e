//! Exporting connections: the driver of `prism_proto::export`.
//!
//! In a freeze the source's socket stays, silent, until the verdict, and is thawed
//! where the connection does not move. Where the switch blocks the flow, the
//! socket is closed after the state has been sent, while the target works: the
//! switch drops whatever it might still emit, and closing it is off the path that
//! the client waits for. The way back builds it again from the saved state.

mod drain;
mod renew;
mod settle;
mod socket;

use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::control::{Ops, Owner};
use prism_proto::export::{
    ASK_INTERVAL_NS, Action, Event, Export, Kept, Method, Outcome, VERDICT_DEADLINE_NS, Verdict,
};
use prism_proto::node::{
    Frame, HandOff, MAX_CONTEXT_BYTES, MAX_INPUT_BYTES, MAX_MOVES, Refusal, TlsState,
};
use prism_proto::tcp_state::MAX_QUEUE_BYTES;
use prism_sys::tcp::{Behaviour, Paused};
use tokio::sync::oneshot;
use zeroize::Zeroize;

use crate::channel::Channel;
use crate::connection::{Connection, Rest};
use crate::control::Control;
use crate::cost::{Costs, metered};
use crate::endpoint::{Handle, Shared};
use crate::kernel_tx::KernelTx;
use crate::probe::DOUBT_AFTER;
use crate::records::Records;
use crate::trace::{Part, Record, Step};

use drain::{drain, may_be_under_way_bytes};
pub(crate) use renew::renew;
use settle::settle;
use socket::{LeftBehind, Socket, end_silently, go_live, is_alive, rebuild, thaw};

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
    /// The connection has ended: by the client's new connection on the same ports, or by the
    /// kernel.
    Lost,
    /// The connection has left this node, and neither the switch nor the peer could say
    /// whether the peer has it.
    Unknown,
}

impl Handle {
    /// Hands `connection` over to `peer`, with all that was read and not
    /// consumed, and with `context` (at most 4 KiB) for the peer's application.
    ///
    /// Ends within the sum of the deadlines of `prism_proto::export`. Run it to
    /// its end: dropped half-way, the connection is closed.
    pub async fn export(&self, connection: Connection, peer: &str, context: &[u8]) -> Exported {
        let counters = self.shared.counters.clone();
        let export = pin!(self.try_export(connection, peer, context));
        let (exported, spent) = metered(Costs::is_sample(), export).await;
        match &exported {
            Exported::Moved => {
                counters.exports_moved.add_one();
                if let Some(spent) = spent {
                    self.shared.process.costs.took_here(spent);
                }
            }
            Exported::Lost => counters.exports_lost.add_one(),
            Exported::Unknown => counters.exports_unknown.add_one(),
            Exported::Kept { reason, .. } => {
                counters.exports_kept.add_one();
                let count = match reason {
                    Kept::SwitchSilent => &counters.kept_switch_silent,
                    Kept::SwitchRefused(_) => &counters.kept_switch_refused,
                    Kept::SaveFailed => &counters.kept_save_failed,
                    Kept::TargetRefused(_) => &counters.kept_target_refused,
                    Kept::TargetSilent => &counters.kept_target_silent,
                    Kept::MovedTooOften => &counters.kept_moved_too_often,
                };
                count.add_one();
            }
        }
        exported
    }

    async fn try_export(&self, mut connection: Connection, peer: &str, context: &[u8]) -> Exported {
        let shared = &self.shared;
        shared.counters.exports_started.add_one();
        let mut record = Record::new(Part::Source, fastrand::u64(..), connection.client().port());
        let Some(control) = shared.control.as_ref().filter(|c| c.is_reachable()) else {
            return kept(connection, Kept::SwitchSilent);
        };
        if self.is_leaving(peer) {
            return kept(connection, Kept::TargetRefused(Refusal::Unwilling));
        }
        let rest = &connection.rest;
        if rest.moves >= MAX_MOVES {
            tracing::warn!(client = %rest.flow.client, to = peer, moves = rest.moves,
                "a connection moves without an answer to its client: nodes disagree who is to \
                 answer");
            return kept(connection, Kept::MovedTooOften);
        }
        if epoch_of(rest, control).is_none() {
            return kept(connection, Kept::SwitchSilent);
        }
        if rest.input.unread().len() > MAX_INPUT_BYTES
            || rest.output.len() > MAX_QUEUE_BYTES
            || context.len() > MAX_CONTEXT_BYTES
            || rest
                .tls
                .as_ref()
                .is_some_and(|tls| tls.sealed_bytes() > MAX_INPUT_BYTES)
        {
            return kept(connection, Kept::SaveFailed);
        }
        let channel = match shared.peers.channel(peer).await {
            Ok(channel) if channel.is_stuck() => return kept(connection, Kept::TargetSilent),
            Ok(channel) => channel,
            Err(error) => {
                tracing::info!(%error, "no hand-off");
                return kept(connection, Kept::TargetSilent);
            }
        };
        if !drain(&connection, may_be_under_way_bytes(rest)).await {
            return kept(connection, Kept::SaveFailed);
        }
        connection.rest.end_claim();
        let Some(epoch) = epoch_of(&connection.rest, control) else {
            return kept(connection, Kept::SwitchSilent);
        };
        record.mark(Step::Start);
        let driver = Driver {
            shared,
            control,
            channel: Some(channel),
            context,
            tls: None,
            kernel: None,
            record,
        };
        driver.run(connection, epoch).await
    }
}

/// The epoch that a hand-off begins with. Until the switch has confirmed a command,
/// its clock outranks whatever is left of a predecessor; without that there is
/// none.
fn epoch_of(rest: &Rest, control: &Control) -> Option<u64> {
    match (rest.confirmed, rest.epoch, control.switch_clock_ns()) {
        (true, Some(epoch), _) => Some(epoch),
        (_, epoch, Some(clock)) => Some(clock.max(epoch.unwrap_or(0))),
        (_, _, None) => None,
    }
}

fn kept(connection: Connection, reason: Kept) -> Exported {
    Exported::Kept { connection, reason }
}

struct Driver<'s> {
    shared: &'s Rc<Shared>,
    control: &'s Rc<Control>,
    /// To the peer; none where the connection is to come back.
    channel: Option<Rc<Channel>>,
    context: &'s [u8],
    /// The session while it is saved: consumed if the connection moves.
    tls: Option<TlsState>,
    /// What the kernel did of it, in the socket that it was saved from.
    kernel: Option<KernelTx>,
    record: Record,
}

impl Driver<'_> {
    async fn run(mut self, mut connection: Connection, epoch: u64) -> Exported {
        connection.rest.settling = None;
        let Some(stream) = connection.stream.take() else {
            return Exported::Lost;
        };
        let (flow, here) = (
            connection.rest.flow,
            self.shared.owner(connection.rest.local),
        );
        let never_steered = !connection.rest.confirmed;
        let method = match self.channel {
            Some(_) => self.shared.method(),
            None => Method::TwoPhase,
        };
        let (mut machine, mut action) = Export::start(method, flow, here, epoch, never_steered);
        let (mut socket, mut steered) = (Socket::Live(stream), false);
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
                Action::Save => {
                    let freezes = !steered;
                    socket = self.save(socket, &mut connection.rest, freezes);
                    match socket {
                        Socket::Paused(..) => Event::Saved,
                        _ => Event::SaveFailed,
                    }
                }
                Action::Send { epoch } => {
                    // It may come back; but a verdict takes its time.
                    connection.rest.count(false);
                    let (now, verdict) = self.send(&connection.rest, socket, epoch).await;
                    socket = now;
                    Event::Verdict(verdict)
                }
                Action::Rebuild => {
                    let event;
                    (socket, event) = rebuild(socket, connection.rest.local);
                    event
                }
                Action::Ask { owner, deadline_ns } => {
                    Event::Told(self.ask(owner, deadline_ns).await)
                }
                Action::Finish(outcome) => return self.finish(connection, socket, outcome),
            };
            action = machine.handle(event);
        }
    }

    /// Pauses and saves; on failure the socket is live again, if it lives. Where
    /// the switch has not been asked to stop its packets, the socket does.
    fn save(&mut self, socket: Socket, rest: &mut Rest, freezes: bool) -> Socket {
        let flow = rest.flow;
        let Socket::Live(stream) = socket else {
            return Socket::Gone;
        };
        let paused = match self.shared.freezer() {
            Some(freezer) if freezes => Paused::freeze(stream, freezer),
            _ => Paused::pause(stream),
        };
        if freezes {
            self.record.mark(Step::Blocked);
        }
        let paused = match paused {
            Ok(paused) => paused,
            Err(error) => {
                tracing::debug!(error = %error.reason, client = %flow.client, "not paused");
                return Socket::Live(error.fd);
            }
        };
        let records = rest.tls.take();
        match records
            .map(|records| records.save(paused.as_fd()))
            .transpose()
        {
            Ok(None) => {}
            Ok(Some((tls, kernel))) => (self.tls, self.kernel) = (Some(tls), kernel),
            // Nothing more can be said on it: dropped, it is closed as any other.
            Err(error) => {
                tracing::warn!(%error, client = %flow.client, "TLS session not saved");
                return Socket::Gone;
            }
        }
        let behaviour = match rest.behaviour.take() {
            Some(known) => Ok(known),
            None => Behaviour::read(paused.as_fd()),
        };
        match behaviour.and_then(|known| paused.save_with(flow.vip, known)) {
            Ok(state) => {
                self.record.mark(Step::Saved);
                Socket::Paused(paused, Box::new(state))
            }
            Err(error) => {
                tracing::warn!(%error, client = %flow.client, "not saved");
                paused.resume().map_or(Socket::Gone, Socket::Live)
            }
        }
    }

    /// Sends the state and waits for the verdict. A frozen socket is kept; another
    /// is closed while the target works, and its state is kept for the way back.
    async fn send(&mut self, rest: &Rest, socket: Socket, epoch: u64) -> (Socket, Verdict) {
        let Socket::Paused(paused, state) = socket else {
            return (Socket::Gone, Verdict::Unknown);
        };
        let Some(channel) = self.channel.clone() else {
            paused.close_silently();
            return (Socket::Saved(state), Verdict::Refused(Refusal::Unwilling));
        };
        let id = self.record.id;
        let mut hand_off = HandOff {
            id,
            epoch,
            moves: rest.moves.saturating_add(1),
            origin: rest.origin.clone(),
            context: self.context.to_vec(),
            input: rest.input.unread().to_vec(),
            output: rest.output.clone(),
            tls: self.tls.take(),
            tcp: *state,
        };
        let mut bytes = hand_off.frame();
        self.record.mark(Step::Encoded);
        let verdict = channel.await_verdict(id);
        let frozen = match paused.is_frozen() {
            true => Ok(self.shared.process.frozen.keep(rest.flow, epoch, paused)),
            false => Err(paused),
        };
        let sent = channel.send_encoded(&bytes);
        self.record.mark(Step::Sent);
        self.tls = hand_off.tls.take();
        if self.tls.is_some() {
            bytes.zeroize();
        }
        let saved = match frozen {
            Ok(frozen) => Socket::Frozen(frozen),
            Err(paused) => {
                paused.close_silently();
                Socket::Saved(Box::new(hand_off.tcp))
            }
        };
        self.record.mark(Step::Closed);
        if let Err(error) = sent {
            tracing::info!(%error, "hand-off not sent");
            return (saved, Verdict::Unknown);
        }
        let deadline = Duration::from_nanos(VERDICT_DEADLINE_NS);
        let verdict = tokio::time::timeout(deadline, async {
            let mut verdict = pin!(verdict.wait());
            match tokio::time::timeout(DOUBT_AFTER, verdict.as_mut()).await {
                Ok(verdict) => verdict,
                Err(_) => {
                    self.shared.peers.doubt(&channel.peer);
                    verdict.await
                }
            }
        })
        .await;
        self.record.mark(Step::Verdict);
        let verdict = verdict.ok().flatten();
        if let Some(Frame::Accepted { spent_ns, .. }) = &verdict {
            self.shared.process.costs.took_there(*spent_ns);
        }
        (saved, verdict.as_ref().map_or(Verdict::Unknown, verdict_of))
    }

    /// What the flow's owner says of this hand-off. The usual channel may be the
    /// reason why its verdict has not come.
    async fn ask(&self, owner: Option<Owner>, deadline_ns: u64) -> Verdict {
        let peers = &self.shared.peers;
        let sent_to = || peers.address(&self.channel.as_ref()?.peer);
        let Some(address) = owner.map(|owner| owner.via).or_else(sent_to) else {
            return Verdict::Unknown;
        };
        let interval = Duration::from_nanos(ASK_INTERVAL_NS);
        let asking = async {
            loop {
                if let Ok(channel) = peers.fresh_channel(address).await
                    && let Some(verdict) = self.ask_on(&channel, interval).await
                {
                    return verdict;
                }
                tokio::time::sleep(interval).await;
            }
        };
        let deadline = Duration::from_nanos(deadline_ns);
        let told = tokio::time::timeout(deadline, asking).await;
        told.unwrap_or(Verdict::Unknown)
    }

    /// Asks until the channel breaks.
    async fn ask_on(&self, channel: &Rc<Channel>, interval: Duration) -> Option<Verdict> {
        let id = self.record.id;
        loop {
            let answer = channel.await_verdict(id);
            channel.send(&Frame::Ask { id }).ok()?;
            if let Ok(answer) = tokio::time::timeout(interval, answer.wait()).await {
                return Some(verdict_of(&answer?));
            }
        }
    }

    fn finish(mut self, connection: Connection, socket: Socket, outcome: Outcome) -> Exported {
        let exported = match outcome {
            Outcome::Kept {
                epoch,
                reason,
                settled,
            } => self.keep(connection, socket, epoch, reason, settled),
            Outcome::Untouched { reason } => self.stay(connection, socket, reason),
            outcome => {
                match socket {
                    // Nobody waits for that, and the client may wait for this
                    // worker; but at the service's address it would be deaf to the
                    // client's next connection.
                    Socket::Frozen(frozen) if !self.shared.config.listen => {
                        let left = LeftBehind(Some(frozen));
                        self.shared.chores.add(move || drop(left));
                    }
                    socket => end_silently(socket),
                }
                match outcome {
                    Outcome::Moved => Exported::Moved,
                    Outcome::Unknown => Exported::Unknown,
                    _ => Exported::Lost,
                }
            }
        };
        self.shared.process.trace.push(self.record);
        exported
    }

    /// The connection stays: its socket goes live, if it is not.
    fn keep(
        &mut self,
        mut connection: Connection,
        socket: Socket,
        epoch: u64,
        reason: Kept,
        settled: bool,
    ) -> Exported {
        let rest = &mut connection.rest;
        rest.epoch = Some(epoch);
        rest.confirmed |= settled;
        if !settled {
            let here = self.shared.owner(rest.local);
            let (settling, over) = oneshot::channel();
            rest.settling = Some(settling);
            let settle = settle(self.control.clone(), rest.flow, here, epoch);
            tokio::task::spawn_local(async move {
                tokio::select! {
                    () = settle => {}
                    _ = over => {}
                }
            });
        }
        self.stay(connection, socket, reason)
    }

    fn stay(&mut self, mut connection: Connection, socket: Socket, reason: Kept) -> Exported {
        let rest = &mut connection.rest;
        // No other host has gone on with it, nor ever will.
        match self.tls.take().map(Records::restore).transpose() {
            Ok(Some(records)) => rest.tls = Some(records),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "a TLS session cannot be taken back");
                end_silently(socket);
                return Exported::Lost;
            }
        }
        if let Err(error) = self.stay_in_kernel(&socket, rest) {
            tracing::error!(%error, "a TLS session does not go on in its socket");
            end_silently(socket);
            return Exported::Lost;
        }
        let stream = match socket {
            Socket::Live(stream) => Some(stream),
            Socket::Rebuilt(restored) => go_live(restored, rest),
            Socket::Silent(paused) => thaw(paused),
            Socket::Paused(..) | Socket::Frozen(_) | Socket::Saved(_) | Socket::Gone => None,
        };
        if stream.is_none() {
            self.shared.on_closed(rest);
            return Exported::Lost;
        }
        connection.stream = stream;
        self.shared.claim(&mut connection.rest);
        connection.rest.count(true);
        Exported::Kept { connection, reason }
    }
}

fn verdict_of(frame: &Frame) -> Verdict {
    match frame {
        Frame::Accepted { .. } => Verdict::Accepted,
        Frame::Refused { reason, .. } => Verdict::Refused(*reason),
        Frame::Unknown { .. }
        | Frame::HandOff(_)
        | Frame::Ask { .. }
        | Frame::Leaving { .. }
        | Frame::Heard { .. } => Verdict::Unknown,
    }
}
