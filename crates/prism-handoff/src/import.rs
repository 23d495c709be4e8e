//! Importing connections: the driver of `prism_proto::import`.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use prism_proto::control::FlowKey;
use prism_proto::export::VERDICT_DEADLINE_NS;
use prism_proto::import::{Action, DEAF_NS, Event, Import};
use prism_proto::node::{Frame, HandOff, MAX_MOVES, Refusal};
use prism_sys::tcp::{Behaviour, RestoreError, Restored, probe_peer, restore_into};

use crate::channel::{Arrived, Channel};
use crate::connection::Connection;
use crate::cost::{Costs, metered};
use crate::endpoint::{Incoming, Shared};
use crate::given_up::GivenUp;
use crate::leaving::Phase;
use crate::reading::Input;
use crate::records::Records;
use crate::supervise::caught_once;
use crate::trace::{Part, Record, Step};

/// Most imports that wait for the switch at once.
const MAX_IMPORTS: usize = 1024;
/// Ports tried when one is taken for the very same client.
const MAX_PORT_TRIES: usize = 8;

/// Begins an import. Where nothing has to be waited for, which is so as long as
/// the switch answers at once, it is over on return.
pub(crate) async fn begin(shared: Rc<Shared>, arrived: Arrived) {
    let refusal = match shared.phase.get() {
        Phase::Open if shared.importing.get() < MAX_IMPORTS => None,
        Phase::Open => Some(Refusal::Busy),
        Phase::Leaving | Phase::Deaf => Some(Refusal::Unwilling),
    };
    if let Some(reason) = refusal {
        shared.counters.imports_refused.add_one();
        let id = arrived.hand_off.id;
        return arrived.channel.send_verdict(&Frame::Refused { id, reason });
    }
    let importing = Importing::new(&shared, &arrived);
    let mut work = Box::pin(async move {
        import(shared, arrived).await;
        drop(importing);
    });
    // Behind a panic other hand-offs of the channel go on.
    let polled = poll_fn(|cx| Poll::Ready(caught_once(|| work.as_mut().poll(cx)))).await;
    if polled.is_ok_and(|polled| polled.is_pending()) {
        tokio::task::spawn_local(work);
    }
}

/// An import under way. One that panics leaves the decision to the switch.
struct Importing {
    shared: Rc<Shared>,
    channel: Rc<Channel>,
    id: u64,
}

impl Importing {
    fn new(shared: &Rc<Shared>, arrived: &Arrived) -> Self {
        shared.importing.set(shared.importing.get() + 1);
        Self {
            shared: shared.clone(),
            channel: arrived.channel.clone(),
            id: arrived.hand_off.id,
        }
    }
}

impl Drop for Importing {
    fn drop(&mut self) {
        let left = self.shared.importing.get().saturating_sub(1);
        self.shared.importing.set(left);
        if std::thread::panicking() {
            let Self { channel, id, .. } = self;
            tracing::error!(peer = channel.peer, id, "a hand-off that came broke off");
            channel.send_verdict(&Frame::Unknown { id: *id });
        }
    }
}

async fn import(shared: Rc<Shared>, arrived: Arrived) {
    match onward(&shared, &arrived).await {
        Some(channel) => pass_on(shared, arrived, channel).await,
        None => settle_here(shared, arrived).await,
    }
}

/// The channel to the node that the connection is meant for, where it has come back
/// to the node that accepted it, the application says that it is only on its way,
/// and that other node is in reach.
async fn onward(shared: &Rc<Shared>, arrived: &Arrived) -> Option<Rc<Channel>> {
    let transit = shared.config.transit.as_ref()?;
    let HandOff {
        moves,
        origin,
        context,
        input,
        tls,
        tcp,
        ..
    } = &*arrived.hand_off;
    // A connection that has moved too often is taken, and its request relayed.
    if *origin != shared.config.name || *moves >= MAX_MOVES {
        return None;
    }
    // Of a TLS session the kernel has records.
    let received = match tls {
        Some(_) => &[],
        None => tcp.received.as_slice(),
    };
    let known = [input.as_slice(), received].concat();
    let peer = transit(context, &known).filter(|peer| *peer != arrived.channel.peer)?;
    let channel = shared.peers.channel(&peer).await.ok()?;
    (!channel.is_stuck()).then_some(channel)
}

