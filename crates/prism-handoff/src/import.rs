//! Importing connections: the driver of `prism_proto::import`.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use prism_proto::control::{FlowKey, FlowState, Ops, Owner, Pass, Passage, Status};
use prism_proto::export::{CLAIM_DEADLINE_NS, VERDICT_DEADLINE_NS};
use prism_proto::fence::Fence;
use prism_proto::import::{Action, Event, Import};
use prism_proto::node::{Frame, HandOff, MAX_MOVES, Refusal};
use prism_proto::steering::{Command, CommandOutcome};
use prism_sys::tcp::{RestoreError, Restored, restore_into};

use crate::buffers::Input;
use crate::channel::{Arrived, Channel};
use crate::connection::Connection;
use crate::control::Control;
use crate::cost::{Costs, metered};
use crate::endpoint::{EndpointPhase, Incoming, Shared};
use crate::first_flight::FirstFlight;
use crate::records::Records;
use crate::trace::{Ended, Part, Record, Step};
use prism_common::supervise::caught;

/// The largest number of imports that wait for the switch at once.
const MAX_IMPORTS: usize = 1024;
/// Further ports that are tried if one is taken for the same client.
const MAX_PORT_TRIES: usize = 8;

impl Arrived {
    /// Begins the import. It is over on return if the switch answers at once.
    pub(crate) async fn import(self) {
        let shared = self.channel.shared.clone();
        let refusal = match *shared.phase.borrow() {
            EndpointPhase::Open if shared.importing.get() < MAX_IMPORTS => None,
            EndpointPhase::Open => Some(Refusal::Busy),
            EndpointPhase::Leaving | EndpointPhase::Deaf => Some(Refusal::Unwilling),
        };
        if let Some(reason) = refusal {
            shared.counters.imports_refused.add_one();
            let id = self.hand_off.id;
            return self.channel.send_verdict(&Frame::Refused {
                id,
                reason,
                pass: None,
            });
        }
        shared.importing.set(shared.importing.get() + 1);
        let mut work = Box::pin(async move {
            let id = self.hand_off.id;
            let channel = self.channel.clone();
            // A panic ends this import and leaves the channel to others.
            let ended = caught(self.bring_home(&shared)).await;
            shared.importing.set(shared.importing.get() - 1);
            if let Err(panic) = ended {
                tracing::error!(
                    peer = channel.peer,
                    id,
                    panic,
                    "an import panicked; its source asks the switch"
                );
                channel.send_verdict(&Frame::Unknown { id });
            }
        });
        if poll_once(work.as_mut()).await.is_pending() {
            tokio::task::spawn_local(work);
        }
    }

    /// Restores the connection here, or passes it on.
    async fn bring_home(self, shared: &Rc<Shared>) {
        match onward(shared, &self).await {
            Some(channel) => pass_on(shared, self, channel).await,
            None => settle_here(shared, self).await,
        }
    }
}

/// The channel to the node that a connection is to be passed on to. There is one if this
/// node has accepted the connection, the application names another node for it, and that
/// node is in reach.
async fn onward(shared: &Rc<Shared>, arrived: &Arrived) -> Option<Rc<Channel>> {
    let transit = shared.config.transit.as_ref()?;
    let hand_off = &arrived.hand_off;
    // A connection that has moved too often stays here, and its request is relayed.
    if hand_off.origin != shared.config.name || hand_off.moves >= MAX_MOVES {
        return None;
    }
    // With TLS the kernel has received records, which the application cannot read.
    let received = match hand_off.tls {
        Some(_) => &[],
        None => hand_off.tcp.received.as_slice(),
    };
    let known = [hand_off.input.as_slice(), received].concat();
    let peer = transit(&hand_off.context, &known).filter(|peer| *peer != arrived.channel.peer)?;
    let channel = arrived.channel.peers.upgrade()?.channel(&peer).await.ok()?;
    (!channel.is_stuck()).then_some(channel)
}

