//! The worker's thread: an endpoint of `prism-handoff`, and a task for each connection.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use prism_handoff::{
    Connection, Endpoint, EndpointConfig, Exported, Handle, Incoming, Process, RelayStream,
};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::carrier::Carrier;
use crate::endpoint::ConnectionId;
use crate::queue::{Arrival, Command, Commander, Commands, Event, Events, Order};
use crate::status::{Outcome, c_text};

/// Reading stops while more is unread. An endpoint reads up to this size.
pub(crate) const MAX_UNREAD_BYTES: usize = 256 << 10;

/// The state that the worker and the program share.
pub(crate) struct Shared {
    pub(crate) events: Events,
    pub(crate) has_stopped: AtomicBool,
    next_id: AtomicU64,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            events: Events::new()?,
            has_stopped: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
        })
    }

    /// A number that no connection had before.
    pub(crate) fn new_id(&self) -> ConnectionId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn ended(&self, id: ConnectionId, why: Option<&dyn std::fmt::Display>) {
        let reason = why.map(|why| c_text(&why.to_string()));
        self.events.push(id, Event::Ended { reason });
    }
}

/// Tells the program of the worker's end, whatever the reason.
struct Stops(Arc<Shared>);

impl Drop for Stops {
    fn drop(&mut self) {
        self.0.has_stopped.store(true, Ordering::Release);
        self.0.events.wake();
    }
}

/// Tells the program if the task of a connection panics.
struct Panics {
    shared: Arc<Shared>,
    id: ConnectionId,
}

impl Drop for Panics {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared
                .ended(self.id, Some(&"an error in this library"));
        }
    }
}

/// Starts the task of a connection.
fn spawn_watched(
    shared: Arc<Shared>,
    id: ConnectionId,
    task: impl Future<Output = ()> + 'static,
) -> JoinHandle<()> {
    spawn_local(async move {
        let _panics = Panics { shared, id };
        task.await;
    })
}

/// The part of a connection that works.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It reads and writes.
    Open,
    /// The other side has closed its direction.
    HalfClosed,
    /// Nothing can be read, and the program knows the reason.
    ReadFailed,
    /// A write has failed, and the program knows that. Nothing may follow the gap.
    WriteFailed,
}

/// Runs an endpoint until `orders` are closed. `bound` gets the result of its start.
pub(crate) fn run(
    config: EndpointConfig,
    io_timeout: Duration,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Order>,
    bound: &std::sync::mpsc::Sender<io::Result<()>>,
) {
    let _stops = Stops(shared.clone());
    // The program's handlers run in its own threads, and signalfd finds what it has blocked.
    prism_sys::process::block_signals();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(bound.send(Err(error))),
    };
    LocalSet::new().block_on(&runtime, async {
        match Endpoint::bind(config, Arc::new(Process::default())).await {
            Ok(endpoint) => {
                let worker = Rc::new(Worker {
                    handle: endpoint.handle(),
                    shared,
                    io_timeout,
                });
                if bound.send(Ok(())).is_ok() {
                    worker.serve(endpoint, orders).await;
                }
            }
            Err(error) => drop(bound.send(Err(error))),
        }
    });
}

struct Worker {
    handle: Handle,
    shared: Arc<Shared>,
    io_timeout: Duration,
}

impl Worker {
    async fn serve(
        self: Rc<Self>,
        mut endpoint: Endpoint,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) {
        let waiting = self.clone();
        spawn_local(async move {
            waiting.handle.switch_answers().await;
            waiting.tell(0, Event::Ready);
        });
        loop {
            tokio::select! {
                incoming = endpoint.next() => match incoming {
                    Some(incoming) => self.clone().arrive(incoming),
                    None => return,
                },
                order = orders.recv() => match order {
                    Some(Order::Relay { peer, commands }) => {
                        let shared = self.shared.clone();
                        let id = commands.id;
                        spawn_watched(shared, id, self.clone().dial(peer, commands));
                    }
                    None => return,
                },
            }
        }
    }

    fn tell(&self, id: ConnectionId, event: Event) {
        self.shared.events.push(id, event);
    }

    /// Tells of the unread bytes behind the first `told_bytes`.
    fn tell_of_data(&self, id: ConnectionId, carrier: &Carrier, told_bytes: usize) {
        let new = carrier.buffered().get(told_bytes..).unwrap_or_default();
        self.tell(id, Event::Data(new.to_vec()));
    }

    fn arrive(self: Rc<Self>, incoming: Incoming) {
        let id = self.shared.new_id();
        let (commander, commands) = Commander::new(id);
        let (arrival, carrier) = match incoming {
            Incoming::Client(client) => self.client(commander, client),
            Incoming::Relay { stream, peer } => self.relay(commander, stream, &peer),
        };
        self.tell(id, Event::Arrived(Box::new(arrival)));
        spawn_watched(self.shared.clone(), id, self.serve_one(carrier, commands));
    }