/// Passes the connection on as it came, but for the count of its moves. Its source keeps it until the verdict,
/// which comes back the same way.
async fn pass_on(shared: Rc<Shared>, arrived: Arrived, channel: Rc<Channel>) {
    let Arrived {
        mut hand_off,
        channel: source,
        at_ns,
    } = arrived;
    hand_off.moves = hand_off.moves.saturating_add(1);
    let (id, port) = (hand_off.id, hand_off.tcp.remote.port());
    let mut record = Record::new(Part::Transit, id, port);
    record.mark_at(Step::TransitReceived, at_ns);
    record.mark(Step::TransitDecided);
    let awaited = channel.await_verdict(id);
    let sent = channel.send(&Frame::HandOff(hand_off));
    shared.counters.passed_on.add_one();
    let deadline = Duration::from_nanos(VERDICT_DEADLINE_NS);
    let verdict = match sent {
        Ok(()) => tokio::time::timeout(deadline, awaited.wait())
            .await
            .ok()
            .flatten(),
        Err(_) => None,
    };
    shared.process.trace.push(record);
    let verdict = verdict.unwrap_or(Frame::Unknown { id });
    source.send_verdict(&verdict);
}

/// Takes the connection, or says why not.
async fn settle_here(shared: Rc<Shared>, arrived: Arrived) {
    let Arrived {
        hand_off,
        channel,
        at_ns,
    } = arrived;
    let (id, client, service) = (hand_off.id, hand_off.tcp.remote, hand_off.tcp.service);
    let mut record = Record::new(Part::Target, id, client.port());
    record.mark_at(Step::Received, at_ns);
    let (taken, spent) = {
        let taking = pin!(take(&shared, *hand_off, &mut record));
        metered(Costs::is_sample(), taking).await
    };
    let verdict = match taken {
        Ok(connection) => {
            shared.counters.imported.add_one();
            // Never full for long: the application only spawns.
            let _ = shared.incoming.send(Incoming::Client(connection)).await;
            record.mark(Step::Live);
            let spent_ns = spent.map_or(0, |spent| spent.as_nanos());
            let spent_ns = u32::try_from(spent_ns).unwrap_or(u32::MAX);
            Frame::Accepted { id, spent_ns }
        }
        Err(reason) => {
            shared.counters.imports_refused.add_one();
            tracing::info!(%client, peer = channel.peer, ?reason, "hand-off refused");
            Frame::Refused { id, reason }
        }
    };
    shared.process.trace.push(record);
    // The source waits for it with nothing but saved state.
    channel.send_verdict(&verdict);
    let chores = shared.chores.clone();
    chores.add(move || shared.prepare_blanks(service));
}

async fn take(
    shared: &Rc<Shared>,
    mut hand_off: HandOff,
    record: &mut Record,
) -> Result<Connection, Refusal> {
    let Some(control) = &shared.control else {
        return Err(Refusal::Unwilling);
    };
    if !shared.is_service(hand_off.tcp.service) {
        return Err(Refusal::Unwilling);
    }
    if !shared.has_room() {
        return Err(Refusal::Busy);
    }
    if !control.is_reachable() {
        return Err(Refusal::SwitchFailed);
    }
    let records = match hand_off.tls.take().map(Records::restore).transpose() {
        Ok(records) => records,
        Err(error) => {
            tracing::warn!(%error, client = %hand_off.tcp.remote, "no TLS session");
            return Err(Refusal::Malformed);
        }
    };
    let flow = FlowKey {
        client: hand_off.tcp.remote,
        vip: hand_off.tcp.service,
    };
    let (frozen, needs_room) = (&shared.process.frozen, shared.config.listen);
    frozen.on_arrival(&flow, hand_off.epoch, needs_room);
    if needs_room {
        shared.process.given_up.make_room(&flow, hand_off.epoch);
    }
    let (mut machine, mut action) = Import::start(flow, hand_off.epoch);
    let (mut socket, mut undecided) = (None, None);
    loop {
        let event = match action {
            Action::Restore => match restore_socket(shared, &hand_off) {
                Ok((restored, local)) => {
                    record.mark(Step::Restored);
                    socket = Some((restored, local));
                    Event::Restored(shared.owner(local))
                }
                Err(error) => {
                    tracing::warn!(%error, client = %hand_off.tcp.remote, "cannot restore");
                    Event::RestoreFailed
                }
            },
            Action::Steer {
                command,
                deadline_ns,
            } => {
                let mut call = pin!(control.call(command, deadline_ns));
                let outcome = match poll_once(call.as_mut()).await {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => {
                        undecided.get_or_insert_with(|| {
                            wait_silently(shared, &mut machine, socket.as_mut());
                            Undecided::new(shared, hand_off.id)
                        });
                        call.await
                    }
                };
                record.mark(Step::Owned);
                Event::Steered(outcome)
            }
            Action::GoLive => {
                let (restored, local) = socket.take().ok_or(Refusal::RestoreFailed)?;
                return go_live(shared, restored, local, hand_off, records);
            }
            // Dropping the restored socket closes it silently.
            Action::Refuse(why) => return Err(why),
            Action::GiveUp(why) => {
                let socket = socket.take().map(|(restored, _)| restored);
                give_up(shared, &hand_off, flow, socket);
                if let Some(undecided) = undecided.take() {
                    undecided.given_up();
                }
                return Err(why);
            }
        };
        action = machine.handle(event);
    }
}

