//! The program's side of an endpoint: its connections, and the callbacks. All of it belongs to
//! the thread that opened the endpoint.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::null;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{JoinHandle, ThreadId};

use tokio::sync::mpsc;

use crate::config::Config;
use crate::queue::{Arrival, Command, Commander, Event, Order};
use crate::status::{Error, Outcome};
use crate::worker::{self, Shared};

/// The largest number of bytes of a connection that are written and that the worker has not
/// taken.
const MAX_UNWRITTEN_BYTES: usize = 8 << 20;
/// The largest context of an export.
const MAX_CONTEXT_BYTES: usize = 4 << 10;

/// A connection of an endpoint. 0 is none, and no number is used twice.
pub type ConnectionId = u64;

/// The callbacks of an endpoint. They get the pointer that the program has given to
/// prism_endpoint_open(). Each may be null. A callback may make any call but
/// prism_endpoint_poll() and prism_endpoint_free(), and returns normally (no longjmp, no
/// exceptions). Text is valid until the callback returns.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Callbacks {
    /// The switch has answered. No connection moves before that.
    pub on_ready: Option<extern "C" fn(user: *mut c_void)>,
    /// A client's connection: accepted here, or imported with prism_context(). Bytes may be
    /// unread already; on_data does not tell of these.
    pub on_client: Option<extern "C" fn(user: *mut c_void, connection: ConnectionId)>,
    /// A stream on which another node relays.
    pub on_relay:
        Option<extern "C" fn(user: *mut c_void, connection: ConnectionId, peer: *const c_char)>,
    /// There is more to read: prism_unread().
    pub on_data: Option<extern "C" fn(user: *mut c_void, connection: ConnectionId)>,
    /// The kernel has taken all that was written.
    pub on_written: Option<extern "C" fn(user: *mut c_void, connection: ConnectionId)>,
    /// An export has ended, with the reason if the connection was kept. Otherwise the
    /// connection is gone once this returns.
    pub on_exported: Option<
        extern "C" fn(
            user: *mut c_void,
            connection: ConnectionId,
            outcome: Outcome,
            reason: *const c_char,
        ),
    >,
    /// Nothing more can be read. The reason is null if the other side has closed its
    /// direction; it may still wait for an answer. If a write fails after that, this is
    /// called a second time, with the reason. The connection lasts until prism_close().
    pub on_end:
        Option<extern "C" fn(user: *mut c_void, connection: ConnectionId, reason: *const c_char)>,
}

struct Entry {
    commander: Commander,
    input: Vec<u8>,
    /// The number of bytes at the start of `input` that are consumed.
    consumed_bytes: usize,
    context: Vec<u8>,
    from: CString,
    origin: CString,
    is_relay: bool,
    is_exporting: bool,
    data: *mut c_void,
}

/// A worker of a node.
pub struct Endpoint {
    owner: ThreadId,
    callbacks: Callbacks,
    user: *mut c_void,
    shared: Arc<Shared>,
    orders: Option<mpsc::UnboundedSender<Order>>,
    worker: Option<JoinHandle<()>>,
    entries: RefCell<HashMap<ConnectionId, Entry>>,
    /// Memory that nothing here needs any more. The program may have pointers to it until the
    /// next poll.
    retired: RefCell<Vec<Vec<u8>>>,
    is_polling: Cell<bool>,
}

impl Endpoint {
    pub(crate) fn open(
        config: &Config,
        callbacks: Callbacks,
        user: *mut c_void,
    ) -> Result<Self, Error> {
        let endpoint_config = config.endpoint()?;
        let io_timeout = config.io_timeout;
        let shared = Shared::new().map_err(|error| Error::system("eventfd", error))?;
        let shared = Arc::new(shared);
        let (orders, received) = mpsc::unbounded_channel();
        let (bound_tx, bound) = std::sync::mpsc::channel();
        let of_worker = shared.clone();
        let work = move || {
            worker::run(endpoint_config, io_timeout, of_worker, received, &bound_tx);
        };
        let worker = std::thread::Builder::new().name("prism-handoff".into());
        let worker = worker.spawn(work);
        let worker = worker.map_err(|error| Error::system("cannot start a thread", error))?;
        let bound = bound.recv().map_err(|_| Error::stopped())?;
        bound.map_err(|error| Error::system("cannot bind the endpoint", error))?;
        Ok(Self {
            owner: std::thread::current().id(),
            callbacks,
            user,
            shared,
            orders: Some(orders),
            worker: Some(worker),
            entries: RefCell::default(),
            retired: RefCell::default(),
            is_polling: Cell::new(false),
        })
    }

    pub(crate) fn is_owned_here(&self) -> bool {
        self.owner == std::thread::current().id()
    }

    pub(crate) fn is_polling(&self) -> bool {
        self.is_polling.get()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.shared.events.as_fd().as_raw_fd()
    }

