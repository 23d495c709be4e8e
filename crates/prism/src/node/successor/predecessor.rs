//! The predecessor's side of a take-over: what it passes and when it ends.
//!
//! Not here: how it goes on once its store is closed (`settle.rs`).

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use prism_config::{Running, seconds};
use prism_gateway::{CLOSED_IN, Farewells, PASSED_IN};
use prism_handoff::Process;
use prism_handoff::succession::Parked;
use prism_process::Stops;
use prism_proto::succession::{Action, Event, Message, Predecessor};
use prism_service::Stage;
use tokio::time::Instant;

use super::link::{Link, WatchedLink};
use crate::node::server::Server;

/// The longest time in which a successor loads its configuration.
const PREPARED_IN: Duration = Duration::from_secs(60);
/// The longest time in which a successor opens the store and accepts connections.
pub(super) const READY_IN: Duration = Duration::from_secs(120);
/// The longest silence of a successor that owes an answer.
pub(super) const ANSWERED_IN: Duration = Duration::from_secs(10);
/// The longest time that a process without a store goes on beside its successor, for answers that
/// are under way. Remaining connections are closed.
const BESIDE_IN: Duration = Duration::from_secs(3600);
/// Connections that were sent and are not answered, at most. The kernel bounds the number of
/// sockets on their way.
const MAX_UNANSWERED: usize = 64;
/// The longest wait for room in the link.
const ROOM_IN: Duration = Duration::from_secs(1);
/// Time between two looks at the remaining connections.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time between two orders to pass to connections that could not.
const PASS_EVERY: Duration = Duration::from_millis(100);
/// A store is closed when no answer is older than this, or after half of the drain time.
const YOUNG: Duration = Duration::from_millis(250);
/// The time in which peers ask a process for the last time after it has told them that it leaves.
const LAST_ASKED_IN: Duration = Duration::from_millis(50);

/// The longest wait for the ends of sockets that are closed already, so that their flows are
/// released. A socket in TIME_WAIT stays for a minute; the switch ages its flow out.
const RELEASED_IN: Duration = Duration::from_millis(200);

/// The sockets of a process beside its workers' listeners.
pub(in crate::node) struct Sockets {
    pub(in crate::node) admin: UnixListener,
    pub(in crate::node) pages: Option<TcpListener>,
}

/// The end of a take-over.
pub(in crate::node) enum PassedOn {
    /// The successor has failed, and this process goes on.
    GoesOn,
    /// The successor has failed after this process has left, so this process stops.
    Stops,
    /// The successor has everything.
    Over,
    /// This process serves nothing any more. Its parts are to be dropped, and with them its store.
    Closing(Box<Estate>),
}

/// The sockets and connections that a process passes to its successor.
pub(crate) struct Estate {
    pub(super) link: Link,
    pub(super) machine: Predecessor,
    pub(super) process: Arc<Process>,
    pub(super) config: Arc<Running>,
    pub(super) sent: HashMap<u64, Parked>,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) admin: UnixListener,
}

/// Passes a node's listeners and connections on.
pub(in crate::node) async fn pass_on(
    server: &Arc<Server>,
    link: Link,
    sockets: Sockets,
    farewells: &mut Farewells,
    stops: &mut Stops,
) -> PassedOn {
    let opened = Estate::open(server, link, sockets);
    let (mut estate, watched) = match opened.and_then(|estate| {
        let watched = estate.link.watched()?;
        Ok((estate, watched))
    }) {
        Ok(opened) => opened,
        Err(error) => {
            tracing::warn!(%error, "cannot pass the listeners to a successor");
            return PassedOn::GoesOn;
        }
    };
    tracing::info!("a successor takes over");
    let mut limit = PREPARED_IN;
    loop {
        let event = tokio::select! {
            event = estate.event(&watched, limit) => event,
            () = stops.asked() => {
                estate.link.hang_up();
                return PassedOn::Stops;
            }
        };
        match estate.machine.handle(event) {
            Action::Close => {
                let is_quiet = tokio::select! {
                    () = young(server) => true,
                    () = stops.asked() => false,
                };
                if !is_quiet {
                    estate.link.hang_up();
                    return PassedOn::Stops;
                }
                quiet(server, farewells).await;
                return PassedOn::Closing(Box::new(estate));
            }
            Action::Start => {
                limit = READY_IN;
                estate.start();
            }
            Action::Pass => return beside(server, estate, &watched, farewells, stops).await,
            Action::GoOn(_) => {
                tracing::error!(
                    "the successor has failed before it was ready; this process goes on"
                );
                return PassedOn::GoesOn;
            }
            Action::HangUp => estate.link.hang_up(),
            Action::Forget(_) | Action::Keep(_) | Action::End | Action::Wait => {}
        }
    }
}