/// The client must not be told, by this host's kernel, that something has arrived
/// which the source, should it go on, does not have.
fn wait_silently(
    shared: &Shared,
    machine: &mut Import,
    socket: Option<&mut (Restored, SocketAddr)>,
) {
    let (Some((restored, _)), Some(freezer)) = (socket, shared.freezer()) else {
        return machine.must_insist();
    };
    match restored.silence(freezer) {
        Ok(true) => {}
        Ok(false) => machine.must_insist(),
        Err(error) => {
            tracing::debug!(%error, "a socket that waits is not silent");
            machine.must_insist();
        }
    }
}

/// The source may go on, and ask whether it may; the socket stays deaf for as long
/// as the switch may point the flow here.
fn give_up(shared: &Rc<Shared>, hand_off: &HandOff, flow: FlowKey, socket: Option<Restored>) {
    let (id, given_up) = (hand_off.id, shared.process.given_up.clone());
    given_up.keep(id, flow, hand_off.epoch, socket);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(Duration::from_nanos(DEAF_NS)).await;
        given_up.forget(id);
    });
}

/// A hand-off for which the switch has yet to answer.
struct Undecided {
    given_up: Arc<GivenUp>,
    id: u64,
    is_given_up: bool,
}

impl Undecided {
    fn new(shared: &Shared, id: u64) -> Self {
        let given_up = shared.process.given_up.clone();
        given_up.open(id);
        Self {
            given_up,
            id,
            is_given_up: false,
        }
    }

    fn given_up(mut self) {
        self.is_given_up = true;
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        if !self.is_given_up {
            self.given_up.forget(self.id);
        }
    }
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

fn restore_socket(
    shared: &Rc<Shared>,
    hand_off: &HandOff,
) -> Result<(Restored, SocketAddr), RestoreError> {
    let tcp = &hand_off.tcp;
    let mut tries_left = if shared.config.listen {
        0
    } else {
        MAX_PORT_TRIES
    };
    loop {
        let blank = shared.blank(tcp.service, tcp.mss_clamp_bytes)?;
        let local = blank.bound();
        match restore_into(blank, tcp, shared.process.warmth()) {
            Err(RestoreError::Taken { .. }) if tries_left > 0 => tries_left -= 1,
            done => return Ok((done?, local)),
        }
    }
}

fn go_live(
    shared: &Rc<Shared>,
    restored: Restored,
    local: SocketAddr,
    hand_off: HandOff,
    mut records: Option<Records>,
) -> Result<Connection, Refusal> {
    let failed = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "a restored connection does not go live");
        Refusal::RestoreFailed
    };
    let HandOff {
        epoch,
        moves,
        origin,
        context,
        mut input,
        output,
        tcp,
        ..
    } = hand_off;
    let live = restored.go_live().map_err(|e| failed(&e))?;
    // What the switch dropped while the flow was blocked is not repeated by the
    // client, if it was an acknowledgement or a window.
    let was_under_way = !tcp.sent.is_empty() || !tcp.unsent.is_empty();
    if was_under_way && let Err(error) = probe_peer(live.fd.as_fd()) {
        tracing::debug!(%error, "the client was not asked for its window");
    }
    match &mut records {
        Some(records) => records.received(&live.input),
        None => input.extend_from_slice(&live.input),
    }
    let mut rest = shared.rest(tcp.remote, tcp.service, local);
    rest.tls = records;
    if let Some(gone) = &shared.gone {
        gone.unwatch(local, rest.flow);
    }
    rest.input = Input::new(input);
    rest.output = live.output;
    rest.output.extend_from_slice(&output);
    rest.confirmed = true;
    rest.behaviour = Some(Behaviour::of(&tcp));
    (rest.epoch, rest.moves) = (Some(epoch), moves);
    (rest.origin, rest.context) = (origin, context);
    Ok(shared.connection(live.fd, rest))
}

#[cfg(test)]
mod tests;
