//! The primary: the order of writes, and the replicas that have to have them.
//!
//! A replica follows on a relay stream. It gets all values, then each write with its number,
//! and acknowledges them. An acknowledgement renews the replica's lease if the replica has
//! every write that was answered so far. The primary answers a write when each replica has
//! acknowledged it whose lease may last. So a replica with a lease has every answered write.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use prism_handoff::RelayStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::node::Node;
use crate::replica::LEASE;
use crate::resp;
use crate::store::Value;
use crate::wire;

/// A lease is over for the primary after this time: the replica's clock may run slower.
const LEASE_IS_OVER: Duration = LEASE.saturating_add(Duration::from_millis(100));
/// A replica that is further behind begins again.
const MAX_QUEUE_BYTES: usize = 256 << 20;

/// A replica that says nothing for this time is gone.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The number of a write, from 1.
type Number = u64;

pub(crate) struct Primary {
    /// The end of all leases that an earlier process of the primary may have granted.
    earlier_leases_until: Instant,
    state: RefCell<State>,
    /// A replica has acknowledged a write, or is gone.
    acknowledged: Notify,
}

#[derive(Default)]
struct State {
    last: Number,
    /// All writes up to this one were answered, or may have been.
    answered: Number,
    followers: Vec<Follower>,
    next_id: u64,
}

struct Follower {
    id: u64,
    name: String,
    queue: Rc<Queue>,
    acknowledged: Number,
    /// The end of its lease, after its first acknowledgement.
    waited_for_until: Option<Instant>,
    has_lease: bool,
}

/// Writes that a follower has not been sent. One that has become too large stays empty.
#[derive(Default)]
struct Queue {
    writes: RefCell<VecDeque<Rc<[u8]>>>,
    bytes: Cell<usize>,
    added: Notify,
}

impl Queue {
    fn add(&self, write: Rc<[u8]>) {
        self.bytes.set(self.bytes.get().saturating_add(write.len()));
        match self.check() {
            Ok(()) => self.writes.borrow_mut().push_back(write),
            Err(_) => *self.writes.borrow_mut() = VecDeque::new(),
        }
        self.added.notify_one();
    }

    /// Fails if the queue has become too large.
    fn check(&self) -> io::Result<()> {
        match self.bytes.get() > MAX_QUEUE_BYTES {
            true => Err(io::Error::other("it is too far behind")),
            false => Ok(()),
        }
    }

    fn len(&self) -> usize {
        self.writes.borrow().len()
    }

    fn pop(&self) -> Option<Rc<[u8]>> {
        let write = self.writes.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get() - write.len());
        Some(write)
    }
}

impl Primary {
    pub(crate) fn new() -> Self {
        Self {
            earlier_leases_until: Instant::now() + LEASE_IS_OVER,
            state: RefCell::default(),
            acknowledged: Notify::new(),
        }
    }

    /// The number of replicas with a lease.
    pub(crate) fn leases(&self) -> usize {
        let state = self.state.borrow();
        state.followers.iter().filter(|f| f.is_leased()).count()
    }

    /// The name of a replica with a lease; each gets its turn.
    pub(crate) fn replica(&self, turn: usize) -> Option<String> {
        let number = turn.checked_rem(self.leases())?;
        let state = self.state.borrow();
        let mut leased = state.followers.iter().filter(|f| f.is_leased());
        let chosen = leased.nth(number)?;
        Some(chosen.name.clone())
    }

    /// Orders a write that this node's values have already, and waits until it may be
    /// answered.
    pub(crate) async fn commit(&self, write: &[&[u8]]) {
        let number = {
            let mut state = self.state.borrow_mut();
            state.last += 1;
            let number = state.last;
            let text = number.to_string();
            let numbered = [&[text.as_bytes()], write].concat();
            let encoded: Rc<[u8]> = resp::encode(&numbered).into();
            for follower in &state.followers {
                follower.queue.add(encoded.clone());
            }
            number
        };
        // Replicas may have the lease of an earlier process, and not follow this one yet.
        tokio::time::sleep_until(self.earlier_leases_until).await;
        loop {
            let acknowledged = self.acknowledged.notified();
            let Some(until) = self.state.borrow().waits_until(number) else {
                break;
            };
            let _ = tokio::time::timeout_at(until, acknowledged).await;
        }
        let mut state = self.state.borrow_mut();
        state.answered = state.answered.max(number);
    }

