//! The queues between the program's thread and the worker's.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::mpsc;

use crate::endpoint::ConnectionId;
use crate::status::Outcome;

/// An act on a connection that the program wants. Commands are carried out in order.
pub(crate) enum Command {
    Consume(usize),
    Write(Vec<u8>),
    Export { peer: String, context: Vec<u8> },
    Close,
}

/// An act of the worker that the program wants.
pub(crate) enum Order {
    Relay { peer: String, commands: Commands },
}

/// The worker's end of a connection's commands.
pub(crate) struct Commands {
    pub(crate) id: ConnectionId,
    pub(crate) queue: mpsc::UnboundedReceiver<Command>,
    /// The bytes that the program has written and the worker has not.
    pub(crate) unwritten_bytes: Arc<AtomicUsize>,
}

/// The program's end of a connection's commands.
pub(crate) struct Commander {
    queue: mpsc::UnboundedSender<Command>,
    pub(crate) unwritten_bytes: Arc<AtomicUsize>,
}

impl Commander {
    pub(crate) fn new(id: ConnectionId) -> (Self, Commands) {
        let (tx, rx) = mpsc::unbounded_channel();
        let unwritten_bytes = Arc::new(AtomicUsize::new(0));
        let commander = Self {
            queue: tx,
            unwritten_bytes: unwritten_bytes.clone(),
        };
        let commands = Commands {
            id,
            queue: rx,
            unwritten_bytes,
        };
        (commander, commands)
    }

    /// Whether the worker will see the command.
    pub(crate) fn send(&self, command: Command) -> bool {
        if let Command::Write(bytes) = &command {
            self.unwritten_bytes
                .fetch_add(bytes.len(), Ordering::Relaxed);
        }
        self.queue.send(command).is_ok()
    }
}

/// A connection that the worker has got.
pub(crate) struct Arrival {
    pub(crate) commander: Commander,
    /// The bytes that arrived with it.
    pub(crate) input: Vec<u8>,
    pub(crate) context: Vec<u8>,
    /// The client's address, or the name of the peer that relays.
    pub(crate) from: CString,
    /// The node that accepted it.
    pub(crate) origin: CString,
    pub(crate) is_relay: bool,
}

/// A message to the program.
pub(crate) enum Event {
    Ready,
    Arrived(Box<Arrival>),
    Data(Vec<u8>),
    Written,
    Exported {
        outcome: Outcome,
        reason: CString,
    },
    /// `None` if the other side has closed its direction.
    Ended {
        reason: Option<CString>,
    },
}

/// The events for the program, and the descriptor that tells its loop of them.
pub(crate) struct Events {
    queue: Mutex<VecDeque<(ConnectionId, Event)>>,
    descriptor: OwnedFd,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            descriptor: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    pub(crate) fn push(&self, id: ConnectionId, event: Event) {
        let mut queue = self.queue.lock();
        queue.push_back((id, event));
        if queue.len() == 1 {
            self.wake();
        }
    }

    /// Makes the descriptor readable.
    pub(crate) fn wake(&self) {
        // It fails only if the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
    }

    /// Takes all events. The descriptor is not readable until there are others.
    pub(crate) fn take(&self) -> VecDeque<(ConnectionId, Event)> {
        let mut queue = self.queue.lock();
        // It fails if nothing has woken the program.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        std::mem::take(&mut *queue)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