/// Passes the connection on with one more move. The verdict comes back the same way, and
/// the source keeps the connection until then.
async fn pass_on(shared: &Rc<Shared>, arrived: Arrived, channel: Rc<Channel>) {
    let mut hand_off = arrived.hand_off;
    hand_off.moves = hand_off.moves.saturating_add(1);
    let flow = flow_of(&hand_off);
    let epoch = hand_off.epoch;
    let permit = hand_off.permit.take();
    hand_off.permit = permit.and_then(|permit| channel.permit_onward(flow, epoch, permit));
    let id = hand_off.id;
    let port = hand_off.tcp.remote.port();
    let mut record = Record::new(Part::Transit, id, port);
    record.mark_at(Step::TransitReceived, arrived.at_ns);
    record.mark(Step::TransitDecided);
    let trace = &shared.process.trace;
    let context = trace.context_for_observer(&hand_off.context);
    // No source sends two hand-offs with one number. The verdict of the first one counts.
    if channel.awaits(id) {
        return arrived.channel.send_verdict(&Frame::Unknown { id });
    }
    let awaited = channel.await_verdict(id);
    let sent = channel.send(&Frame::HandOff(hand_off));
    shared.counters.passed_on.add_one();
    let deadline = Duration::from_nanos(VERDICT_DEADLINE_NS);
    let verdict = async {
        sent.ok()?;
        awaited.wait().await
    };
    let verdict = tokio::time::timeout(deadline, verdict).await;
    let verdict = verdict.ok().flatten().unwrap_or(Frame::Unknown { id });
    trace.push(&Ended {
        record: &record,
        peer: &arrived.channel.peer,
        context: &context,
        outcome: name_of(&verdict),
    });
    arrived.channel.send_verdict(&verdict);
}

/// Restores the connection here, and tells the source the verdict.
async fn settle_here(shared: &Rc<Shared>, arrived: Arrived) {
    let hand_off = arrived.hand_off;
    let channel = arrived.channel;
    let id = hand_off.id;
    let client = hand_off.tcp.remote;
    let service = hand_off.tcp.service;
    let mut record = Record::new(Part::Target, id, client.port());
    record.mark_at(Step::Received, arrived.at_ns);
    let trace = &shared.process.trace;
    let context = trace.context_for_observer(&hand_off.context);
    let (owned, spent) = {
        let peer = channel.peer.as_str();
        let owning = pin!(own_connection(shared, *hand_off, peer, &mut record));
        metered(Costs::is_sample(), owning).await
    };
    let verdict = match owned {
        Ok(connection) => {
            shared.counters.imported.add_one();
            // The application takes it soon, because it only spawns a task.
            let _ = shared.incoming.send(Incoming::Client(connection)).await;
            record.mark(Step::Live);
            let spent_ns = spent.map_or(0, |spent| spent.as_nanos());
            let spent_ns = u32::try_from(spent_ns).unwrap_or(u32::MAX);
            Frame::Accepted { id, spent_ns }
        }
        Err(Refused { reason, pass }) => {
            shared.counters.imports_refused.add_one();
            tracing::info!(%client, peer = channel.peer, ?reason, "hand-off refused");
            Frame::Refused { id, reason, pass }
        }
    };
    channel.send_verdict(&verdict);
    trace.push(&Ended {
        record: &record,
        peer: &channel.peer,
        context: &context,
        outcome: name_of(&verdict),
    });
    let worker = shared.clone();
    (shared.deferred).add(move || worker.prepare_blanks(service));
}

/// A verdict as observers get it.
const fn name_of(verdict: &Frame) -> &'static str {
    match verdict {
        Frame::Accepted { .. } => "accepted",
        Frame::Refused { .. } => "refused",
        _ => "unknown",
    }
}

fn flow_of(hand_off: &HandOff) -> FlowKey {
    FlowKey {
        client: hand_off.tcp.remote,
        vip: hand_off.tcp.service,
    }
}

/// A refusal of a hand-off.
struct Refused {
    reason: Refusal,
    /// For the source, if the switch may have the flow as this node's. No other refusal has one: a
    /// peer could collect them for flows that come here later.
    pass: Option<Pass>,
}

impl From<Refusal> for Refused {
    fn from(reason: Refusal) -> Self {
        Self { reason, pass: None }
    }
}

/// The word of this node that the source may take the flow back by its next command.
fn pass_back(shared: &Shared, hand_off: &HandOff) -> Option<Pass> {
    shared.control.as_ref()?.pass(&Passage {
        flow: flow_of(hand_off),
        epoch: hand_off.epoch.saturating_add(1),
        via: hand_off.permit?.source,
    })
}