/// Passes connections while both processes serve.
async fn beside(
    server: &Arc<Server>,
    mut estate: Estate,
    watched: &WatchedLink,
    farewells: &mut Farewells,
    stops: &mut Stops,
) -> PassedOn {
    let orders = &server.core.orders;
    let begun = Instant::now();
    let mut ordered = begun;
    let mut heard = begun;
    let mut gone = None;
    let mut has_left = false;
    let mut is_asked = false;
    orders.pass_to_successor(true);
    let is_broken = loop {
        estate.send_some();
        if estate.machine.unanswered() == 0 {
            heard = Instant::now();
        } else if heard.elapsed() >= ANSWERED_IN {
            // The end of the link is the next event.
            estate.link.hang_up();
        }
        let mut event = tokio::select! {
            event = estate.event(watched, BESIDE_IN) => Some(event),
            () = tokio::time::sleep(LOOK_EVERY) => None,
            () = stops.asked(), if !is_asked => {
                estate.link.hang_up();
                is_asked = true;
                continue;
            }
        };
        if event.is_some() {
            heard = Instant::now();
        }
        let late = begun.elapsed() >= BESIDE_IN;
        if event.is_none() && (late || estate.is_all_gone()) {
            let gone = *gone.get_or_insert_with(Instant::now);
            if releases_flows(&estate.process, gone) {
                continue;
            }
            if !has_left {
                has_left = true;
                orders.enter(Stage::Leaving);
            } else if late || farewells.told.is_closed() {
                event = Some(Event::AllGone);
            }
        }
        if ordered.elapsed() >= PASS_EVERY {
            ordered = Instant::now();
            orders.move_all();
        }
        match event.map_or(Action::Wait, |event| estate.machine.handle(event)) {
            Action::GoOn(unanswered) => {
                estate.take_back(unanswered);
                break true;
            }
            Action::End => break false,
            action => estate.follow(&action),
        }
    };
    if is_broken {
        tracing::error!("the successor has ended before it had everything; this process goes on");
        orders.pass_to_successor(false);
        estate.serve_again();
        return if has_left || is_asked {
            PassedOn::Stops
        } else {
            PassedOn::GoesOn
        };
    }
    orders.enter(Stage::Ending);
    let ended = tokio::time::timeout(PASSED_IN + 2 * CLOSED_IN, orders.all_have_ended());
    let _ = ended.await;
    estate.end();
    PassedOn::Over
}

