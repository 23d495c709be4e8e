//! The driver of `prism_proto::export`. In a freeze the source's socket stays, silent, until the
//! verdict. If the switch blocks the flow, the socket is closed after the state has been sent, and
//! the way back builds it again from the saved state (docs/design/handoff.md).

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use prism_proto::control::{Ops, Owner, Pass};
use prism_proto::export::{
    ASK_INTERVAL_NS, Action, Event, Export, Kept, Method, Outcome, VERDICT_DEADLINE_NS, Verdict,
};
use prism_proto::facts::Form;
use prism_proto::fence::Fence;
use prism_proto::health::DOUBT_AFTER;
use prism_proto::node::{Frame, HandOff, Refusal, TlsState};
use prism_sys::tcp::Paused;
use zeroize::Zeroize;

use super::Exported;
use super::socket::{Socket, end_silently, go_live, is_alive, rebuild, thaw};
use crate::channel::Channel;
use crate::connection::Connection;
use crate::control::{Control, Stamp};
use crate::kernel_tx::KernelTx;
use crate::peers::Peers;
use crate::permits::permit;
use crate::records::Records;
use crate::settling::{Settling, Unsettled};
use crate::trace::{Ended, HandOffStep, Record};
use crate::worker::Worker;

/// The peer that a connection is offered to.
#[derive(Clone)]
pub(super) struct HandOffTarget<'s> {
    pub(super) channel: Rc<Channel>,
    pub(super) peers: &'s Rc<Peers>,
}

pub(super) struct Driver<'s> {
    pub(super) worker: &'s Rc<Worker>,
    pub(super) control: &'s Rc<Control>,
    pub(super) connection: &'s mut Connection,
    /// `None` if the connection is to come back.
    pub(super) target: Option<HandOffTarget<'s>>,
    pub(super) context: &'s [u8],
    /// The session while it is saved: consumed if the connection moves.
    pub(super) tls: Option<TlsState>,
    /// The kernel's part of the session in the socket that it was saved from.
    pub(super) kernel: Option<KernelTx>,
    /// The target's word that this node may take the flow back.
    pub(super) pass: Option<Pass>,
    pub(super) record: Record,
}