    /// Runs the callbacks of all events so far.
    pub(crate) fn poll(&self) -> Result<(), Error> {
        if self.is_polling.replace(true) {
            return Err(Error::busy("a callback is running"));
        }
        let _polling = Polling(&self.is_polling);
        self.retired.take();
        for (id, event) in self.shared.events.take() {
            self.dispatch(id, event);
        }
        if self.shared.has_stopped.load(Ordering::Acquire) {
            Err(Error::stopped())
        } else {
            Ok(())
        }
    }

    fn dispatch(&self, id: ConnectionId, event: Event) {
        let user = self.user;
        let calls = &self.callbacks;
        let calls_it = |callback: Option<extern "C" fn(*mut c_void, ConnectionId)>| {
            if let Some(callback) = callback {
                callback(user, id);
            }
        };
        if let Event::Arrived(arrival) = event {
            return self.arrive(id, *arrival);
        }
        if id != 0 && !self.entries.borrow().contains_key(&id) {
            // The program has closed it.
            return;
        }
        match event {
            Event::Ready => calls.on_ready.iter().for_each(|callback| callback(user)),
            Event::Arrived(_) => {}
            Event::Data(bytes) => {
                if let Some(entry) = self.entries.borrow_mut().get_mut(&id) {
                    self.retire(entry.add(bytes));
                }
                calls_it(calls.on_data);
            }
            Event::Written => calls_it(calls.on_written),
            Event::Exported { outcome, reason } => {
                if let Some(entry) = self.entries.borrow_mut().get_mut(&id) {
                    entry.is_exporting = false;
                }
                if let Some(callback) = calls.on_exported {
                    callback(user, id, outcome, reason.as_ptr());
                }
                if outcome != Outcome::Kept {
                    self.remove(id);
                }
            }
            Event::Ended { reason } => {
                if let Some(callback) = calls.on_end {
                    callback(user, id, reason.as_deref().map_or(null(), CStr::as_ptr));
                }
            }
        }
    }

    fn arrive(&self, id: ConnectionId, arrival: Arrival) {
        let Arrival {
            commander,
            input,
            context,
            from,
            origin,
            is_relay,
        } = arrival;
        let peer = from.clone();
        let entry = Entry {
            commander,
            input,
            consumed_bytes: 0,
            context,
            from,
            origin,
            is_relay,
            is_exporting: false,
            data: std::ptr::null_mut(),
        };
        self.entries.borrow_mut().insert(id, entry);
        match (is_relay, self.callbacks.on_client, self.callbacks.on_relay) {
            (false, Some(on_client), _) => on_client(self.user, id),
            (true, _, Some(on_relay)) => on_relay(self.user, id, peer.as_ptr()),
            // Nobody wants it.
            _ => drop(self.close(id)),
        }
    }

    fn with<T>(
        &self,
        id: ConnectionId,
        work: impl FnOnce(&mut Entry) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut entries = self.entries.borrow_mut();
        work(entries.get_mut(&id).ok_or_else(Error::gone)?)
    }

    pub(crate) fn relay(&self, peer: &str) -> Result<ConnectionId, Error> {
        let id = self.shared.new_id();
        let (commander, commands) = Commander::new(id);
        let entry = Entry {
            commander,
            input: Vec::new(),
            consumed_bytes: 0,
            context: Vec::new(),
            from: crate::status::c_text(peer),
            origin: CString::default(),
            is_relay: true,
            is_exporting: false,
            data: std::ptr::null_mut(),
        };
        let peer = peer.to_owned();
        let order = Order::Relay { peer, commands };
        let orders = self.orders.as_ref().ok_or_else(Error::stopped)?;
        orders.send(order).map_err(|_| Error::stopped())?;
        self.entries.borrow_mut().insert(id, entry);
        Ok(id)
    }

    /// The place and the number of the unread bytes. As all memory of a connection, they stay
    /// there until the next [`Self::poll`].
    pub(crate) fn unread(&self, id: ConnectionId) -> Result<(*const u8, usize), Error> {
        self.with(id, |entry| {
            let unread = entry.unread();
            Ok((unread.as_ptr(), unread.len()))
        })
    }

    pub(crate) fn context(&self, id: ConnectionId) -> Result<(*const u8, usize), Error> {
        self.with(id, |entry| {
            Ok((entry.context.as_ptr(), entry.context.len()))
        })
    }

    pub(crate) fn from(&self, id: ConnectionId) -> Result<*const c_char, Error> {
        self.with(id, |entry| Ok(entry.from.as_ptr()))
    }

    pub(crate) fn origin(&self, id: ConnectionId) -> Result<*const c_char, Error> {
        self.with(id, |entry| Ok(entry.origin.as_ptr()))
    }

    pub(crate) fn data(&self, id: ConnectionId) -> Result<*mut c_void, Error> {
        self.with(id, |entry| Ok(entry.data))
    }

    pub(crate) fn set_data(&self, id: ConnectionId, data: *mut c_void) -> Result<(), Error> {
        self.with(id, |entry| {
            entry.data = data;
            Ok(())
        })
    }