    fn client(&self, commander: Commander, mut client: Connection) -> (Arrival, Carrier) {
        client.set_io_timeout(self.io_timeout);
        let arrival = Arrival {
            commander,
            input: client.buffered().to_vec(),
            context: client.context().to_vec(),
            from: c_text(&client.client().to_string()),
            origin: c_text(client.origin()),
            is_relay: false,
        };
        (arrival, Carrier::Client(client))
    }

    fn relay(
        &self,
        commander: Commander,
        mut stream: RelayStream,
        peer: &str,
    ) -> (Arrival, Carrier) {
        stream.set_io_timeout(self.io_timeout);
        let arrival = Arrival {
            commander,
            input: stream.buffered().to_vec(),
            context: Vec::new(),
            from: c_text(peer),
            origin: c_text(peer),
            is_relay: true,
        };
        (arrival, Carrier::Relay(stream))
    }

    async fn dial(self: Rc<Self>, peer: String, commands: Commands) {
        match self.handle.fresh_relay(&peer).await {
            Ok(mut stream) => {
                stream.set_io_timeout(self.io_timeout);
                self.serve_one(Carrier::Relay(stream), commands).await;
            }
            Err(error) => self.shared.ended(commands.id, Some(&error)),
        }
    }

    /// Carries out the commands for one connection, and reads from it in between.
    async fn serve_one(self: Rc<Self>, mut carrier: Carrier, mut commands: Commands) {
        let id = commands.id;
        let mut phase = Phase::Open;
        loop {
            let has_room = carrier.buffered().len() < MAX_UNREAD_BYTES;
            let command = tokio::select! {
                biased;
                command = commands.queue.recv() => command,
                filled = carrier.fill(), if phase == Phase::Open && has_room => {
                    match filled {
                        Ok(0) => {
                            phase = Phase::HalfClosed;
                            self.shared.ended(id, None);
                        }
                        Ok(new_bytes) => {
                            self.tell_of_data(id, &carrier, carrier.buffered().len() - new_bytes);
                        }
                        Err(error) => {
                            phase = Phase::ReadFailed;
                            self.shared.ended(id, Some(&error));
                        }
                    }
                    continue;
                }
            };
            match command {
                Some(Command::Consume(bytes)) => carrier.consume(bytes),
                Some(Command::Write(bytes)) => {
                    let written = match phase {
                        Phase::WriteFailed => Err(io::ErrorKind::BrokenPipe.into()),
                        _ => carrier.write(&bytes).await,
                    };
                    let unwritten = &commands.unwritten_bytes;
                    let before = unwritten.fetch_sub(bytes.len(), Ordering::Relaxed);
                    match written {
                        Ok(()) if before == bytes.len() => self.tell(id, Event::Written),
                        Ok(()) => {}
                        Err(error) => {
                            if matches!(phase, Phase::Open | Phase::HalfClosed) {
                                self.shared.ended(id, Some(&error));
                            }
                            phase = Phase::WriteFailed;
                        }
                    }
                }
                Some(Command::Export { .. }) if phase == Phase::WriteFailed => {
                    return self.exported(id, Outcome::Lost, "");
                }
                Some(Command::Export { peer, context }) => {
                    let told_bytes = carrier.buffered().len();
                    match self.export(id, carrier, &peer, &context).await {
                        Some(kept) => carrier = kept,
                        None => return,
                    }
                    // A socket that was built again has brought what its kernel had.
                    if carrier.buffered().len() > told_bytes {
                        self.tell_of_data(id, &carrier, told_bytes);
                    }
                }
                Some(Command::Close) => return carrier.close().await,
                // The endpoint ends.
                None => return,
            }
        }
    }

    /// Exports the connection, and gives it back if it stays.
    async fn export(
        &self,
        id: ConnectionId,
        carrier: Carrier,
        peer: &str,
        context: &[u8],
    ) -> Option<Carrier> {
        let Carrier::Client(client) = carrier else {
            // The program's side refuses this.
            return Some(carrier);
        };
        let (kept, outcome, reason) = match self.handle.export(client, peer, context).await {
            Exported::Moved => (None, Outcome::Moved, String::new()),
            Exported::Kept { connection, reason } => {
                (Some(connection), Outcome::Kept, format!("{reason:?}"))
            }
            Exported::Lost => (None, Outcome::Lost, String::new()),
            Exported::Unknown => (None, Outcome::Unknown, String::new()),
        };
        self.exported(id, outcome, &reason);
        kept.map(Carrier::Client)
    }

    fn exported(&self, id: ConnectionId, outcome: Outcome, reason: &str) {
        let reason = c_text(reason);
        self.tell(id, Event::Exported { outcome, reason });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_program_hears_of_a_task_that_panics() {
        let shared = Arc::new(Shared::new().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async {
            let ends = spawn_watched(shared.clone(), 7, async {});
            assert!(ends.await.is_ok());
            let panics = spawn_watched(shared.clone(), 8, async { panic!("on purpose") });
            assert!(panics.await.is_err());
        });
        let told: Vec<_> = shared.events.take().into();
        let [(8, Event::Ended { reason: Some(why) })] = &told[..] else {
            panic!("{} events", told.len());
        };
        assert_eq!(why.as_c_str(), c"an error in this library");
    }
}