    /// Serves the replica `name`, which follows on `stream`.
    pub(crate) async fn lead(&self, node: &Node, mut stream: RelayStream, name: &str) {
        let (id, queue) = self.add(name);
        stream.set_io_timeout(SILENT_FOR);
        // The values and the queue follow each other without a gap: nothing is awaited between.
        let values = node.store.borrow().all();
        let led = match self.copy_all(&mut stream, &queue, values).await {
            Ok(()) => self.pass_on(&mut stream, &queue, id).await,
            Err(error) => Err(error),
        };
        if let Err(error) = led {
            eprintln!("the replica {name} is gone: {error}");
        }
        let until = self.with(id, |follower| {
            follower.has_lease = false;
            follower.waited_for_until
        });
        if let Some(until) = until.flatten() {
            tokio::time::sleep_until(until).await;
        }
        self.state.borrow_mut().followers.retain(|f| f.id != id);
        self.acknowledged.notify_waiters();
    }

    fn add(&self, name: &str) -> (u64, Rc<Queue>) {
        let mut state = self.state.borrow_mut();
        state.next_id += 1;
        let (id, queue) = (state.next_id, Rc::<Queue>::default());
        state.followers.push(Follower {
            id,
            name: name.to_owned(),
            queue: queue.clone(),
            acknowledged: 0,
            waited_for_until: None,
            has_lease: false,
        });
        (id, queue)
    }

    fn with<T>(&self, id: u64, work: impl FnOnce(&mut Follower) -> T) -> Option<T> {
        let mut state = self.state.borrow_mut();
        state.followers.iter_mut().find(|f| f.id == id).map(work)
    }

    async fn copy_all(
        &self,
        stream: &mut RelayStream,
        queue: &Queue,
        values: Vec<(Vec<u8>, Value)>,
    ) -> io::Result<()> {
        let last = self.state.borrow().last.to_string();
        for (key, value) in values {
            queue.check()?;
            let copy = resp::encode(&[b"COPY", &key, &value]);
            stream.write(&copy).await?;
        }
        let copied = resp::encode(&[b"COPIED", last.as_bytes()]);
        stream.write(&copied).await?;
        stream.flush().await
    }

    /// Sends writes as they come, and takes acknowledgements.
    async fn pass_on(&self, stream: &mut RelayStream, queue: &Queue, id: u64) -> io::Result<()> {
        loop {
            while let Some(acknowledgement) = wire::buffered_command(stream)? {
                let [number, stamp] = acknowledgement.as_slice() else {
                    return Err(wire::malformed("an acknowledgement"));
                };
                if self.acknowledge(id, wire::integer(number)?) {
                    stream.write(&resp::encode(&[b"LEASE", stamp])).await?;
                }
            }
            queue.check()?;
            // Not those that come meanwhile: acknowledgements are waiting.
            for _ in 0..queue.len() {
                let Some(write) = queue.pop() else { break };
                stream.write(&write).await?;
            }
            stream.flush().await?;
            tokio::select! {
                biased;
                filled = stream.fill() => {
                    if filled? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                () = queue.added.notified() => {}
            }
        }
    }

    /// Notes that a follower has all writes up to `number`. Returns whether it gets a lease.
    fn acknowledge(&self, id: u64, number: Number) -> bool {
        let answered = self.state.borrow().answered;
        let has_lease = self.with(id, |follower| {
            follower.acknowledged = number;
            follower.waited_for_until = Some(Instant::now() + LEASE_IS_OVER);
            follower.has_lease = number >= answered;
            follower.has_lease
        });
        self.acknowledged.notify_waiters();
        has_lease == Some(true)
    }
}

impl State {
    /// Until when a write has to wait at most, if it has to.
    fn waits_until(&self, number: Number) -> Option<Instant> {
        let behind = self.followers.iter().filter(|f| f.acknowledged < number);
        let waited_for = behind.filter(|f| f.is_waited_for());
        waited_for.filter_map(|f| f.waited_for_until).max()
    }
}

impl Follower {
    fn is_leased(&self) -> bool {
        self.has_lease && self.is_waited_for()
    }

    fn is_waited_for(&self) -> bool {
        self.waited_for_until
            .is_some_and(|until| until > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_has_become_too_large_holds_nothing() {
        let (queue, write) = (Queue::default(), Rc::<[u8]>::from(vec![0; 1 << 20]));
        let most = MAX_QUEUE_BYTES >> 20;
        for _ in 0..most {
            queue.add(write.clone());
        }
        // A write that was sent makes room for another.
        assert!(queue.pop().is_some());
        queue.add(write.clone());
        assert_eq!((queue.len(), queue.check().is_ok()), (most, true));
        queue.add(write.clone());
        queue.add(write.clone());
        assert_eq!((queue.len(), queue.check().is_ok()), (0, false));
    }
}