/// Restores the connection and makes this node its owner at the switch.
async fn own_connection(
    shared: &Rc<Shared>,
    mut hand_off: HandOff,
    peer: &str,
    record: &mut Record,
) -> Result<Connection, Refused> {
    let control = check_offer(shared, &hand_off)?;
    let records = restore_records(&mut hand_off)?;
    let flow = flow_of(&hand_off);
    check_absence(shared, control, &flow, hand_off.epoch, peer).await?;
    let permit = hand_off.permit.map(|permit| permit.pass);
    let pass = permit.or_else(|| control.void_pass());
    make_room(shared, &flow, hand_off.epoch);
    let (mut machine, mut action) = Import::start(shared.config.fence, flow, hand_off.epoch);
    let id = hand_off.id;
    let wait = || shared.process.given_up.wait(id);
    let mut socket = None;
    let mut undecided = None;
    let mut holding = Holding {
        control,
        flow,
        epoch: None,
    };
    loop {
        let event = match action {
            Action::Restore { is_mute } => match restore_socket(shared, &hand_off, is_mute) {
                Ok(built) => {
                    record.mark(Step::Restored);
                    let owner = shared.owner(built.local);
                    socket = Some(built);
                    Event::Restored(owner)
                }
                Err(error) => {
                    tracing::warn!(%error, client = %hand_off.tcp.remote,
                        "cannot build the socket of a hand-off; it is refused");
                    Event::RestoreFailed
                }
            },
            Action::Steer {
                command,
                deadline_ns,
            } => {
                let mut call = pin!(control.call_with(pass, command, deadline_ns));
                let outcome = match poll_once(call.as_mut()).await {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => {
                        undecided.get_or_insert_with(|| {
                            let is_deaf = wait_silently(shared, socket.as_mut());
                            if !is_deaf && shared.config.fence == Fence::Switch {
                                machine.must_insist();
                                holding.insist(&command, permit);
                            }
                            wait()
                        });
                        call.await
                    }
                };
                let noted = control.note(outcome, command.owner);
                if let (Some(epoch), Some(pass)) = (noted, permit) {
                    control.keep_pass(flow, epoch, pass);
                }
                holding.epoch = noted.or(holding.epoch);
                record.mark(Step::Owned);
                Event::Steered(outcome)
            }
            Action::GoLive => {
                let socket = socket.take().ok_or(Refusal::RestoreFailed)?;
                let back = pass_back(shared, &hand_off);
                let live = go_live(shared, socket, hand_off, records);
                let connection = live.map_err(|reason| Refused { reason, pass: back })?;
                // From now on the connection has it.
                holding.epoch = None;
                return Ok(connection);
            }
            // Dropping the restored socket closes it silently.
            Action::Refuse(why) => return Err(why.into()),
            Action::GiveUp(why) => {
                let socket = socket.take().map(|built| built.restored);
                let undecided = undecided.take().unwrap_or_else(wait);
                let back = pass_back(shared, &hand_off);
                let closed_sockets = shared.closed_sockets.clone();
                let remains = machine.remains().zip(closed_sockets);
                undecided.give_up(flow, hand_off.epoch, back, socket, async move {
                    if let Some((remains, closed_sockets)) = remains {
                        closed_sockets.release_remains(remains).await;
                    }
                });
                return Err(Refused {
                    reason: why,
                    pass: back,
                });
            }
        };
        action = machine.handle(event);
    }
}

/// Takes the TLS session out of a hand-off.
fn restore_records(hand_off: &mut HandOff) -> Result<Option<Records>, Refusal> {
    let records = hand_off.tls.take().map(Records::restore).transpose();
    records.map_err(|error| {
        tracing::warn!(%error, client = %hand_off.tcp.remote,
            "a TLS session that arrived cannot be read; its hand-off is refused");
        Refusal::Malformed
    })
}

/// A flow that is announced while its hand-off is under way. Dropping it forgets the flow.
struct Holding<'c> {
    control: &'c Control,
    flow: FlowKey,
    epoch: Option<u64>,
}

impl Holding<'_> {
    /// No other host can go on with the connection.
    fn insist(&mut self, command: &Command, pass: Option<Pass>) {
        if let Some(pass) = pass {
            self.control.keep_pass(self.flow, command.epoch, pass);
        }
        self.control.hold(self.flow, command.owner, command.epoch);
        self.epoch = Some(command.epoch);
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        if let Some(epoch) = self.epoch {
            self.control.forget(&self.flow, epoch);
        }
    }
}

/// The way to the switch, if this node can take the connection.
fn check_offer<'s>(shared: &'s Shared, hand_off: &HandOff) -> Result<&'s Rc<Control>, Refusal> {
    let control = shared.control.as_ref().ok_or(Refusal::Unwilling)?;
    let client = hand_off.tcp.remote.ip();
    if !shared.is_service(hand_off.tcp.service) || shared.address_for(client).is_none() {
        return Err(Refusal::Unwilling);
    }
    // Nothing else would keep the socket mute.
    if shared.config.fence == Fence::Host && shared.freezer().is_none() {
        return Err(Refusal::Unwilling);
    }
    if !shared.has_room() && !shared.process.guests.has_resting() {
        return Err(Refusal::Busy);
    }
    if !control.decides() {
        return Err(Refusal::SwitchFailed);
    }
    Ok(control)
}