    pub(crate) fn consume(&self, id: ConnectionId, bytes: usize) -> Result<(), Error> {
        self.with(id, |entry| {
            entry.may_change()?;
            if bytes > entry.unread().len() {
                return Err(Error::invalid("more bytes than are unread"));
            }
            self.retire(entry.consume(bytes));
            entry.send(Command::Consume(bytes))
        })
    }

    pub(crate) fn write(&self, id: ConnectionId, bytes: &[u8]) -> Result<(), Error> {
        self.with(id, |entry| {
            entry.may_change()?;
            if bytes.len() > MAX_UNWRITTEN_BYTES {
                return Err(Error::invalid("a write has at most 8 MiB"));
            }
            let unwritten_bytes = entry.commander.unwritten_bytes.load(Ordering::Relaxed);
            if unwritten_bytes.saturating_add(bytes.len()) > MAX_UNWRITTEN_BYTES {
                let why = "more than 8 MiB would be unwritten: wait for on_written";
                return Err(Error::busy(why));
            }
            entry.send(Command::Write(bytes.to_vec()))
        })
    }

    pub(crate) fn export(&self, id: ConnectionId, peer: &str, context: &[u8]) -> Result<(), Error> {
        if context.len() > MAX_CONTEXT_BYTES {
            return Err(Error::invalid("a context has at most 4096 bytes"));
        }
        self.with(id, |entry| {
            entry.may_change()?;
            if entry.is_relay {
                return Err(Error::invalid("a relay stream does not move"));
            }
            let peer = peer.to_owned();
            let context = context.to_vec();
            entry.send(Command::Export { peer, context })?;
            entry.is_exporting = true;
            Ok(())
        })
    }

    pub(crate) fn close(&self, id: ConnectionId) -> Result<(), Error> {
        let commander = self.remove(id).ok_or_else(Error::gone)?;
        // A worker that is gone has closed it.
        commander.send(Command::Close);
        Ok(())
    }

    /// Takes a connection off the table.
    fn remove(&self, id: ConnectionId) -> Option<Commander> {
        let entry = self.entries.borrow_mut().remove(&id)?;
        let texts = [entry.from, entry.origin].map(CString::into_bytes_with_nul);
        self.retire([entry.input, entry.context].into_iter().chain(texts));
        Some(entry.commander)
    }

    fn retire(&self, memory: impl IntoIterator<Item = Vec<u8>>) {
        self.retired.borrow_mut().extend(memory);
    }
}

impl Entry {
    fn unread(&self) -> &[u8] {
        self.input.get(self.consumed_bytes..).unwrap_or_default()
    }

    /// Adds bytes that were read. Returns the former memory of the unread ones if they move. Half
    /// of the new memory is free, so all that moves has at most twice the size of what was read.
    fn add(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if self.input.is_empty() {
            self.input = bytes;
            return None;
        }
        if self.input.capacity() - self.input.len() >= bytes.len() {
            self.input.extend_from_slice(&bytes);
            return None;
        }
        let unread = self.unread();
        let mut grown = Vec::with_capacity(2 * (unread.len() + bytes.len()));
        grown.extend_from_slice(unread);
        grown.extend_from_slice(&bytes);
        self.consumed_bytes = 0;
        Some(std::mem::replace(&mut self.input, grown))
    }

    /// Consumes the first `bytes`. The others stay where they are. Returns the memory if there
    /// are no others.
    fn consume(&mut self, bytes: usize) -> Option<Vec<u8>> {
        self.consumed_bytes += bytes;
        if !self.unread().is_empty() {
            return None;
        }
        self.consumed_bytes = 0;
        Some(std::mem::take(&mut self.input))
    }

    fn may_change(&self) -> Result<(), Error> {
        if self.is_exporting {
            Err(Error::busy("the connection is being exported"))
        } else {
            Ok(())
        }
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        if self.commander.send(command) {
            Ok(())
        } else {
            Err(Error::gone())
        }
    }
}

/// Notes the end of a poll, also if a panic ends it.
struct Polling<'e>(&'e Cell<bool>);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The worker ends when nobody can order anything.
        self.orders = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::config::of_lone_node;
    use crate::status::Status;

    #[test]
    fn the_last_wake_of_a_worker_tells_that_it_has_stopped() {
        let limit = Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        };
        for _ in 0..20 {
            let (config, _) = of_lone_node();
            let opened = Endpoint::open(&config, Callbacks::default(), std::ptr::null_mut());
            let mut endpoint = opened.unwrap();
            endpoint.orders = None;
            while endpoint.poll().is_ok() {
                let mut waits = [PollFd::new(&endpoint.shared.events, PollFlags::IN)];
                assert_eq!(poll(&mut waits, Some(&limit)).unwrap(), 1);
            }
            assert!(matches!(endpoint.poll(), Err(Error(Status::Stopped, _))));
        }
    }
}