/// Waits for a moment in which no answer is old.
async fn young(server: &Arc<Server>) {
    let limit = seconds(server.core.config.now().limits.drain_timeout_s) / 2;
    let begun = Instant::now();
    let longest = || server.gateway.connections.longest_answer();
    while begun.elapsed() < limit && longest().is_some_and(|time| time > YOUNG) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Stops a node with a store: peers ask it no more, new connections wait in the kernel, and the
/// present ones are parked after their present answer.
async fn quiet(server: &Arc<Server>, farewells: &mut Farewells) {
    let node = &server.core;
    let orders = &node.orders;
    let open = &node.process.counters.connections_open;
    let begun = Instant::now();
    orders.pass_to_successor(true);
    orders.enter(Stage::Leaving);
    let told = async { while farewells.told.recv().await.is_some() {} };
    let _ = tokio::time::timeout(PASSED_IN, told).await;
    tokio::time::sleep(LAST_ASKED_IN).await;
    while open.read() > 0 && begun.elapsed() < PASSED_IN {
        orders.move_all();
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let gone = Instant::now();
    while releases_flows(&node.process, gone) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    orders.enter(Stage::Ending);
}

/// Whether flows are about to be released whose last connection went at `gone`.
fn releases_flows(process: &Process, gone: Instant) -> bool {
    let counters = &process.counters;
    let waiting = counters.flows_closing.read() + counters.releases_waiting.read();
    waiting > 0 && gone.elapsed() < RELEASED_IN
}

impl Estate {
    /// Sends the successor all listeners.
    fn open(server: &Arc<Server>, link: Link, sockets: Sockets) -> io::Result<Self> {
        let node = &server.core;
        let mut listeners = node.process.listeners.copies()?;
        listeners.extend(sockets.pages);
        let estate = Self {
            link,
            machine: Predecessor::new(server.service.has_store()),
            process: node.process.clone(),
            config: server.core.config.clone(),
            sent: HashMap::new(),
            listeners,
            admin: sockets.admin,
        };
        for listener in &estate.listeners {
            let message = Message::Listener(Some(listener.local_addr()?));
            estate.send(&message, Some(listener))?;
        }
        estate.send(&Message::Listener(None), Some(&estate.admin))?;
        estate.send(&Message::Prepare, None::<&UnixListener>)?;
        Ok(estate)
    }

    fn send(&self, message: &Message, socket: Option<&impl AsFd>) -> io::Result<()> {
        self.link
            .send_within(message, socket.map(AsFd::as_fd), ROOM_IN)
    }

    /// A message without a socket. A failure ends the link.
    fn tell(&self, message: &Message) {
        if self.link.send_within(message, None, ROOM_IN).is_err() {
            self.link.hang_up();
        }
    }

    pub(super) fn start(&self) {
        self.tell(&Message::Go);
    }

    /// The next news, at most after `limit`: then the link is ended, and what has come is handled.
    pub(super) async fn event(&self, watched: &WatchedLink, mut limit: Duration) -> Event {
        loop {
            let received = tokio::time::timeout(limit, watched.receive()).await;
            match received.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok((Message::Prepared, _)) => return Event::Prepared,
                Ok((Message::Ready, _)) => return Event::Ready,
                Ok((Message::Taken { id }, _)) => return Event::Taken(id),
                Ok((Message::Refused { id }, _)) => return Event::Refused(id),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Event::Broken,
                wrong => {
                    tracing::error!(?wrong, "the successor is silent or breaks the protocol");
                    self.link.hang_up();
                    limit = ANSWERED_IN;
                }
            }
        }
    }

    /// Sends parked connections, as many as may be unanswered.
    pub(super) fn send_some(&mut self) {
        while self.machine.unanswered() < MAX_UNANSWERED {
            let Some(parked) = self.process.parking.take() else {
                return;
            };
            let Some(id) = self.machine.send() else {
                return self.process.parking.park(parked);
            };
            let (socket, state) = parked.into_parts();
            let message = Message::Connection { id, state };
            let sent = self.send(&message, Some(&socket));
            if let Message::Connection { state, .. } = message {
                self.sent.insert(id, Parked::new(socket, state));
            }
            if sent.is_err() {
                return self.link.hang_up();
            }
        }
    }

    /// Whether no connection is here or on its way.
    fn is_all_gone(&self) -> bool {
        self.process.counters.connections_open.read() == 0
            && self.sent.is_empty()
            && self.process.parking.is_empty()
            && !self.process.parking.has_arrivals()
    }

    pub(super) fn follow(&mut self, action: &Action) {
        match action {
            Action::Forget(id) => drop(self.sent.remove(id)),
            Action::Keep(id) => {
                let refused = self.sent.remove(id);
                refused.into_iter().for_each(|mut parked| {
                    parked.must_stay();
                    self.process.parking.adopt(parked);
                });
            }
            Action::HangUp => self.link.hang_up(),
            _ => {}
        }
    }

    /// Parks connections again that the successor has not taken.
    pub(super) fn take_back(&mut self, ids: impl IntoIterator<Item = u64>) {
        let unanswered = ids.into_iter().filter_map(|id| self.sent.remove(&id));
        let unanswered: Vec<_> = unanswered.collect();
        unanswered
            .into_iter()
            .for_each(|parked| self.process.parking.park(parked));
    }

    /// Has the workers serve the parked connections.
    fn serve_again(&self) {
        while let Some(parked) = self.process.parking.take() {
            self.process.parking.adopt(parked);
        }
    }

    pub(super) fn end(&self) {
        self.tell(&Message::End);
        tracing::info!("the successor has everything; this process ends");
    }
}