/// Checks that the connection can be at another node, if this one holds its flow: its sockets make
/// room for what comes, and a switch whose key all nodes share lets it replace its own connection.
/// The peer that has got the connection may return it.
async fn check_absence(
    shared: &Shared,
    control: &Control,
    flow: &FlowKey,
    epoch: u64,
    peer: &str,
) -> Result<(), Refusal> {
    let process = &shared.process;
    let is_here = process.held_flows.contains(flow)
        || (shared.has_service_address() && process.given_up.has(flow));
    if !is_here || process.frozen.is_with(peer, flow, epoch) {
        return Ok(());
    }
    let query = Command {
        ops: Ops::QUERY,
        epoch: 0,
        flow: *flow,
        owner: Owner::NONE,
    };
    let outcome = control.call(query, CLAIM_DEADLINE_NS).await;
    let CommandOutcome::Answered(answer) = outcome else {
        return Err(Refusal::SwitchFailed);
    };
    let own = shared.address_for(flow.client.ip());
    let is_own = answer.state != FlowState::Absent && Some(answer.owner.via) == own;
    match answer.status {
        Status::Ok if is_own => Err(Refusal::Stale),
        Status::Ok => Ok(()),
        _ => Err(Refusal::SwitchFailed),
    }
}

/// Closes sockets of this connection that it left behind here. With the service's own address, an
/// old one would be in the way of the new one.
fn make_room(shared: &Shared, flow: &FlowKey, epoch: u64) {
    let needs_room = shared.has_service_address();
    shared.process.frozen.on_arrival(flow, epoch, needs_room);
    if needs_room {
        shared.process.given_up.make_room(flow, epoch);
    }
}

/// A socket that was built from a hand-off, and its local address.
struct Built {
    restored: Restored,
    local: SocketAddr,
}

/// Silences the socket while the switch does not answer. This host's kernel must not
/// acknowledge bytes that the source, if it goes on, does not have. False: it may have.
fn wait_silently(shared: &Shared, socket: Option<&mut Built>) -> bool {
    let (Some(built), Some(freezer)) = (socket, shared.freezer()) else {
        return false;
    };
    let silenced = built.restored.silence(freezer).inspect_err(|error| {
        tracing::debug!(%error, "cannot silence a socket that waits for the switch");
    });
    silenced.unwrap_or(false)
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

fn restore_socket(
    shared: &Rc<Shared>,
    hand_off: &HandOff,
    is_mute: bool,
) -> Result<Built, RestoreError> {
    let tcp = &hand_off.tcp;
    let mut tries_left = if shared.has_service_address() {
        0
    } else {
        MAX_PORT_TRIES
    };
    loop {
        let blank = shared.blank(tcp.service, tcp.behaviour.mss_clamp_bytes)?;
        let blank = match shared.freezer() {
            Some(freezer) if is_mute => blank.mute(freezer)?,
            _ => blank,
        };
        let local = blank.bound();
        match restore_into(blank, tcp, shared.process.initial_window()) {
            Err(RestoreError::Taken { .. }) if tries_left > 0 => tries_left -= 1,
            done => {
                let restored = done?;
                return Ok(Built { restored, local });
            }
        }
    }
}

fn go_live(
    shared: &Rc<Shared>,
    socket: Built,
    hand_off: HandOff,
    records: Option<Records>,
) -> Result<Connection, Refusal> {
    // Not before the switch has decided: a false hand-off takes no place.
    if !shared.has_room() && shared.process.guests.longest_rest_leaves() {
        shared.counters.guests_evicted.add_one();
    }
    let Built { restored, local } = socket;
    let tcp = hand_off.tcp;
    let mut state = shared.new_state(tcp.remote, tcp.service, local);
    state.tls = records;
    state.input = Input::new(hand_off.input);
    state.output = hand_off.output;
    state.confirmed = true;
    state.behaviour = Some(tcp.behaviour);
    (state.epoch, state.moves) = (Some(hand_off.epoch), hand_off.moves);
    (state.origin, state.context) = (hand_off.origin, hand_off.context);
    let stream = state.go_live(restored).map_err(|error| {
        tracing::error!(%error, "a restored socket does not go live; its hand-off is refused");
        Refusal::RestoreFailed
    })?;
    // The switch may have dropped an acknowledgement or a window while it blocked the flow,
    // and the client repeats neither.
    if !tcp.sent.is_empty() || !tcp.unsent.is_empty() {
        stream.ask_for_window();
    }
    if let Some(closed) = &shared.closed_sockets {
        closed.unwatch(local, state.flow);
    }
    let mut connection = Connection::new(stream, state);
    connection.first_flight = FirstFlight::new(shared, tcp.srtt_us);
    Ok(connection)
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