impl Driver<'_> {
    /// Runs the hand-off to its end. The error is the reason why the connection stays.
    pub(super) async fn run(mut self, epoch: u64) -> Result<Exported, Kept> {
        let Some(stream) = self.connection.stream.take() else {
            return Ok(Exported::Lost);
        };
        let state = &mut self.connection.state;
        let flow = state.flow;
        let here = state.owner();
        let method = match self.target {
            Some(_) => self.worker.method(),
            None => Method::TwoPhase,
        };
        let fence = self.worker.config.fence;
        let is_new = !state.confirmed;
        let (mut machine, mut action) = Export::start(fence, method, flow, here, epoch, is_new);
        let mut socket = Socket::Live(stream);
        let mut steered = false;
        let mut sent_in = None;
        loop {
            let event = match action {
                Action::Steer {
                    command,
                    deadline_ns,
                } => {
                    // A block is not repeated for a dead connection: the flow may be that
                    // of the client's next one.
                    let blocks = command.ops.has(Ops::BLOCK);
                    if std::mem::replace(&mut steered, true) && blocks && !is_alive(&socket) {
                        return self.finish(socket, Outcome::Lost);
                    }
                    let bound = sent_in.filter(|_| machine.is_bound_to_term());
                    let stamp = match bound {
                        Some(term) => Stamp::Bound(term),
                        None => Stamp::Latest(self.control.term_of(&flow)),
                    };
                    let outcome = (self.control)
                        .call_in(stamp, self.pass, command, deadline_ns)
                        .await;
                    (self.connection.state).note(self.control, outcome, here);
                    // The command that takes a frozen connection back blocks nothing.
                    if blocks {
                        self.record.mark(HandOffStep::Blocked);
                        self.record.is_blocked_by_switch = true;
                    }
                    Event::Steered(outcome)
                }
                Action::Save { freezes } => {
                    socket = self.save(socket, freezes);
                    match socket {
                        Socket::Paused(..) => Event::Saved,
                        _ => Event::SaveFailed,
                    }
                }
                Action::Send { epoch } => {
                    // It is not open here while the verdict is awaited.
                    self.connection.state.count(false);
                    sent_in = Some(self.control.term_of(&flow));
                    let (now, verdict) = self.send(socket, epoch).await;
                    socket = now;
                    Event::Verdict(verdict)
                }
                Action::Rebuild => {
                    let event;
                    (socket, event) = rebuild(socket, self.connection.state.local);
                    event
                }
                Action::Ask { owner, deadline_ns } => {
                    Event::Told(self.ask(owner, deadline_ns).await)
                }
                Action::Finish(outcome) => return self.finish(socket, outcome),
            };
            action = machine.handle(event);
        }
    }

    /// Pauses and saves the connection; on failure the socket is live again, if it lives.
    /// With `freezes` the socket stops its packets itself, because the switch does not.
    fn save(&mut self, socket: Socket, freezes: bool) -> Socket {
        let state = &mut self.connection.state;
        let flow = state.flow;
        let Socket::Live(stream) = socket else {
            return Socket::Gone;
        };
        let paused = match self.worker.freezer() {
            Some(freezer) if freezes => Paused::freeze(stream, freezer),
            None if freezes => return Socket::Live(stream),
            _ => Paused::pause(stream),
        };
        if freezes {
            self.record.mark(HandOffStep::Blocked);
        }
        let paused = match paused {
            Ok(paused) => paused,
            Err(error) => {
                tracing::debug!(error = %error.reason, client = %flow.client,
                    "cannot pause a connection; it stays here");
                return Socket::Live(error.fd);
            }
        };
        let records = state.tls.take();
        match records
            .map(|records| records.save(paused.as_fd()))
            .transpose()
        {
            Ok(None) => {}
            Ok(Some((tls, kernel))) => (self.tls, self.kernel) = (Some(tls), kernel),
            // Dropping the paused socket closes the connection in the ordinary way.
            Err(error) => {
                tracing::warn!(%error, client = %flow.client,
                    "cannot save a TLS session; its connection is closed");
                return Socket::Gone;
            }
        }
        let behaviour = match state.behaviour.take() {
            Some(known) => Ok(known),
            None => paused.behaviour(),
        };
        match behaviour.and_then(|known| paused.save_with(flow.client, flow.vip, known)) {
            Ok(tcp) => {
                self.record.mark(HandOffStep::Saved);
                Socket::Paused(paused, Box::new(tcp))
            }
            Err(error) => {
                tracing::warn!(%error, client = %flow.client,
                    "cannot save a connection; it stays here");
                paused.resume().map_or(Socket::Gone, Socket::Live)
            }
        }
    }

    /// Sends the state and waits for the verdict. A frozen socket is kept. Another one is
    /// closed while the target works, and its state is kept for the way back.
    async fn send(&mut self, socket: Socket, epoch: u64) -> (Socket, Verdict) {
        let Socket::Paused(paused, tcp) = socket else {
            return (Socket::Gone, Verdict::Unknown);
        };
        let Some(HandOffTarget { channel, peers }) = self.target.clone() else {
            let socket = if paused.is_frozen() {
                Socket::Silent(paused)
            } else {
                paused.close_silently();
                Socket::Saved(tcp)
            };
            return (socket, Verdict::Refused(Refusal::Unwilling));
        };
        let id = self.record.id;
        let state = &self.connection.state;
        let mut hand_off = HandOff {
            id,
            epoch,
            moves: state.moves.saturating_add(1),
            origin: state.origin.clone(),
            context: self.context.to_vec(),
            input: state.input.unread().to_vec(),
            output: state.output.clone(),
            tls: self.tls.take(),
            // A node of the former release would take the proxy for the client.
            proxied: state.proxied.filter(|_| channel.form == Form::Entries),
            permit: permit(self.worker, peers, &channel, state.flow, epoch),
            tcp: *tcp,
        };
        let mut bytes = hand_off.frame();
        self.record.mark(HandOffStep::Encoded);
        let verdict = channel.await_verdict(id);
        let frozen = if paused.is_frozen() {
            Ok((self.worker.process.frozen).keep(state.flow, epoch, &channel.peer, paused))
        } else {
            Err(paused)
        };
        let sent = channel.send_encoded(&bytes);
        self.record.mark(HandOffStep::Sent);
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
        self.record.mark(HandOffStep::Closed);
        if let Err(error) = sent {
            tracing::info!(%error, "a hand-off was not sent: its channel has broken");
            return (saved, Verdict::Unknown);
        }
        let deadline = Duration::from_nanos(VERDICT_DEADLINE_NS);
        let verdict = tokio::time::timeout(deadline, async {
            let mut verdict = pin!(verdict.wait());
            match tokio::time::timeout(DOUBT_AFTER, verdict.as_mut()).await {
                Ok(verdict) => verdict,
                Err(_) => {
                    peers.doubt(&channel.peer);
                    verdict.await
                }
            }
        })
        .await;
        self.record.mark(HandOffStep::Verdict);
        let verdict = verdict.ok().flatten();
        if let Some(Frame::Accepted { spent_ns, .. }) = &verdict {
            self.worker.process.costs.took_there(*spent_ns);
        }
        self.pass = verdict.as_ref().and_then(pass_of);
        (saved, verdict.as_ref().map_or(Verdict::Unknown, verdict_of))
    }

    /// Asks the flow's owner for the outcome of this hand-off. It uses a channel of its own,
    /// because the usual one may be the reason why the verdict has not come.
    async fn ask(&mut self, owner: Option<Owner>, deadline_ns: u64) -> Verdict {
        let told = self.ask_for_answer(owner, deadline_ns).await;
        self.pass = told.as_ref().and_then(pass_of);
        told.as_ref().map_or(Verdict::Unknown, verdict_of)
    }

    async fn ask_for_answer(&self, owner: Option<Owner>, deadline_ns: u64) -> Option<Frame> {
        let HandOffTarget { channel, peers } = self.target.as_ref()?;
        let sent_to = || peers.address(&channel.peer);
        let address = owner.map(|owner| owner.via).or_else(sent_to)?;
        let interval = Duration::from_nanos(ASK_INTERVAL_NS);
        let asking = async {
            loop {
                if let Ok(channel) = peers.fresh_channel(address).await
                    && let Some(answer) = self.ask_on(&channel, interval).await
                {
                    return answer;
                }
                tokio::time::sleep(interval).await;
            }
        };
        let deadline = Duration::from_nanos(deadline_ns);
        tokio::time::timeout(deadline, asking).await.ok()
    }

    /// Asks until the channel breaks.
    async fn ask_on(&self, channel: &Rc<Channel>, interval: Duration) -> Option<Frame> {
        let id = self.record.id;
        loop {
            let answer = channel.await_verdict(id);
            channel.send(&Frame::Ask { id }).ok()?;
            if let Ok(answer) = tokio::time::timeout(interval, answer.wait()).await {
                return answer;
            }
        }
    }

    fn finish(mut self, socket: Socket, outcome: Outcome) -> Result<Exported, Kept> {
        let name = name_of(&outcome);
        let ended = match outcome {
            Outcome::Kept {
                epoch,
                reason,
                settled,
            } => {
                self.keep(epoch, settled);
                self.stay(socket, reason)
            }
            Outcome::Untouched { reason } => self.stay(socket, reason),
            Outcome::Moved => self.leave(socket, Exported::Moved),
            Outcome::Lost => self.leave(socket, Exported::Lost),
            Outcome::Unknown => {
                let left = self.leave(socket, Exported::Unknown);
                // No refusal of the client's next SYN would end the flow, if it is still here.
                if self.worker.config.fence == Fence::Host {
                    self.connection.state.on_closed();
                }
                left
            }
        };
        self.worker.process.trace.push(&Ended {
            record: &self.record,
            peer: self.peer(),
            context: self.context,
            outcome: name,
        });
        ended
    }

    /// The name of the peer; empty if there is none.
    fn peer(&self) -> &str {
        let target = self.target.as_ref();
        target.map_or("", |target| &target.channel.peer)
    }

    fn leave(&self, socket: Socket, gone: Exported) -> Result<Exported, Kept> {
        match socket {
            // Closing it can wait. At the service's address it cannot, because the socket would be
            // deaf to the client's next connection.
            Socket::Frozen(frozen) if !self.worker.config.has_service_address() => {
                let left_behind = frozen.left_behind();
                self.worker.deferred.add(move || drop(left_behind));
            }
            socket => end_silently(socket),
        }
        Ok(gone)
    }

    /// Notes commands to the switch, the last one of `epoch`.
    fn keep(&mut self, epoch: u64, settled: bool) {
        let state = &mut self.connection.state;
        state.epoch = Some(epoch);
        state.confirmed |= settled;
        if !settled {
            let here = state.owner();
            self.control.hold(state.flow, here, epoch);
            let unsettled = Unsettled {
                flow: state.flow,
                owner: here,
                epoch: Rc::new(Cell::new(epoch)),
                pass: self.pass,
            };
            state.settling = Some(Settling::begin(self.control.clone(), unsettled));
        }
    }

    /// Makes the socket of a connection that stays live again.
    fn stay(&mut self, socket: Socket, reason: Kept) -> Result<Exported, Kept> {
        if let Err(error) = self.restore_session(&socket) {
            tracing::error!(%error,
                "a TLS session does not go on after a failed hand-off; its connection is lost");
            end_silently(socket);
            return Ok(Exported::Lost);
        }
        let state = &mut self.connection.state;
        self.connection.stream = match socket {
            Socket::Live(stream) => Some(stream),
            Socket::Rebuilt(restored) => go_live(restored, state),
            Socket::Silent(paused) => thaw(paused),
            Socket::Paused(..) | Socket::Frozen(_) | Socket::Saved(_) | Socket::Gone => None,
        };
        if self.connection.stream.is_none() {
            state.on_closed();
            return Ok(Exported::Lost);
        }
        state.claim();
        state.count(true);
        Err(reason)
    }

    /// Restores the session here, because no other host goes on with it. Leaves the kernel its key
    /// if the connection goes on in the socket that it was saved from.
    fn restore_session(&mut self, socket: &Socket) -> io::Result<()> {
        let Some(saved) = self.tls.take() else {
            return Ok(());
        };
        let records = Records::restore(saved).map_err(io::Error::other)?;
        let records = self.connection.state.tls.insert(records);
        match (self.kernel.take(), socket) {
            (Some(kernel), Socket::Live(stream)) => records.stay(kernel, stream.as_fd()),
            (Some(kernel), Socket::Silent(paused)) => records.stay(kernel, paused.as_fd()),
            // A new socket has no key.
            _ => Ok(()),
        }
    }
}

/// The outcome as observers get it.
const fn name_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Kept { .. } | Outcome::Untouched { .. } => "kept",
        Outcome::Moved => "moved",
        Outcome::Lost => "lost",
        Outcome::Unknown => "unknown",
    }
}

/// The pass of a refusal.
fn pass_of(frame: &Frame) -> Option<Pass> {
    match frame {
        Frame::Refused { pass, .. } => *pass,
        _ => None,
    }
}

fn verdict_of(frame: &Frame) -> Verdict {
    match frame {
        Frame::Accepted { .. } => Verdict::Accepted,
        Frame::Refused { reason, .. } => Verdict::Refused(*reason),
        _ => Verdict::Unknown,
    }
}
